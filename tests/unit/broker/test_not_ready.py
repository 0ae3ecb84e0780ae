"""What a broker says while it is not ready: the C++ client closes its whole connection at code 6
unless certain words are in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import magnetar
from magnetar.errors import WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from tests.support.brokers import CLOCK, TOPIC, open_peer, running_broker

PACKAGE = Path(magnetar.__file__).parent
WORDS = ("is being unloaded", "Failed to acquire ownership")
CLIENTS_HEAR = (
    "broker/commands/*.py",
    "broker/topics/*.py",
    "coordinator/discovery.py",
    "broker/bundles/ownership.py",
    "broker/bundles/assigning.py",
    "broker/bundles/balancing/placing.py",
    "broker/bundles/bundle.py",
    "broker/bundles/releasing.py",
)
"""Modules whose refusals reach clients that look up, create producers or subscribe."""
COORDINATORS_HEAR = "broker/commands/transaction_ends.py"


def texts() -> Iterator[tuple[str, str]]:
    """Every text of a ServiceNotReady that clients may hear: where it is, and its constant
    parts."""
    for path in sorted(path for pattern in CLIENTS_HEAR for path in PACKAGE.glob(pattern)):
        if path == PACKAGE / COORDINATORS_HEAR:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "ServiceNotReady"
            ):
                constants = (
                    part
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
                yield (
                    f"{path.relative_to(PACKAGE)}:{node.lineno}",
                    "".join(str(part.value) for part in constants),
                )


def test_every_refusal_on_the_way_to_a_topic_keeps_a_cpp_clients_connection() -> None:
    found = dict(texts())
    assert len(found) > 20
    assert [
        where for where, text in found.items() if not any(words in text for words in WORDS)
    ] == []


async def test_an_owner_without_an_address_of_the_connections_kind_is_looked_up_again(
    tmp_path: Path,
) -> None:
    """It is about to be restarted with such a port, or without one."""

    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        viewed = broker.views.incarnations.items[broker.incarnation]
        secure = replace(viewed.record, service_url="", service_url_tls="pulsar+ssl://h:6651")
        broker.views.incarnations.observe(
            broker.incarnation, secure.encode(), viewed.mod_revision + (1 << 30)
        )
        refused = (await peer.ask("lookup", topic=TOPIC)).lookup_response
        assert int(refused.error) == WireCode.SERVICE_NOT_READY
        assert "has no address without TLS yet" in refused.message
        assert any(words in refused.message for words in WORDS)
        assert await store.get(keys.incarnation(broker.incarnation)) is not None
    await store.close()
