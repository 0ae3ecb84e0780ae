"""A broker whose namespace has policies.

Owns: changing the policies of the default namespace as an administrator does, and running a script
against a broker and one peer under them. Imports: the brokers of the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Put
from magnetar.names import NamespaceName
from tests.support.brokers import (
    Peer,
    connected_peer,
)

NAMESPACE = NamespaceName("public", "default")
DEDUPLICATED = {"deduplicationEnabled": True}
Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]


def play(
    directory: Path, script: Script, policies: dict[str, Any] | None = None, **settings: Any
) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, in a namespace with `policies`, and
    one peer."""

    async def main() -> None:
        async with connected_peer(directory, **settings) as (broker, peer):
            await set_policies(broker, policies or {})
            await script(broker, peer)

    asyncio.run(main())


async def set_policies(broker: Broker, policies: dict[str, Any]) -> None:
    """Change the namespace as an administrator does, and wait until this broker has seen it."""
    store, key = broker.context.store, keys.namespace(NAMESPACE)
    item = await store.get(key)
    assert item is not None
    record = replace(NamespaceRecord.decode(item.value), policies=policies)
    outcome = await store.transact((), (Put(key, record.encode()),))
    assert outcome.succeeded
    while (
        viewed := broker.views.namespaces.get(str(NAMESPACE))
    ) is None or viewed.record.policies != policies:
        await asyncio.sleep(0.001)
