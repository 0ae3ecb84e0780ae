"""What brokers write down about their load.

Owns: `LoadSample`, the load of one broker over a short time, and lines of samples. Imports: errors,
balance.load, balance.top_k, metadata.codec. Pure. Invariants: a sample has a bounded size, whatever
was measured; a line that is damaged, too long or of a newer version is refused, never guessed at;
no rate that is read is negative, infinite or not a number.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from magnetar.balance.load import Rates, TopicLoad, bounded
from magnetar.errors import StoreError
from magnetar.metadata.codec import Record

BUNDLES_MAX = 1000
"""Of one sample: those with most load."""
TOPICS_MAX = 32
"""Of one bundle: as many as cut points of its load need."""
LINE_BYTES_MAX = 16 << 20
SECONDS_MAX = 86_400.0
NAME_BYTES_MAX = 4096
NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class BundleSample:
    """One bundle. `hot` are topics of it while it is among the hottest of its broker, hottest
    first."""

    name: str
    rates: Rates
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    hot: tuple[TopicLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadSample(Record):
    """The load of `broker` in the `seconds` up to `at_ms`. CPU is in cores, memory resident in
    bytes; of each the limit, 0 = unknown. `left_out` bundles have less load than those named."""

    at_ms: int
    seconds: float
    broker: str
    cpu: float = 0.0
    cpu_limit: float = 0.0
    memory: float = 0.0
    memory_limit: float = 0.0
    rates: Rates = NO_RATES
    bundles: tuple[BundleSample, ...] = ()
    left_out: int = 0

    @staticmethod
    def read(line: bytes) -> LoadSample:
        """Decode a line. Raises StoreError for one that no broker can have written."""
        if len(line) > LINE_BYTES_MAX:
            raise StoreError(f"load sample of {len(line)} bytes; at most {LINE_BYTES_MAX}")
        sample = LoadSample.decode(line)
        sizes = [len(sample.bundles), *(len(bundle.hot) for bundle in sample.bundles)]
        if len(sample.bundles) > BUNDLES_MAX or max(sizes[1:], default=0) > TOPICS_MAX:
            raise StoreError(f"load sample of {sample.broker}: it names too many bundles or topics")
        numbers = (sample.cpu, sample.cpu_limit, sample.memory, sample.memory_limit)
        if not 0 < sample.seconds <= SECONDS_MAX or any(bounded(x) != x for x in numbers):
            raise StoreError(f"load sample of {sample.broker}: a figure is out of range")
        names = (sample.broker, *(bundle.name for bundle in sample.bundles))
        if sample.at_ms < 0 or max(map(len, names)) > NAME_BYTES_MAX:
            raise StoreError(f"load sample of {sample.broker[:80]}: its time or a name is unusable")
        return sample


def most_loaded(bundles: Iterable[BundleSample]) -> tuple[BundleSample, ...]:
    """The bundles that a sample names, most load first; idle ones come last, by name."""
    return tuple(
        heapq.nsmallest(BUNDLES_MAX, bundles, key=lambda found: (-found.rates.size, found.name))
    )


def hottest(topics: Iterable[TopicLoad]) -> tuple[TopicLoad, ...]:
    """The topics that a sample names of one bundle."""
    busy = (topic for topic in topics if topic.rates.size)
    return tuple(heapq.nsmallest(TOPICS_MAX, busy, key=lambda one: (-one.rates.size, one.name)))


def read_lines(data: bytes) -> Iterator[LoadSample | StoreError]:
    """The samples of an object in order, and for each line that is none the error."""
    for line in data.splitlines():
        try:
            yield LoadSample.read(line)
        except StoreError as error:
            yield error
