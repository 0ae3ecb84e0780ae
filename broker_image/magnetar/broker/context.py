"""What every part of one broker shares.

Owns: `BrokerContext`, the bundle of ports (clock, network, volume, store) and of this incarnation's
identity. Imports: the ports. Invariant: nothing in it but the addresses of `listeners` and the `settings` changes
while the incarnation lives; a fenced broker gets a new context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.corruption import DamageTable
from magnetar.broker.metrics import BrokerMetrics
from magnetar.clock import Clock
from magnetar.errors import StorageError
from magnetar.hosting.advertised import Listeners
from magnetar.hosting.computing import Compute, inline
from magnetar.hosting.live_settings import LiveSettings
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata.store import MetadataStore
from magnetar.network import Network
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.volumes.volume import Volume

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.tls import TlsPort


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Ports, settings and identity of one incarnation.

    `broker` is the name that survives restarts (the pod's), `incarnation` the unit of fencing,
    `restore` the cluster's restore number; `number` names the incarnation among all of the
    cluster's, past and future, in few characters; `service_url` and `http_url` are what other
    brokers use; `listeners` has the addresses that clients get. `security` is how clients and other
    processes show who they are (None: no authentication). `tls` is how this process speaks TLS
    (None: it does not). `fail` ends this incarnation at once, with a reason: it acknowledges
    nothing after the call. `compute` runs what would hold
    the event loop.
    """

    live: LiveSettings
    clock: Clock
    network: Network
    volume: Volume
    store: MetadataStore
    broker: str
    incarnation: str
    restore: int
    service_url: str
    http_url: str
    listeners: Listeners
    log: LogWriter
    metrics: BrokerMetrics
    damage: DamageTable
    fail: Callable[[str], None]
    security: Authenticator | None = None
    tls: TlsPort | None = None
    http_url_tls: str = ""
    number: str = ""
    compute: Compute = inline

    @property
    def settings(self) -> BrokerSettings:
        """Those of this moment."""
        return self.live.now

    def check_log(self) -> None:
        """Raises StorageFull or StorageError while appended records would wait long. For callers
        whose client can retry."""
        self.log.space.check_room()
        most = self.settings.log_pending_bytes_max
        if self.log.pending_bytes > most:
            raise StorageError(
                f"{self.log.pending_bytes} bytes wait for the disk, more than "
                f"log_pending_bytes_max={most}; try again in a moment"
            )
