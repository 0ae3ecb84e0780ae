"""What connections may do.

Owns: `Guard`: the right that each command needs, decisions from the records of the moment, and
closing what has lost its right. Imports: security, wire, names, metadata, views. Source: Pulsar's
ServerCnx and PulsarAuthorizationProvider, whose words clients and their tests know. Invariants:
every command that a broker answers is in the table, or refused; what acts on a producer, consumer
or watcher of the connection needs no further right, since these are closed when theirs ends; before
a refusal the records are read from the store itself, so that a grant holds once it was answered,
wherever it was made; SEND, ACK and FLOW come by none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from magnetar.clock import Clock
from magnetar.errors import NotAuthorized, StoreError
from magnetar.hosting.audit import denied
from magnetar.hosting.background import Surprises
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.shared_task import outcome
from magnetar.hosting.views import StoreView
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import COORDINATOR_TOPIC, NamespaceName, TopicName
from magnetar.security.authorization import Grants, Place, Principal, Right, Rules, allowed
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.hosting.security.peers import Peer, Peers

log = structlog.get_logger(__name__)
Type = api.BaseCommand.Type

READ_AGAIN_S = 0.2
"""Looks at one namespace in the store begin this far apart at least, and a refusal waits for the
next one: a refused client may ask often."""
LOOKS_HELD_MAX = 1000
SOMEWHERE_HELD_S = 1.0
"""How long it is held whether a principal may use any topic at all."""
NAMESPACES_PER_TURN = 200
"""Namespaces looked at in one turn of the loop."""


class Need(NamedTuple):
    """The right that a command needs on the topic or namespace that it names, and the words of
    its refusal."""

    right: Right
    refusal: str


_LOOKUP = Need(Right.USE, "Client is not authorized to Lookup")
NEEDS: Mapping[int, Need] = {
    Type.LOOKUP: _LOOKUP,
    Type.PARTITIONED_METADATA: Need(
        Right.USE, "Client is not authorized to Get Partition Metadata"
    ),
    Type.GET_TOPICS_OF_NAMESPACE: Need(
        Right.USE, "Client is not authorized to GetTopicsOfNamespace"
    ),
    Type.WATCH_TOPIC_LIST: Need(Right.USE, "Client is not authorized to WatchTopicList"),
    Type.GET_SCHEMA: Need(Right.USE, "Client is not authorized to Get Schema"),
    Type.GET_OR_CREATE_SCHEMA: Need(Right.USE, "Client is not authorized to Create Schema"),
    Type.PRODUCER: Need(Right.PRODUCE, "Client is not authorized to Produce"),
    Type.SUBSCRIBE: Need(Right.CONSUME, "Client is not authorized to subscribe"),
    Type.END_TXN_ON_PARTITION: Need(
        Right.SUPER,
        "Client is not authorized to end a transaction on a topic: its coordinator does",
    ),
    Type.END_TXN_ON_SUBSCRIPTION: Need(
        Right.SUPER,
        "Client is not authorized to end a transaction on a subscription: its coordinator does",
    ),
}
OF_THE_CONNECTION = frozenset(
    {
        Type.WATCH_TOPIC_LIST_CLOSE,
        Type.CLOSE_PRODUCER,
        Type.CLOSE_CONSUMER,
        Type.UNSUBSCRIBE,
        Type.GET_LAST_MESSAGE_ID,
        Type.GET_LAST_WATERMARK,
        Type.SEEK,
    }
)
"""They name a producer, consumer or watcher that this connection has, or has no more."""


class Guard:
    """Decides for one incarnation of a broker."""

    def __init__(
        self,
        authenticator: Authenticator,
        store: MetadataStore,
        clock: Clock,
        namespaces: StoreView[NamespaceRecord],
        table: Peers,
        surprises: Surprises,
    ) -> None:
        """`surprises`: where errors are counted that come up while the records are followed."""
        self._authenticator, self._store, self._clock = authenticator, store, clock
        self._namespaces, self._table = namespaces, table
        self._tenants = StoreView(store, clock, keys.TENANTS, TenantRecord, surprises)
        self._somewhere: dict[tuple[str, ...], tuple[float, bool]] = {}
        self._grants: dict[str, Grants] = {}
        self._looked_at: dict[str, float] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self.version = 0
        """Grows with every change that may have withdrawn a right."""

    async def start(self) -> None:
        """Follow the records that decisions depend on. Raises StoreError."""
        await self._tenants.start()
        self._namespaces.listen(self._namespaces_changed)
        self._tenants.listen(self._tenants_changed)
        self._authenticator.source.listen(self._everything_changed)

    async def stop(self) -> None:
        for look in self._looks.values():
            look.cancel()
        self._authenticator.source.forget(self._everything_changed)
        await self._tenants.stop()

    # --- decisions --------------------------------------------------------------------------------

    async def check(self, connection: Peer, kind: int, body: Any) -> None:
        """Raises NotAuthorized if the connection's peer may not have this command answered."""
        if kind in OF_THE_CONNECTION:
            return
        principal = self._speaker(connection, body)
        need = NEEDS.get(kind)
        if need is None or need.right is Right.SUPER:
            refusal = need.refusal if need is not None else "Client is not authorized to do this"
            await self.require(principal, Right.SUPER, "", Place(), refusal)
            return
        if kind in (Type.GET_TOPICS_OF_NAMESPACE, Type.WATCH_TOPIC_LIST):
            await self.require(
                principal,
                need.right,
                str(NamespaceName.parse(body.namespace)),
                Place(),
                need.refusal,
            )
            return
        topic = TopicName.parse(body.topic)
        if need.right is Right.USE and topic.base == COORDINATOR_TOPIC:
            return  # how any client finds the transaction coordinators
        namespace = str(topic.namespace_name)
        subscription = body.subscription if kind == Type.SUBSCRIBE else ""
        await self.require(
            principal, need.right, namespace, Place(topic, subscription), need.refusal
        )
        if kind == Type.PRODUCER and body.initial_subscription_name:
            place = Place(topic, body.initial_subscription_name)
            await self.require(
                principal, Right.CONSUME, namespace, place, NEEDS[Type.SUBSCRIBE].refusal
            )

    def _speaker(self, connection: Peer, body: Any) -> Principal:
        """Who asks: a proxy says with each look-up for whom. Raises NotAuthorized."""
        principal = connection.principal
        assert principal is not None, "only connections that were let in get here"
        original = getattr(body, "original_principal", "")
        if not original or original == principal.original:
            return principal
        return self._authenticator.behind_proxy(
            replace(principal, original="", internal=False), original
        )

    async def require(
        self, principal: Principal, right: Right, namespace: str, place: Place, refusal: str
    ) -> None:
        """Raises NotAuthorized with the text `refusal`. `namespace` may be a tenant alone, or ""
        for the cluster."""
        if self._allowed(principal, right, namespace, place):
            return
        if namespace and right is not Right.SUPER:
            await self._read_again(namespace)
            if self._allowed(principal, right, namespace, place):
                return
        denied(principal, right, namespace, place)
        raise NotAuthorized(refusal)

    async def require_anywhere(self, principal: Principal, refusal: str) -> None:
        """Raises NotAuthorized for a principal that may use no topic of any namespace. An answer
        is held for `SOMEWHERE_HELD_S`."""
        now = self._clock.monotonic()
        until, found = self._somewhere.get(principal.roles, (0.0, False))
        if now >= until:
            found = await self._uses_something(principal)
            while len(self._somewhere) >= LOOKS_HELD_MAX:
                del self._somewhere[next(iter(self._somewhere))]
            self._somewhere[principal.roles] = now + SOMEWHERE_HELD_S, found
        if not found:
            denied(principal, Right.USE, "", Place())
            raise NotAuthorized(refusal)

    async def _uses_something(self, principal: Principal) -> bool:
        if self._allowed(principal, Right.SUPER, "", Place()):
            return True
        for number, tenant in enumerate(list(self._tenants.items)):
            if number % NAMESPACES_PER_TURN == NAMESPACES_PER_TURN - 1:
                await asyncio.sleep(0)
            if self._allowed(principal, Right.ADMINISTER, tenant, Place()):
                return True
        for number, namespace in enumerate(list(self._namespaces.items)):
            if number % NAMESPACES_PER_TURN == NAMESPACES_PER_TURN - 1:
                await asyncio.sleep(0)
            if all(map(self._grants_of(namespace).names, principal.roles)):
                return True
        return False

    def _allowed(self, principal: Principal, right: Right, namespace: str, place: Place) -> bool:
        document = self._authenticator.source.current.document
        if principal.internal or not document.authorization:
            return True
        tenant = self._tenants.get(namespace.partition("/")[0])
        administrators = frozenset(tenant.record.admin_roles) if tenant is not None else frozenset()
        return allowed(
            principal,
            right,
            Rules(document.super_user_roles, administrators, self._grants_of(namespace)),
            place,
        )

    def _grants_of(self, namespace: str) -> Grants:
        known = self._grants.get(namespace)
        if known is None:
            viewed = self._namespaces.get(namespace)
            if viewed is None:
                return Grants()
            known = self._grants[namespace] = Grants.of(viewed.record.policies)
        return known

    async def _read_again(self, namespace: str) -> None:
        """Wait for a look at the store that begins from now on, shared with every caller that waits
        for one."""
        look = self._looks.get(namespace)
        if look is None:
            look = self._looks[namespace] = asyncio.create_task(
                self._look(namespace), name=f"look at {namespace}"
            )
        await outcome(look)

    async def _look(self, namespace: str) -> None:
        now = self._clock.monotonic()
        due = self._looked_at.get(namespace, now) + READ_AGAIN_S
        if namespace in self._looked_at and now < due:
            await asyncio.sleep(due - now)
        del self._looks[namespace]  # later callers need a later look
        self._looked_at[namespace] = self._clock.monotonic()
        while len(self._looked_at) > LOOKS_HELD_MAX:
            del self._looked_at[next(iter(self._looked_at))]
        tenant = namespace.partition("/")[0]
        try:
            if (item := await self._store.get(keys.tenant(tenant))) is not None:
                self._tenants.observe(tenant, item.value, item.mod_revision)
            if (
                "/" in namespace
                and (item := await self._store.get(keys.namespace(NamespaceName.parse(namespace))))
                is not None
            ):
                self._namespaces.observe(namespace, item.value, item.mod_revision)
        except StoreError as error:
            log.warning("authorization.by_the_last_view", namespace=namespace, error=str(error))

    # --- changes ----------------------------------------------------------------------------------

    def _namespaces_changed(self, names: list[str]) -> None:
        changed = set()
        for name in names:
            before = self._grants.pop(name, None)
            if before is not None and before != self._grants_of(name):
                changed.add(name)
        if changed:
            self._close_what_lost_its_right(lambda namespace: str(namespace) in changed)

    def _tenants_changed(self, names: list[str]) -> None:
        changed = set(names)
        self._close_what_lost_its_right(lambda namespace: namespace.tenant in changed)

    def _everything_changed(self) -> None:
        self._close_what_lost_its_right(lambda _namespace: True)

    def _close_what_lost_its_right(self, concerned: Callable[[NamespaceName], bool]) -> None:
        self.version += 1
        for connection in self._table.open():
            self.look_at(connection, concerned)

    def look_at(
        self,
        connection: Peer,
        concerned: Callable[[NamespaceName], bool] = lambda _namespace: True,
    ) -> None:
        """Close what is no longer permitted: producers, consumers and watchers. Their clients
        come back for them and are refused."""
        principal = connection.principal
        if principal is None:
            return
        for producer in list(connection.sessions.producers.values()):
            topic = producer.topic_name
            if concerned(topic.namespace_name) and not self._may_go_on(
                principal, Right.PRODUCE, topic
            ):
                log.info("producer.lost_its_right", topic=str(topic), peer=connection.peer)
                producer.close_by_broker(None)
        for consumer in list(connection.sessions.consumers.values()):
            topic, name = consumer.topic_name, consumer.subscription_name
            if concerned(topic.namespace_name) and not self._may_go_on(
                principal, Right.CONSUME, topic, name
            ):
                log.info("consumer.lost_its_right", topic=str(topic), peer=connection.peer)
                consumer.close_by_broker(None)
        for watcher_id, watcher in list(connection.sessions.watchers.items()):
            namespace = watcher.namespace
            if concerned(namespace) and not self._allowed(
                principal, Right.USE, str(namespace), Place()
            ):
                watcher.stop()
                del connection.sessions.watchers[watcher_id]

    def _may_go_on(
        self, principal: Principal, right: Right, topic: TopicName, subscription: str = ""
    ) -> bool:
        return self._allowed(
            principal, right, str(topic.namespace_name), Place(topic, subscription)
        )
