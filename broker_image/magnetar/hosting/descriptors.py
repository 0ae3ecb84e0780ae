"""How the open files that a process may have are divided.

Owns: `DescriptorShares`, and raising the soft limit to the hard one at the start. Imports:
resource, settings. Invariant: files of the log and connections to the store, etcd or S3, never wait
for what peers hold: the shares of all peers together leave a reserve.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

import structlog

from magnetar.hosting.settings import BrokerSettings

log = structlog.get_logger(__name__)

OWN_FILES = 1024
HTTP_CONNECTIONS_MAX = 1000
HANDSHAKES_MAX = 512


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """How many descriptors each kind of peer may hold."""

    clients: int
    http: int = HTTP_CONNECTIONS_MAX
    handshakes: int = HANDSHAKES_MAX

    @staticmethod
    def of(limit: int, clients_wanted: int) -> DescriptorShares:
        """Shares of a process that may open `limit` files: a quarter at most for itself and for
        HTTP each, an eighth for handshakes."""
        own, http, handshakes = (
            min(OWN_FILES, limit // 4),
            min(HTTP_CONNECTIONS_MAX, limit // 4),
            min(HANDSHAKES_MAX, limit // 8),
        )
        return DescriptorShares(
            max(1, min(clients_wanted, limit - own - http - handshakes)), http, handshakes
        )


def divided_descriptors(settings: BrokerSettings) -> tuple[BrokerSettings, DescriptorShares]:
    """The settings with as many connections as this process can open, after its soft limit was
    raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(
            soft, settings.connections_max + OWN_FILES + HTTP_CONNECTIONS_MAX + HANDSHAKES_MAX
        )
    if soft < hard:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    shares = DescriptorShares.of(hard, settings.connections_max)
    if shares.clients < settings.connections_max:
        log.warning(
            "connections.limited",
            connections_max=shares.clients,
            setting=settings.connections_max,
            open_files=hard,
            remedy="raise the process's limit of open files, or lower connections_max",
        )
    return replace(settings, connections_max=shares.clients), shares
