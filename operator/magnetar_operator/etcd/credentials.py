"""What the operator itself shows to clusters' etcds.

Owns: the material in memory, by secret, and reading it. Imports: kube.api, certificates,
magnetar.metadata. Invariants: a secret is read by name, never listed or watched, so that the
operator sees no other; an open store takes new material without being opened again; errors name the
secret and what is wrong with it, never what it holds.
"""

from __future__ import annotations

from magnetar.errors import StoreUnavailable
from magnetar.metadata.backends.etcd_tls import ReplaceableTls, TlsBytes
from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import client_secret, content
from magnetar_operator.builders.object import Manifest
from magnetar_operator.etcd.certificates import end_ms, material_problem
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.kinds import SECRET


class CredentialsMissing(StoreUnavailable):
    """A secret with TLS material does not exist or will not do: the store cannot be asked."""


class EtcdCredentials:
    """Material by namespace and secret."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._known: dict[tuple[str, str], ReplaceableTls] = {}
        self._ends: dict[tuple[str, str], dict[str, int]] = {}
        self.ends: dict[tuple[str, str], dict[str, int]] = {}
        """By namespace and cluster: when its certificates end, in milliseconds since the epoch,
        by what they are for."""

    async def of(self, cluster: BrokerCluster) -> ReplaceableTls | None:
        """What to show to the cluster's etcd; None = it is plain. Raises CredentialsMissing,
        KubernetesError."""
        name = client_secret(cluster, names.OPERATOR_USER)
        if not name:
            return None
        known = self._known.get((cluster.namespace, name))
        return known if known is not None else await self.refresh(cluster)

    async def refresh(self, cluster: BrokerCluster) -> ReplaceableTls | None:
        """As `of`, from what the secret holds now. Raises CredentialsMissing, KubernetesError."""
        name = client_secret(cluster, names.OPERATOR_USER)
        if not name:
            return None
        found = await self._api.get(SECRET, cluster.namespace, name)
        if found is None:
            raise CredentialsMissing(
                f"secret {name} does not exist in namespace {cluster.namespace}; it must hold "
                f"{_FILES}"
            )
        return self.take(found)

    def ends_of(self, cluster: BrokerCluster) -> dict[str, int]:
        """When the material for the cluster's etcd ends, as far as it was read: in milliseconds
        since the epoch, by what it is."""
        return self._ends.get((cluster.namespace, client_secret(cluster, names.OPERATOR_USER)), {})

    def seconds_left(self, now_ms: int) -> dict[tuple[str, str], float]:
        """How long each cluster's certificates last, by namespace/cluster and what they are for."""
        return {
            (f"{namespace}/{name}", part): (ends_ms - now_ms) / 1000
            for (namespace, name), found in list(self.ends.items())
            for part, ends_ms in found.items()
        }

    def take(self, secret: Manifest) -> ReplaceableTls:
        """Use what `secret` holds from now on. Raises CredentialsMissing."""
        namespace, name = secret["metadata"]["namespace"], secret["metadata"]["name"]
        material = TlsBytes(
            content(secret, AUTHORITY_FILE),
            content(secret, CERTIFICATE_FILE),
            content(secret, KEY_FILE),
        )
        problem = material_problem(material.authority, material.certificate, material.key)
        if problem:
            raise CredentialsMissing(f"secret {name}: {problem}; it must hold {_FILES}, as PEM")
        ends = {"authority": end_ms(material.authority), "client": end_ms(material.certificate)}
        self._ends[namespace, name] = {
            part: ends_ms for part, ends_ms in ends.items() if ends_ms is not None
        }
        known = self._known.get((namespace, name))
        if known is None:
            known = self._known[namespace, name] = ReplaceableTls(material)
        else:
            known.replace(material)
        return known

    def forget(self, kept: set[tuple[str, str]]) -> None:
        """Drop all material but that of these secrets."""
        for key in set(self._known) - kept:
            del self._known[key]
            self._ends.pop(key, None)


_FILES = f"{AUTHORITY_FILE}, {CERTIFICATE_FILE} and {KEY_FILE}"
