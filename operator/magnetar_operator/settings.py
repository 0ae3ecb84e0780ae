"""Settings of the operator.

Owns: every variable it reads, with default and bounds. Imports: magnetar.errors, builders.object.
Invariant: a value that will not do stops the start with a sentence that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from magnetar.errors import InvalidRequest
from magnetar_operator.builders.object import Defaults

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_ETCD_IMAGE = "gcr.io/etcd-development/etcd:v3.6.5"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Every setting of the operator."""

    image: str
    spark_image: str
    image_pull_policy: str = "IfNotPresent"
    etcd_image: str = DEFAULT_ETCD_IMAGE
    namespaces: tuple[str, ...] = ()
    lease_name: str = "magnetar-operator"
    lease_namespace: str = "default"
    identity: str = "local"
    http_host: str = "0.0.0.0"
    http_port: int = 8080
    workers: int = 8
    resync_s: float = 300.0

    @property
    def defaults(self) -> Defaults:
        return Defaults(self.image, self.image_pull_policy, self.etcd_image, self.spark_image)

    @staticmethod
    def from_environment(
        environment: Mapping[str, str], namespaces: Sequence[str] = ()
    ) -> OperatorSettings:
        """Raises InvalidRequest naming the variable, its value and the remedy."""
        watched = environment.get("MAGNETAR_WATCH_NAMESPACES", "")
        return OperatorSettings(
            image=_image("MAGNETAR_IMAGE", environment, "brokers"),
            spark_image=_image("MAGNETAR_SPARK_IMAGE", environment, "Spark jobs"),
            image_pull_policy=environment.get("MAGNETAR_IMAGE_PULL_POLICY") or "IfNotPresent",
            etcd_image=environment.get("MAGNETAR_ETCD_IMAGE") or DEFAULT_ETCD_IMAGE,
            namespaces=tuple(namespaces)
            or tuple(part.strip() for part in watched.split(",") if part.strip()),
            lease_name=environment.get("MAGNETAR_LEASE_NAME") or "magnetar-operator",
            lease_namespace=environment.get("POD_NAMESPACE") or _own_namespace(),
            identity=environment.get("POD_NAME") or environment.get("HOSTNAME") or "local",
            http_port=_whole("MAGNETAR_OPERATOR_HTTP_PORT", environment, 8080, 0, 65535),
            workers=_whole("MAGNETAR_OPERATOR_WORKERS", environment, 8, 1, 256),
            resync_s=float(_whole("MAGNETAR_OPERATOR_RESYNC_S", environment, 300, 5, 86400)),
        )


def _image(name: str, environment: Mapping[str, str], of: str) -> str:
    if not (image := environment.get(name, "")):
        raise InvalidRequest(
            f"{name} is not set: the operator must know the image that {of} run (the chart sets it)"
        )
    return image


def _whole(name: str, environment: Mapping[str, str], default: int, low: int, high: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdigit() or not low <= int(text) <= high:
        raise InvalidRequest(f"{name}={text!r} is not valid; use a whole number of {low}..{high}")
    return int(text)


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"
