"""A broker that asks its clients who they are, for tests.

Owns: a security document with its keys in a directory, tokens by its key, and peers that show them.
Imports: the brokers of the tests, security.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.security.source import SecuritySource
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.names import NamespaceName, initial_boundaries
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import make
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command
from tests.support.brokers import CLOCK, HOST, Peer, running_broker

KEY = SecretKey(b"k" * 32)
DOCUMENT = """
authentication: {token: {secretKeyFile: DIRECTORY/key}}
authorization: {superUserRoles: [admin], proxyRoles: [proxy]}
"""
NAMESPACE = NamespaceName("public", "default")


def token(role: str, seconds: float | None = None, key: SecretKey = KEY) -> str:
    """A token for `role`, good for so long (None = permanently)."""
    return make(
        key,
        "HS256",
        {"sub": role, **({"exp": CLOCK.wall_ms() / 1000 + seconds} if seconds is not None else {})},
    )


def authenticator(directory: Path, document: str = DOCUMENT) -> Authenticator:
    """What answers by `document`, in which DIRECTORY stands for `directory`."""
    directory.mkdir(exist_ok=True)
    (directory / "key").write_bytes(KEY.secret)
    (directory / "security.yaml").write_text(document.replace("DIRECTORY", str(directory)))
    return Authenticator(SecuritySource(directory / "security.yaml", CLOCK, alone=True), CLOCK)


@asynccontextmanager
async def secured_broker(
    directory: Path, document: str = DOCUMENT, **settings: Any
) -> AsyncIterator[tuple[Broker, Authenticator]]:
    """A broker, and what it asks."""
    found = authenticator(directory / "security", document)
    async with running_broker(directory, security=found, **settings) as broker:
        yield broker, found


@asynccontextmanager
async def peer_of(broker: Broker) -> AsyncIterator[Peer]:
    """A connection that has not said anything yet."""
    peer = Peer(*await asyncio.open_connection(HOST, int(broker.service_url.rpartition(":")[2])))
    try:
        yield peer
    finally:
        await peer.close()


async def show(
    peer: Peer,
    data: str | bytes,
    method: str = "token",
    *,
    refreshes: bool = True,
    original: str = "",
) -> api.BaseCommand:
    """CONNECT with credentials; the answer."""
    body = api.CommandConnect(client_version="test", protocol_version=21, auth_method_name=method)
    body.auth_data = data.encode() if isinstance(data, str) else data
    body.feature_flags.supports_auth_refresh = refreshes
    if original:
        body.original_principal = original
    peer.write(encode_command(api.BaseCommand(type=api.BaseCommand.CONNECT, connect=body)))
    return await peer.answer()


async def grant(broker: Broker, namespace_auth: dict[str, list[str]], **more: Any) -> None:
    """Set the permissions of public/default in the store, as REST does."""
    store = broker.context.store
    item = await store.get(keys.namespace(NAMESPACE))
    assert item is not None
    record = NamespaceRecord.decode(item.value)
    policies = {**record.policies, "auth_policies": {"namespace_auth": namespace_auth, **more}}
    await store.put(
        keys.namespace(NAMESPACE), NamespaceRecord(record.boundaries, policies).encode()
    )


async def permit(store: MemoryStore, *roles: str) -> None:
    """Let roles publish to public/default, where no broker has made it yet."""
    policies = {"auth_policies": {"namespace_auth": {role: ["produce"] for role in roles}}}
    await store.put(
        keys.namespace(NAMESPACE), NamespaceRecord(initial_boundaries(1), policies).encode()
    )


async def appoint(broker: Broker, *roles: str) -> None:
    """Make roles administrators of the tenant public."""
    await broker.context.store.put(
        keys.tenant("public"), TenantRecord(tuple(roles), ("standalone",)).encode()
    )
