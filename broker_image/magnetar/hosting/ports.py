"""What a broker's and a coordinator's process get from outside.

Owns: `ProcessPorts` (clock, network, volume, store, lease, usage, security, TLS),
`ProcessIdentity` (names and addresses), and the Protocols of lease and usage. Imports: the ports.
Invariant: both values are immutable for as long as the process runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magnetar.clock import Clock
from magnetar.hosting.advertised import ListenerOptions
from magnetar.metadata.store import MetadataStore
from magnetar.network import Network
from magnetar.storage.volumes.volume import Volume

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.tls import TlsDoor


class Usage(Protocol):
    """What the machine gives to this process."""

    cores: float

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        ...

    def memory_share(self) -> float:
        """Resident memory over the limit that ends the process, 0..1."""
        ...


class Lease(Protocol):
    """A lease keeper (on its own thread in production)."""

    async def start(self) -> int:
        """Grant and keep; returns the lease id."""

    def valid(self) -> bool: ...

    async def stop(self, revoke: bool) -> None: ...


LeaseFactory = Callable[[Callable[[str], None]], Lease]


@dataclass(frozen=True, slots=True)
class ProcessPorts:
    """What one process works with."""

    clock: Clock
    network: Network
    volume: Volume
    store: MetadataStore
    lease: LeaseFactory
    usage: Usage
    security: Authenticator | None = None
    tls: TlsDoor | None = None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Names and addresses. `advertised_host` is what clients of the internal listener are told;
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
