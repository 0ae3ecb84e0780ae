"""A peer, as authentication and authorization see its connection.

Owns: the Protocols of a connection and of what it has open. Imports: security, names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.names import TopicName

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor
    from magnetar.hosting.tls import PeerCertificate
    from magnetar.security.authorization import Principal


class OpenProducer(Protocol):
    """A producer, as far as its right goes."""

    @property
    def topic_name(self) -> TopicName: ...
    def close_by_broker(self, successor: Successor | None) -> None: ...


class OpenConsumer(Protocol):
    """A consumer, as far as its right goes."""

    @property
    def topic_name(self) -> TopicName: ...
    @property
    def subscription_name(self) -> str: ...
    def close_by_broker(self, successor: Successor | None) -> None: ...


class OpenSessions(Protocol):
    """What one connection has open, by the client's ids."""

    @property
    def producers(self) -> Mapping[int, OpenProducer]: ...
    @property
    def consumers(self) -> Mapping[int, OpenConsumer]: ...
    @property
    def watchers(self) -> dict[int, Any]: ...


class Peer(Protocol):
    """One connection. `principal`: who it is, None before it said so."""

    principal: Principal | None

    @property
    def peer(self) -> str: ...
    @property
    def tls(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def protocol_version(self) -> int: ...
    @property
    def certificate(self) -> PeerCertificate: ...
    @property
    def sessions(self) -> OpenSessions: ...

    def __hash__(self) -> int: ...
    def queue(self, data: bytes | memoryview) -> None: ...
    def close(self) -> None: ...


class Peers(Protocol):
    """The connections of a process."""

    def open(self) -> list[Any]:
        """Those of now."""
        ...
