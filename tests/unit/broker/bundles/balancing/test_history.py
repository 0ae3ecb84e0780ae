"""Samples of load are kept: what they say, when they are written, what a broken volume costs."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any, cast

from magnetar.balance.load import LoadReport, Rates
from magnetar.balance.load_history import LoadSample, read_lines
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing import history
from magnetar.broker.bundles.balancing.history import LoadHistory
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import Traffic
from magnetar.hosting.computing import inline
from magnetar.storage.names import LoadHistoryPlace, load_history, load_history_place
from tests.support.sampled_load import NAME, OTHER, TOPICS, Stage
from tests.support.shelf import Shelf


class Kept:
    """A sampler whose reports go into a history, and the volume where it is."""

    def __init__(self, **settings: Any) -> None:
        self.stage, self.shelf = Stage(), Shelf()
        self.settings = Settings(**settings)
        self.space = SimpleNamespace(short=None)
        context = SimpleNamespace(
            clock=self.stage.clock,
            metrics=self.stage.metrics,
            broker="here",
            compute=inline,
            volume=self.shelf,
            log=SimpleNamespace(space=self.space),
        )
        self.history = LoadHistory(
            cast(BrokerContext, context), cast(Any, self.stage.served), self.stage.sampler
        )

    def report(self, seconds: float = 10.0) -> LoadReport:
        report = self.stage.sample(seconds, top_max=10)
        asyncio.run(self.history.observe(report, self.settings))
        return report

    def samples(self) -> list[LoadSample]:
        found = []
        for name in sorted(self.shelf.stored):
            place = load_history_place(name)
            assert place is not None
            assert (place.broker, place.size) == ("here", len(self.shelf.stored[name]))
            for sample in read_lines(gzip.decompress(self.shelf.stored[name])):
                assert isinstance(sample, LoadSample)
                found.append(sample)
        return found

    def counted(self, outcome: str) -> float:
        metrics = self.stage.metrics.balance.samples
        return float(metrics.labels(outcome)._value.get())


def test_a_sample_a_minute_has_the_rates_of_the_minute() -> None:
    """Of a bundle those of the whole minute, however it was sampled; one object for five."""
    kept = Kept()
    busy, idle = kept.stage.serve(NAME, *TOPICS), kept.stage.serve(OTHER)
    for at in range(36):
        busy.publish(TOPICS[0], 160)
        if at % 6 == 5:
            busy.publish(TOPICS[1], 240)
        kept.stage.machine.seconds += 5.0
        kept.report()
    samples = kept.samples()
    assert len(kept.shelf.stored) == 1, "the sixth waits"
    assert len(samples) == 5
    assert [sample.seconds for sample in samples] == [60.0] * 5
    second = samples[1]
    assert (second.cpu, second.cpu_limit, second.memory_limit) == (0.5, 2.0, 1000.0)
    first, other = second.bundles
    assert (first.name, first.rates, first.topics) == (NAME, Rates(20.0, 0.0, 2000.0, 0.0), 3)
    assert [(topic.name, topic.rates.messages_in) for topic in first.hot] == [
        (TOPICS[1], 24.0),
        (TOPICS[0], 16.0),
    ], "topics: of the last ten seconds"
    assert (other.name, other.rates) == (OTHER, Rates())
    assert second.rates == Rates(20.0, 0.0, 2000.0, 0.0)
    assert kept.counted("written") == 5
    assert idle.traffic.counts() == (0, 0, 0, 0)


def test_a_bundle_that_has_just_come_is_in_the_next_sample() -> None:
    kept = Kept(history_write_s=60.0)
    kept.stage.serve(NAME, *TOPICS).traffic.messages_in = 10**9
    for at in range(18):
        if at == 9:
            kept.stage.served[NAME].traffic = Traffic(7)
        kept.report()
    assert [len(sample.bundles) for sample in kept.samples()] == [0, 0, 1]


def test_a_broken_or_full_volume_costs_samples_only(monkeypatch: Any) -> None:
    """They wait, bounded, and are written once it works."""
    kept = Kept(history_write_s=60.0)
    kept.stage.serve(NAME, *TOPICS)
    kept.shelf.broken = True
    for _ in range(12):
        kept.report()
    assert not kept.shelf.stored
    kept.shelf.broken, kept.space.short = False, "full"
    kept.report(60)
    assert not kept.shelf.stored
    kept.space.short = None
    kept.report(60)
    assert len(kept.samples()) == 4
    assert len(kept.shelf.stored) == 1
    monkeypatch.setattr(history, "UNSAVED_BYTES_MAX", 1000)
    kept.shelf.broken = True
    for _ in range(9):
        kept.report(60)
    assert kept.counted("dropped") > 5


def test_what_waits_is_written_by_a_planned_stop() -> None:
    """And a volume that never answers does not hold the stop up."""
    kept = Kept()
    kept.stage.serve(NAME, *TOPICS)
    kept.report(60)
    assert not kept.shelf.stored
    asyncio.run(kept.history.save_last())
    assert len(kept.samples()) == 1

    async def never(_name: str, _data: bytes) -> bool:
        await asyncio.sleep(3600)
        return True

    kept.report(60)
    kept.shelf.put_if_absent = never  # type: ignore[method-assign]
    asyncio.run(asyncio.wait_for(kept.history.save_last(), 120))


def test_zero_keeps_no_history() -> None:
    kept = Kept(history_sample_s=0.0)
    kept.stage.serve(NAME, *TOPICS)
    for _ in range(100):
        kept.report()
    assert not kept.shelf.stored


def test_names_say_what_they_hold() -> None:
    place = LoadHistoryPlace(1, 2, 3, "main-broker-0")
    assert load_history_place(load_history(place)) == place
    for other in ("load-history/x", "decisions/1", load_history(place) + "x", "load-history/1-2-3"):
        assert load_history_place(other) is None
