"""Load analytics on Spark, over a history whose truth is known."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from magnetar.balance.advice import CPU, DOCUMENT, LoadAdvice
from magnetar.balance.load_history import LoadSample
from magnetar.balance.settings import BALANCE
from magnetar.clock import SystemClock
from magnetar.errors import ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import DocumentsRecord
from magnetar.storage import names
from magnetar.storage.volumes.posix import PosixVolume
from magnetar_jobs.analysis.measured import Measured
from magnetar_jobs.driver import Done
from magnetar_jobs.load_analytics import Options, Place, publish, run_once
from magnetar_jobs.load_measuring import measure
from magnetar_jobs.load_samples import chosen, read_samples
from magnetar_jobs.progress import Publisher, RunProgress
from magnetar_jobs.reporting import Report
from tests.support.load_traces import COLD, COOL, DAILY, HOT, HOT_TOPICS, OTHER, PLAIN, Trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

CLOCK = SystemClock()
STEP_S = 1800


def measured(spark: SparkSession, directory: Path, objects: list[str]) -> Measured:
    found = measure(read_samples(spark, directory, objects, BALANCE, 2), STEP_S, BALANCE)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Three days that end now, with a gap of two hours."""
    return Trace(CLOCK.wall_ms() // 300_000 * 300_000, left_out=frozenset(range(100, 124)))


def test_windows_have_the_means_of_their_samples(
    spark: SparkSession, tmp_path: Path, trace: Trace
) -> None:
    """Computed again here, from the samples, without Spark; twice written samples count once, a
    damaged object and line cost themselves."""
    objects = trace.write(tmp_path)
    whole = (tmp_path / objects[0]).read_bytes()
    for name, data in (
        (objects[0].replace("-b0", "-copy"), whole),
        (objects[1].replace("-b0", "-torn"), whole[:50]),
        (objects[2].replace("-b0", "-line"), gzip.compress(b"nonsense\n")),
    ):
        (tmp_path / name).write_bytes(data)
        objects.append(name)
    found = measured(spark, tmp_path, objects)
    times = trace.times()
    assert (found.samples, found.damaged) == (2 * len(times), 2)
    assert (found.from_ms, found.to_ms) == (times[0], times[-1])
    begin = times[0] // 1000 // STEP_S * STEP_S
    windows: dict[int, list[LoadSample]] = {}
    for at in times:
        middle = at / 1000 - 150
        windows.setdefault(int((middle - begin) // STEP_S), []).append(trace.sample("b0", at))
    series = next(one for one in found.brokers if one.name == "b0").cpu
    for window, samples in windows.items():
        if window >= 0:
            expected = sum(sample.cpu for sample in samples) / len(samples)
            assert series.values[window] == pytest.approx(expected)
    gaps = int(np.isnan(series.values[1:-1]).sum())
    assert gaps in (3, 4), "two hours are three or four windows without a sample"
    total = found.totals[CPU].values
    known = np.isfinite(total)
    assert total[known].max() <= 2.5


def test_bundles_are_distinguished(spark: SparkSession, tmp_path: Path, trace: Trace) -> None:
    found = measured(spark, tmp_path, trace.write(tmp_path))
    by_name = {bundle.name: bundle for bundle in found.bundles}
    assert set(by_name) == {HOT, DAILY, COLD, COOL, PLAIN, OTHER}
    kinds = {name: bundle.load.kind for name, bundle in by_name.items()}
    assert (kinds[HOT], kinds[DAILY], kinds[PLAIN]) == ("growing", "daily", "steady")
    hot = by_name[HOT]
    assert hot.broker == "b0"
    assert hot.load.growth == pytest.approx(0.1 / 1.15, rel=0.1)
    assert hot.now > hot.load.mean
    assert [topic.name for topic in hot.topics] == [topic.name for topic in HOT_TOPICS]
    assert hot.topics[0].load == pytest.approx(2000, rel=0.02)
    assert by_name[DAILY].peak.messages == pytest.approx(1600, rel=0.02)
    assert by_name[DAILY].usual.messages == pytest.approx(800, rel=0.05)


def run(
    spark: SparkSession, store: MemoryStore, directory: Path, run_id: str = "once"
) -> tuple[Done, PosixVolume]:
    volume = PosixVolume(directory)
    place = Place(store, volume, directory, CLOCK, "team/nightly", run_id)
    publisher = Publisher(RunProgress(CLOCK), store, "progress", Report(False))
    return asyncio.run(run_once(spark, place, Options(days=4), 2, publisher)), volume


def document(store: MemoryStore) -> Any:
    item = asyncio.run(store.get(keys.documents(DOCUMENT)))
    assert item is not None
    return DocumentsRecord.decode(item.value).documents[DOCUMENT]


def test_a_run_publishes_advice_and_a_report(
    spark: SparkSession, tmp_path: Path, trace: Trace
) -> None:
    """The hot bundle is cut around its hot topic, the cold ones are to be merged, the forecast
    reaches a day ahead; the page needs nothing from elsewhere."""
    trace.write(tmp_path)
    store = MemoryStore(CLOCK)
    done, volume = run(spark, store, tmp_path)
    advice = LoadAdvice.read(document(store), CLOCK.wall_ms())
    assert (advice.job, advice.run) == ("team/nightly", "once")
    [split] = [found for found in advice.splits if found.bundle == HOT]
    ends = [0, *split.boundaries, 0x20000000]
    inside = [low <= HOT_TOPICS[0].position < high for low, high in itertools.pairwise(ends)]
    assert inside.count(True) == 1
    alone = inside.index(True)
    assert ends[alone + 1] - ends[alone] < 0x4000000
    assert [merge.bundles for merge in advice.merges] == [(COLD, COOL)]
    assert [topic.topic for topic in advice.hot_topics][:1] == [HOT_TOPICS[0].name]
    assert {found.measure for found in advice.forecasts} == {"cpu", "messages", "bytes"}
    cpu = next(found for found in advice.forecasts if found.measure == CPU)
    assert len(cpu.values[0]) == 144
    assert (done.result["samples"], done.result["damaged"]) == (2 * len(trace.times()), 0)
    [name] = asyncio.run(volume.list(names.LOAD_REPORTS))
    place = names.load_report_place(name)
    assert place is not None
    assert (place.job, place.identifier) == ("team/nightly", done.result["report"])
    page = (tmp_path / name).read_text()
    assert place.size == len(page.encode())
    assert page.count("<svg") >= 4
    assert HOT_TOPICS[0].name in page
    assert not re.search(r"(src|href)=|@import|url\(|<script", page)


def test_an_older_run_does_not_replace_younger_advice(
    spark: SparkSession, tmp_path: Path, trace: Trace
) -> None:
    trace.write(tmp_path)
    store = MemoryStore(CLOCK)
    run(spark, store, tmp_path)
    younger = LoadAdvice.read(document(store), CLOCK.wall_ms())
    older = LoadAdvice(younger.made_ms - 1, younger.valid_until_ms - 1)
    assert not asyncio.run(publish(store, older))
    assert document(store) == json.loads(younger.encode())
    broken = DocumentsRecord({DOCUMENT: {"made_ms": "tomorrow"}}).encode()
    asyncio.run(store.put(keys.documents(DOCUMENT), broken))
    assert asyncio.run(publish(store, older)), "what is broken is replaced"


def test_without_a_history_a_run_says_why(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ServiceNotReady, match="loadHistorySampleSeconds"):
        run(spark, MemoryStore(CLOCK), tmp_path)


def test_objects_are_chosen_by_their_times() -> None:
    listed = [
        names.load_history(names.LoadHistoryPlace(at, at + 9, 5, "b")) for at in (0, 10, 20, 30)
    ]
    assert chosen([*listed, "load-history/other"], 15, 25) == listed[1:3]
