"""Finding entries by their publish time.

Owns: the bisection over the publish times inside entries. Imports: topics, wire. Invariant: entries
of transactions do not decide, since a commit gives them a place behind younger messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from magnetar.clock import elapsed_ms
from magnetar.wire.entries import readable_entry

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedTopic


async def first_published_at(
    topic: ServedTopic, publish_ms: int, low: int = 0, high: int | None = None
) -> int:
    """Ordinal behind the last entry published (by its client's clock) before `publish_ms`; the
    first one if there is none.

    Publish times are taken to rise, as Pulsar does: a bisection that reads some twenty entries, of
    those from `low` up to `high` (the end). Those of transactions do not: they were sent before
    their commit gave them their place. So only plain entries that can be read decide, and between
    two of these what is known to have come before `publish_ms`: what was published since is behind
    the answer, and of transactions perhaps more (by this broker's wall clock: a wrong one moves the
    answer between these two). Raises StorageError.
    """
    ledgers = topic.core.ledgers
    high = behind = ledgers.end if high is None else high
    if not topic.name.persistent:
        return ledgers.end
    while (low := max(low, ledgers.first)) < high:  # the topic may be trimmed in between
        middle = (low + high) // 2
        probed = await _first_dated(topic, middle, high)
        if probed is not None and probed.published_ms < publish_ms:
            low = probed.ordinal + 1
        else:
            high, behind = middle, behind if probed is None else probed.ordinal
    if low < behind:  # none of these says when it was published
        clock = topic.context.clock
        topic.core.age(elapsed_ms(clock))
        since_ms = elapsed_ms(clock) - (clock.wall_ms() - publish_ms)
        low = max(low, min(behind, topic.core.ages.older_than(since_ms - 1)))
    return low


class _Dated(NamedTuple):
    """An entry that says when it was published."""

    ordinal: int
    published_ms: int


async def _first_dated(topic: ServedTopic, ordinal: int, end: int) -> _Dated | None:
    """The first entry of [ordinal, end) that no transaction has published and whose metadata can
    be read."""
    found = _first_plain(topic, ordinal, end)
    while found is not None:
        published_ms = await publish_ms_of(topic, found)
        if published_ms is not None:
            return _Dated(found, published_ms)
        found = _first_plain(topic, max(found + 1, topic.core.ledgers.first), end)
    return None


def _first_plain(topic: ServedTopic, ordinal: int, end: int) -> int | None:
    """The first entry of [ordinal, end) that no transaction has published."""
    ledgers = topic.core.ledgers
    if topic.transactions is None:
        return ordinal if ordinal < end else None
    while ordinal < end:
        committed = topic.transactions.buffer.links.unbroken(
            ledgers.position(ordinal), end - ordinal
        )
        if not committed:
            return ordinal
        ordinal += committed
    return None


async def publish_ms_of(topic: ServedTopic, ordinal: int) -> int | None:
    """When an entry was published; None if its metadata cannot be read."""
    entry = readable_entry(await topic.reader.entry(ordinal))
    return entry.metadata.publish_time if entry is not None else None
