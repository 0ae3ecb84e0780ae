"""What happens while a bundle is recovered: surprises, which are damage of it and the end of no
broker, and changes of policies."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.bundles import acquiring, ownership
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.recovery import bundle_recovery as recovery
from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from tests.support.brokers import TOPIC, Type, open_peer, running_broker
from tests.support.polling import until
from tests.support.rest import NAMESPACE, rest_over


@pytest.mark.parametrize("step", ["recover_bundle", "OwnedBundle"])
async def test_a_surprise_in_a_recovery_is_damage_of_that_bundle_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """While its records are replayed, or its topics are put in service: the broker lives, serves
    others, tries again, and has it in the end."""
    module = acquiring if step == "recover_bundle" else ownership
    work: Any = vars(module)[step]
    broken: set[str] = set()
    met = asyncio.Event()

    def surprising(context: Any, name: Any, *arguments: Any) -> Any:
        if str(name) in broken:
            met.set()
            raise KeyError("a surprise")
        return work(context, name, *arguments)

    async def scenario() -> None:
        store = MemoryStore(SystemClock())
        async with (
            running_broker(tmp_path, store=store, name="first") as broker,
            open_peer(broker) as peer,
        ):
            await peer.lookup()
            await peer.produce()
            await peer.send(b"x")
            bundle = str(await broker.ownership.bundle_of(TopicName.parse(TOPIC)))
            broker.fail("crash")
        broken.add(bundle)
        monkeypatch.setattr(module, step, surprising)
        async with (
            running_broker(tmp_path, store=store, name="second", park_timeout_s=120.0) as broker,
            open_peer(broker) as peer,
        ):
            looking = asyncio.create_task(peer.lookup())
            await met.wait()
            await until(lambda: len(broker.context.damage) == 1)
            [found] = broker.context.damage.listed()
            assert (found["what"], found["bundle"]) == ("recovery", bundle)
            assert "a surprise" in found["error"]
            async with open_peer(broker) as other:
                names = [f"{TOPIC}{number}" for number in range(20)]
                elsewhere = [
                    name
                    for name in names
                    if str(await broker.ownership.bundle_of(TopicName.parse(name))) != bundle
                ]
                await other.lookup(elsewhere[0])
                await other.produce(topic=elsewhere[0])
            broken.clear()
            await looking
            assert (await peer.subscribe()).type == Type.SUCCESS
            topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
            assert topic.core.ledgers.end == 1
            assert broker.context.damage.listed() == []
        await store.close()

    await scenario()


async def test_policies_that_change_while_a_bundle_is_taken_hold_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topics stand ready before its record names the owner. Until then no change is reported
    to them."""
    commit: Any = BundleRecords.commit

    store = MemoryStore(SystemClock())
    async with (
        running_broker(tmp_path, store=store, name="first") as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        broker.fail("crash")
    async with (
        running_broker(tmp_path, store=store, name="second") as broker,
        rest_over(tmp_path, broker) as rest,
    ):
        changed: list[str] = []

        async def commit_later(records: Any, name: str, *arguments: Any) -> Any:
            if name == str(bundle) and not changed:
                changed.append(name)
                await rest("POST", f"{NAMESPACE}/maxProducersPerTopic", 3)
                await until(
                    lambda: broker.service.namespace_policies(bundle.namespace).max_producers == 3
                )
            return await commit(records, name, *arguments)

        monkeypatch.setattr(BundleRecords, "commit", commit_later)
        async with open_peer(broker) as peer:
            await peer.lookup()
        assert changed
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert topic.policies.max_producers == 3
    await store.close()


async def test_what_other_bundles_know_of_a_log_counts(tmp_path: Path) -> None:
    """Where any bundle's term began the log was durable: its open file is no shorter."""

    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        for _ in range(3):
            await peer.send(b"x")
        bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        names = (f"{TOPIC}-{number}" for number in itertools.count())
        await peer.lookup(
            next(name for name in names if not bundle.contains(TopicName.parse(name)))
        )
        starts = [
            span.start
            for viewed in broker.views.bundles.items.values()
            for span in viewed.record.chain
            if span.incarnation == broker.incarnation
        ]
        known = await recovery.noted_lengths(broker.context.store, broker.views, broker.incarnation)
        assert len(starts) == 2
        assert known == {0: max(start.offset for start in starts)}
