"""What a process of the cluster is, and the world as it sees it.

Owns: `ProcessIdentity` and `ProcessPorts`, which brokers and transaction coordinators are made of.
Imports: the ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magnetar.clock import Clock
from magnetar.hosting.advertised import ListenerOptions
from magnetar.hosting.computing import Compute, inline
from magnetar.metadata.store import MetadataStore
from magnetar.network import Network
from magnetar.storage.volumes.volume import Volume

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.tls import TlsPort


class Lease(Protocol):
    """What a process needs of a lease keeper (on its own thread in production)."""

    async def start(self) -> int:
        """Grant and keep; returns the lease id."""

    def valid(self) -> bool: ...

    async def stop(self, revoke: bool) -> None: ...


LeaseFactory = Callable[[Callable[[str], None]], Lease]


class Usage(Protocol):
    """What the machine gives to this process."""

    cores: float
    memory_limit_bytes: int

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessPorts:
    """The world as one process sees it."""

    clock: Clock
    network: Network
    volume: Volume
    store: MetadataStore
    lease: LeaseFactory
    usage: Usage
    security: Authenticator | None = None
    tls: TlsPort | None = None
    compute: Compute = inline


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Names and addresses. `advertised_host` is what clients of the internal listener see;
    port 0 binds any free port.

    `http_url` is what other processes use; `tls_port` is for a process with TLS, which may leave
    the plain port closed.
    """

    name: str
    bind_host: str
    advertised_host: str
    port: int
    http_url: str
    listeners: ListenerOptions = field(default_factory=ListenerOptions)
    tls_port: int = 0
    http_url_tls: str = ""
    opens_plain: bool = True
