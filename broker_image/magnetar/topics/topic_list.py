"""Lists of the topics of a namespace.

Owns: their hash, which names a list hides, what a pattern is compared with, and `MatchingTopics`,
the set that a watcher of a pattern sees with its changes. Imports: names, patterns, crc32c. Pure.
Invariants: a hash depends on the set of names alone, and is Pulsar's (Guava's rendering of
CRC-32C); applying every change in order gives the same set and hash as listing again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from magnetar.names import NON_PERSISTENT, PERSISTENT, SYSTEM_NAMESPACE, TopicName
from magnetar.topics.patterns import TopicPattern

_SYSTEM_NAMES = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
        "transaction_coordinator_assign",
    }
)
_SMALL = frozenset(map(str, range(1000)))
_SYSTEM_PREFIXES = ("__transaction_log_",)
_SYSTEM_SUFFIXES = ("__transaction_pending_ack", "/_txnlog")


def topics_hash(names: Iterable[str]) -> str:
    """CRC-32C over the sorted names, joined by commas, as 8 hex digits of its bytes from the
    lowest to the highest."""
    return int(crc32c(",".join(sorted(names)).encode())).to_bytes(4, "little").hex()


def is_system_topic(name: TopicName) -> bool:
    """Whether lists leave the topic out: it belongs to the machinery of a broker."""
    local = name.base.local
    return (
        name.namespace_name == SYSTEM_NAMESPACE
        or local in _SYSTEM_NAMES
        or local.startswith(_SYSTEM_PREFIXES)
        or local.endswith(_SYSTEM_SUFFIXES)
    )


def comparable_name(name: str) -> str:
    """What a pattern is compared with: the full name without scheme and without `-partition-N`."""
    rest = name.partition("://")[2]
    base, suffix, index = rest.rpartition("-partition-")
    if not suffix:
        return rest
    if index in _SMALL and base[-1:] != "/":
        return base
    return str(TopicName.parse(name).base).partition("://")[2]


def select(names: Iterable[str], pattern: TopicPattern) -> list[str]:
    """Names that match, in their order. Raises LimitExceeded if the pattern is too much work."""
    pattern.start_work()
    return [name for name in names if pattern.matches(comparable_name(name))]


def of_domain(names: Iterable[str], *, persistent: bool, non_persistent: bool) -> list[str]:
    """Names of the wanted kinds, sorted."""
    prefixes = tuple(
        f"{domain}://"
        for domain, wanted in ((PERSISTENT, persistent), (NON_PERSISTENT, non_persistent))
        if wanted
    )
    return sorted(name for name in names if name.startswith(prefixes))


class TopicListChange(NamedTuple):
    """Names that came and went, sorted, and the hash of the set after that."""

    new: list[str]
    deleted: list[str]
    topics_hash: str


class MatchingTopics:
    """The names of one namespace that match one pattern."""

    def __init__(self, pattern: TopicPattern, names: Iterable[str]) -> None:
        """Raises LimitExceeded as `select`."""
        self._pattern = pattern
        self._names = set(select(names, pattern))
        self._hash = topics_hash(self._names)

    @property
    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._names)

    @property
    def topics_hash(self) -> str:
        return self._hash

    def apply(self, names: Iterable[str], present: Iterable[str]) -> TopicListChange | None:
        """`names` may have changed: those of `present` are there now, the others are not. None
        if nothing that matches changed."""
        there = set(present)
        matching = select(names, self._pattern)
        new = sorted(name for name in matching if name in there and name not in self._names)
        deleted = sorted(name for name in matching if name not in there and name in self._names)
        if not new and not deleted:
            return None
        self._names.update(new)
        self._names.difference_update(deleted)
        self._hash = topics_hash(self._names)
        return TopicListChange(new, deleted, self._hash)
