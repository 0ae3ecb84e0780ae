# Three images of one tag: brokers and coordinators, the operator, Spark's drivers and executors.
#
#   docker build -t REPO/magnetar:TAG .                               (BuildKit's RUN --mount is needed)
#   docker build -t REPO/magnetar-operator:TAG --target operator .
#   docker build -t REPO/magnetar-spark:TAG --target spark .
#   python3 -m dev.image build --load                                 (all three for the local cluster, no registry; BASE by debootstrap)
#
# The layers go from what changes least to what changes most; the project's own comes last. The two optional secrets
# carry a machine's pip configuration and certificate bundle without leaving them in a layer:
#   --secret id=pip_conf,src=$HOME/.config/pip/pip.conf --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS system
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /usr/share/doc/* \
    /usr/lib/python3*/pydoc_data /usr/lib/python3*/test \
 && useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin magnetar
ENV PATH=/opt/magnetar/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1

# pip and setuptools, which no image keeps; and the environment that the images get, still empty.
FROM system AS tools
COPY requirements/build.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils python3-venv \
 && python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --require-hashes --requirement /tmp/locks/build.lock \
 && python3 -m venv --without-pip /opt/magnetar

FROM tools AS project
WORKDIR /source
COPY pyproject.toml LICENSE README.md* ./
COPY broker_image broker_image
COPY operator operator
COPY spark_jobs spark_jobs
RUN /opt/tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheel . \
 && /opt/tools/bin/pip --python /opt/magnetar/bin/python install --no-index --no-deps --root /installed /wheel/*.whl \
 && cp -a /installed /operator-installed \
 && rm -r /operator-installed/opt/magnetar/lib/python3*/site-packages/magnetar_jobs /operator-installed/opt/magnetar/lib/python3*/site-packages/magnetar/broker

# Debug symbols are a tenth of the packages, generated models of the Kubernetes API (never imported) 120 MB.
FROM tools AS operator-packages
COPY requirements/operator.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    /opt/tools/bin/pip --python /opt/magnetar/bin/python install --require-hashes --requirement /tmp/locks/operator.lock \
 && /opt/tools/bin/pip --python /opt/magnetar/bin/python check \
 && find /opt/magnetar -name '*.so' -exec strip --strip-unneeded {} + \
 && find /opt/magnetar/lib/python3*/site-packages/kubernetes -type f \( -path '*/client/models/*' -o -path '*/client/api/*' \) ! -name '__init__*' -delete \
 && find /opt/magnetar/lib -type d -name tests -prune -exec rm -r {} + \
 && python3 -c 'import aetcd, aiohttp, cryptography.x509, kopf, pydantic, uvloop, yaml; from kubernetes.aio import config; from kubernetes.aio.client import ApiClient'

FROM system AS operator
COPY --from=operator-packages /opt/magnetar /opt/magnetar
USER 10001:10001
WORKDIR /home/magnetar
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["magnetar", "operator"]
# Copied, not bind-mounted: buildah leaves a mounted stage out of its cache key and would install an old version.
# No operator runs a broker or a Spark job.
COPY --from=project /operator-installed/ /

# Spark alone is 490 MB.
FROM tools AS spark-packages
COPY requirements/spark.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    /opt/tools/bin/pip --python /opt/magnetar/bin/python install --require-hashes --requirement /tmp/locks/spark.lock \
 && /opt/tools/bin/pip --python /opt/magnetar/bin/python check

FROM system AS spark
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java \
 && mkdir -p /opt/spark/conf
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/magnetar/lib/python3.11/site-packages/pyspark \
    SPARK_CONF_DIR=/opt/spark/conf \
    PYSPARK_PYTHON=/opt/magnetar/bin/python3
COPY --from=spark-packages /opt/magnetar /opt/magnetar
USER 10001:10001
WORKDIR /home/magnetar
# tini reaps the processes that Spark's workers leave behind and passes SIGTERM on.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/magnetar-entrypoint"]
CMD ["magnetar"]
COPY --chmod=0755 dev/image/entrypoint.sh /usr/local/bin/magnetar-entrypoint
COPY --from=project /installed/ /

FROM tools AS broker-packages
COPY requirements/broker.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    /opt/tools/bin/pip --python /opt/magnetar/bin/python install --require-hashes --requirement /tmp/locks/broker.lock \
 && /opt/tools/bin/pip --python /opt/magnetar/bin/python check \
 && find /opt/magnetar -name '*.so' -exec strip --strip-unneeded {} + \
 && python3 -c 'import aetcd, cryptography.x509, fastapi, obstore, pydantic, uvloop, yaml'

# The last one is what `docker build` makes when no target is named.
FROM system AS broker
COPY --from=broker-packages /opt/magnetar /opt/magnetar
USER 10001:10001
WORKDIR /home/magnetar
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["magnetar"]
COPY --from=project /installed/ /
