"""HTTP to the API server.

Owns: the credentials (the pod's account, else the kubeconfig), one pool of connections, deadlines.
Imports: the `kubernetes` package, which reads and refreshes credentials and does TLS and proxies;
kopf, aiohttp's errors. Requests take the raw path of its ApiClient: generated models would cost
more than the request. Invariants: each request is sent once; after a 401 the credentials are read
again; no answer within the deadline is `ApiUnavailable`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies_environment

import aiohttp
import kopf
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube.errors import ApiUnavailable, KubernetesError

CONNECTIONS_MAX = 32
UNAUTHORIZED = 401
TLS_CLOSE_S = 0.25
"""How long TLS may take to close the connection of a cancelled request."""
HEADERS = {
    "Accept": "application/json",
    # Objects are small and the API server is near: inflating them would cost more than it saves.
    "Accept-Encoding": "identity",
    "User-Agent": names.FIELD_MANAGER,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    retry_after_s: float = 0.0


async def _configure(configuration: Any) -> Any:
    """Read the pod's service account, else the kubeconfig. Raises KubernetesError if neither can
    be used."""
    try:
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException:
            await config.load_kube_config(
                os.environ.get("KUBECONFIG") or None,
                client_configuration=configuration,
                persist_config=False,
            )
    except (
        config.ConfigException,
        OSError,
        LookupError,
        TypeError,
        ValueError,
        yaml.YAMLError,
    ) as error:
        raise KubernetesError(
            "neither a pod's service account nor a usable kubeconfig was found "
            f"({type(error).__name__}: {error}); set KUBECONFIG"
        ) from error
    return configuration


async def login(**_: Any) -> kopf.ConnectionInfo:
    """The same credentials for kopf's watches. Raises KubernetesError if there are none."""
    found = await _configure(Configuration())
    authorization = await found.get_api_key_with_prefix("BearerToken") or ""
    scheme, _separator, token = authorization.partition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
        trust_env=_has_proxy(),
    )


def _has_proxy() -> bool:
    """Whether the environment names a proxy."""
    return bool(getproxies_environment().keys() - {"no"})


class Connection:
    """Requests to one API server. Belongs to the event loop that it is made in."""

    def __init__(self, configuration: Any) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        configuration.client_session_kwargs = {
            "cookie_jar": aiohttp.DummyCookieJar(),
            # aiohttp looks for proxies and .netrc in a thread, once a request, if it may.
            "trust_env": _has_proxy(),
        }
        self._configuration, self._client = configuration, ApiClient(configuration)

    async def exchange(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        content_type: str,
        timeout_s: float,
    ) -> Answer:
        """One request, `path` with its query encoded. Raises ApiUnavailable if no answer came in
        time."""
        headers = {**HEADERS, "Content-Type": content_type}
        try:
            await self._client.update_params_for_auth(
                headers, None, ("BearerToken",), path, method, body
            )
            answer = await self._client.call_api(
                method, self._configuration.host + path, headers, body, _request_timeout=timeout_s
            )
            content = await answer.read()
        except (TimeoutError, aiohttp.ClientError, config.ConfigException, OSError) as error:
            raise ApiUnavailable(
                f"{method} {path.partition('?')[0]}: no answer: {error!r}"
            ) from error
        if answer.status == UNAUTHORIZED:
            await _configure(self._configuration)
        after = answer.headers.get("Retry-After", "0")
        return Answer(answer.status, content, float(after) if after.isdigit() else 0.0)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
        await asyncio.sleep(TLS_CLOSE_S)


async def connect() -> Connection:
    """A connection with the pod's account, or with the kubeconfig. Raises KubernetesError if
    neither can be used."""
    return Connection(await _configure(Configuration()))
