"""REST requests of the command line.

Owns: one small JSON client over the addresses of a cluster's brokers. Imports: json_http, names,
failures. Invariants: a broker that does not answer is passed over for the next one, unless it may
have acted on what it was sent; a redirect to a topic's owner is followed; a refusal is raised with
the server's own reason.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from magnetar.cli.access import ANYBODY, Access
from magnetar.cli.failures import Refused, Unreachable, WrongUsage
from magnetar.json_http import Answer, NoAnswer, exchange
from magnetar.names import NamespaceName, TopicName

DEFAULT_URL = "http://127.0.0.1:8080"
NOWHERE = (
    "start a server with `make run`, or say where one is by --url or MAGNETAR_URL. On Kubernetes: "
    "`kubectl exec main-broker-0 -- magnetar status`, "
    "or `kubectl port-forward service/main 8080` and the same again"
)
TIMEOUT_S = 60.0
REDIRECTS_MAX = 5
NOT_FOUND, CONFLICT, PRECONDITION, UNAVAILABLE = 404, 409, 412, 503
REDIRECTS = (301, 302, 307, 308)
HINTS: Mapping[int, str] = {
    401: "Give credentials that the server accepts: --token-file, --user and --password-file, or "
    "--tls-cert and --tls-key",
    403: "Ask an administrator of the cluster for the permission",
    NOT_FOUND: "Check the name: `magnetar topics list NAMESPACE` and `magnetar namespaces list` "
    "show what there is",
    405: "This server does not offer it: compare `magnetar status --output json` (version) on both "
    "sides",
    UNAVAILABLE: "Try again in a moment; `magnetar status` shows who serves",
}


class Rest:
    """A client of the brokers at `urls`: http://host:port, or several of them separated by
    commas."""

    def __init__(self, urls: str, timeout_s: float = TIMEOUT_S, access: Access = ANYBODY) -> None:
        self.urls = tuple(_checked(url.strip()) for url in urls.split(",") if url.strip())
        if not self.urls:
            raise WrongUsage(
                f"--url: {urls!r} names no server", f"write http://host:port, such as {DEFAULT_URL}"
            )
        self._timeout_s, self._access = timeout_s, access
        self._tls: ssl.SSLContext | None = None

    def at(self, url: str, timeout_s: float) -> Rest:
        """The same client of another server."""
        return Rest(url, timeout_s, self._access)

    def request(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """The decoded JSON answer, None if it has no body. Raises Refused, Unreachable."""
        given = {
            name: _text(value)
            for name, value in (query or {}).items()
            if value is not None and value != ""
        }
        target = f"{path}?{urlencode(given)}" if given else path
        failures, unready = [], None
        for url in self.urls:
            try:
                return self._ask(method, url, target, body)
            except NoAnswer as error:
                failures.append(f"{url}: {error}")
                if error.sent and method != "GET":
                    raise Unreachable(
                        f"{failures[-1]}: whether {method} {path} took effect is not known",
                        "look at the result before you repeat it",
                    ) from error
            except Refused as error:
                if error.status != UNAVAILABLE:
                    raise
                unready = error  # it starts or stops: another one may serve
        if unready is not None:
            raise unready
        remedy = "is the server running, and is --url (or MAGNETAR_URL) right?"
        raise Unreachable(
            f"no answer from {'; '.join(failures)}".replace("; ", ", "),
            NOWHERE if self.urls == (DEFAULT_URL,) else remedy,
        )

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self.request("GET", path, query=query)

    def put(self, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        return self.request("PUT", path, body, query)

    def post(self, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        return self.request("POST", path, body, query)

    def patch(self, path: str, body: Any) -> Any:
        return self.request("PATCH", path, body)

    def delete(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self.request("DELETE", path, query=query)

    def _ask(self, method: str, url: str, target: str, body: Any) -> Any:
        """One server, and those it redirects to. Raises NoAnswer, Refused, Unreachable."""
        asked = url
        for hop in range(REDIRECTS_MAX):
            try:
                answer = self._exchange(method, asked, target, body)
            except NoAnswer as error:
                if hop == 0:
                    raise
                raise Unreachable(
                    f"{url} sent us to the owner at {asked}, which does not answer from here "
                    f"({error})",
                    "run the command where brokers' advertised addresses can be reached, such as "
                    "in a pod of the cluster",
                ) from error
            if answer.status in REDIRECTS and answer.location:
                parts = urlsplit(answer.location)
                if url.startswith("https:") and parts.scheme == "http":
                    raise Unreachable(
                        f"{url} sent us on to {answer.location}, which is not by TLS",
                        "have its brokers run with --tls",
                    )
                asked = f"{parts.scheme}://{parts.netloc}" if parts.netloc else asked
                target = f"{parts.path}?{parts.query}" if parts.query else parts.path
                continue
            return _decoded(method, target, answer.status, answer.body)
        raise Refused(
            UNAVAILABLE,
            f"{method} {target}: sent from broker to broker {REDIRECTS_MAX} times; ownership is "
            "changing, try again",
        )

    def _exchange(self, method: str, url: str, target: str, body: Any) -> Answer:
        """Raises NoAnswer, WrongUsage."""
        if url.startswith("https:"):
            self._tls = self._tls or self._access.tls()
        shown = self._access.headers()
        return exchange(
            method, f"{url}{target}", body, shown, timeout_s=self._timeout_s, tls=self._tls
        )


def _checked(url: str) -> str:
    """Raises WrongUsage."""
    parts = urlsplit(url)
    try:
        valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        valid = False
    if not valid:
        raise WrongUsage(
            f"--url: {url!r} is not valid",
            "write http://host:port, or several with commas between them",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decoded(method: str, target: str, status: int, text: bytes) -> Any:
    """Raises Refused."""
    try:
        value = json.loads(text) if text else None
    except ValueError:
        value = text.decode(errors="replace")
        value = value if status < 300 else value[:500]
    if status < 300:
        return value
    answered = value if isinstance(value, dict) else {"reason": value}
    what = str(
        answered.get("reason") or f"{method} {target.partition('?')[0]} was refused with {status}"
    )
    # brokers of earlier versions say the remedy in the reason
    hint = "" if "; " in what else HINTS.get(status, "")
    raise Refused(status, what, str(answered.get("remedy") or hint))


# --- paths ----------------------------------------------------------------------------------------


def topic_path(topic: TopicName, suffix: str = "") -> str:
    """Path of a topic's routes."""
    return f"/admin/v2/{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}{suffix}"


def subscription_path(topic: TopicName, subscription: str, suffix: str = "") -> str:
    """Path of a subscription's routes."""
    return topic_path(topic, f"/subscription/{quote(subscription, safe='')}{suffix}")


def namespace_path(namespace: NamespaceName, suffix: str = "") -> str:
    """Path of a namespace's routes."""
    return f"/admin/v2/namespaces/{namespace}{suffix}"


def tenant_path(tenant: str) -> str:
    """Path of a tenant's routes."""
    return f"/admin/v2/tenants/{quote(tenant, safe='')}"


# --- what several commands create ------------------------------------------------------------------


def create_tenant(rest: Rest, tenant: str, configuration: Mapping[str, Any]) -> None:
    """With access to every cluster, unless its configuration names some. Raises Refused."""
    clusters = {"allowedClusters": rest.get("/admin/v2/clusters")}
    rest.put(tenant_path(tenant), {**clusters, **configuration})


def create_namespace(rest: Rest, namespace: NamespaceName, policies: Mapping[str, Any]) -> None:
    """With its tenant, where that does not exist yet. Raises Refused."""
    try:
        rest.put(namespace_path(namespace), policies)
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        create_tenant(rest, namespace.tenant, {})
        rest.put(namespace_path(namespace), policies)
