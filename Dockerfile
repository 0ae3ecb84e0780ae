# One image for broker, operator and Spark driver and executor:
#
#   docker build -t REPO/magnetar:TAG .        (or buildah build; BuildKit's RUN --mount is needed)
#   python3 -m dev.image build --load          (local cluster, no registry; BASE is then made by debootstrap)
#
# The layers go from what changes least to what changes most; the project's own comes last. The two optional secrets
# carry a machine's pip configuration and certificate bundle without leaving them in a layer:
#   --secret id=pip_conf,src=$HOME/.config/pip/pip.conf --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS system
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      ca-certificates openjdk-17-jre-headless python3 python3-venv tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb \
 && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java \
 && useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin magnetar \
 && mkdir -p /opt/spark/conf \
 && python3 -m venv /opt/magnetar
ENV PATH=/opt/magnetar/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/magnetar/lib/python3.11/site-packages/pyspark \
    SPARK_CONF_DIR=/opt/spark/conf \
    PYSPARK_PYTHON=/opt/magnetar/bin/python3 \
    PYTHONUNBUFFERED=1

# Spark alone is 490 MB: below everything that changes with our own dependencies.
FROM system AS dependencies
COPY requirements-spark.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    pip install --require-hashes --requirement /tmp/locks/requirements-spark.lock
COPY requirements.lock requirements-operator.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    pip install --require-hashes --requirement /tmp/locks/requirements.lock \
 && pip install --require-hashes --requirement /tmp/locks/requirements-operator.lock \
 && pip check

# A stage of its own, so that the build tool is not in the image.
FROM dependencies AS project
COPY dev/image/requirements-build.lock /tmp/locks/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    pip install --require-hashes --requirement /tmp/locks/requirements-build.lock
WORKDIR /source
COPY pyproject.toml README.md* ./
COPY broker_image broker_image
COPY operator operator
COPY spark_jobs spark_jobs
RUN pip install --no-index --no-deps --no-build-isolation --root /installed .

FROM dependencies AS magnetar
USER 10001:10001
WORKDIR /home/magnetar
# tini reaps the processes that Spark's workers leave behind and passes SIGTERM on.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/magnetar-entrypoint"]
CMD ["magnetar"]
COPY --chmod=0755 dev/image/entrypoint.sh /usr/local/bin/magnetar-entrypoint
# Copied, not bind-mounted: buildah leaves a mounted stage out of its cache key and would install an old version.
COPY --from=project /installed/ /
