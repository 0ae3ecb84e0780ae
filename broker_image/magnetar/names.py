"""Names: tenants, namespaces, topics, bundles, subscriptions, producers.

Owns: the table of what each kind of name may hold (`RULES`), parsing and the map from topic to
bundle. Imports: errors, zlib. Pure. Source: topic grammar of Pulsar; bundle hashing as Pulsar's
namespace bundles (CRC-32 of the full topic name, the last bundle closed at the top). Invariants:
`str(parse(x)) == canonical(x)`; every hash in 0..0xffffffff falls into exactly one bundle of a
namespace; a name that passes its rule is one path component of storage where it becomes one, stays
on one line of a log, and survives percent-encoding in a URL.
"""

from __future__ import annotations

import bisect
import itertools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from magnetar.errors import InvalidRequest, InvalidTopicName

FULL_RANGE_END = 0xFFFFFFFF
DEFAULT_BUNDLES = 4
BUNDLES_MAX = 4096
NAME_LENGTH_MAX = 1024
SIDECAR = "/_txnlog"
"""What the log calls a topic's transaction sidecar: the topic's name and this. No client may use
such a name."""

PART_PATTERN = "[-=:.0-9A-Za-z_]*[-=:0-9A-Za-z_][-=:.0-9A-Za-z_]*"
"""Tenants, namespaces and clusters: Pulsar's characters. They become directories, so dots alone
are not a name."""
PART_LENGTH_MAX = 200
"""Characters: a directory's name holds 255 bytes, and an object's key three such parts."""
SUBSCRIPTION_NAME_MAX = 1024
"""Characters of a subscription's name: what a transaction coordinator takes for a participant."""
_TEXT_PATTERN = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+"
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{1,8}")
_BUNDLE_RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")
_PARTITION = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]{0,8})")
CLUSTER_NAME = "standalone"
"""What Pulsar's clients call the cluster that they talk to."""
PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"


@dataclass(frozen=True, slots=True)
class NameRule:
    """What names of one kind may hold: `pattern` matches the whole name, `words` says it to the
    user."""

    kind: str
    pattern: re.Pattern[str]
    length_max: int
    words: str

    def violation(self, name: str) -> str | None:
        """Why `name` is refused, as a sentence with the remedy; None if it is allowed."""
        if len(name) > self.length_max:
            return (
                f"{self.kind} {name[:40]!r}... has {len(name)} characters; choose one of at most "
                f"{self.length_max}"
            )
        if not self.pattern.fullmatch(name):
            return f"{self.kind} {name!r} is not valid; use {self.words}"
        return None


_PART_WORDS = "letters, digits and -=:._ , and not dots alone"
_TEXT_WORDS = "text without control characters, line separators and direction marks"
_PART, _TEXT = re.compile(PART_PATTERN), re.compile(_TEXT_PATTERN)
RULES = {
    rule.kind: rule
    for rule in (
        NameRule("cluster", _PART, PART_LENGTH_MAX, _PART_WORDS),
        NameRule("tenant", _PART, PART_LENGTH_MAX, _PART_WORDS),
        NameRule("namespace", _PART, PART_LENGTH_MAX, _PART_WORDS),
        NameRule("topic", _TEXT, NAME_LENGTH_MAX, _TEXT_WORDS),
        NameRule("subscription", _TEXT, SUBSCRIPTION_NAME_MAX, _TEXT_WORDS),
        NameRule("producer_name", _TEXT, NAME_LENGTH_MAX, _TEXT_WORDS),
    )
}
"""By kind: the one place that says what a peer may call something."""


def check_part(kind: str, name: str) -> str:
    """The name of a cluster, tenant or namespace, if it is allowed. Raises InvalidTopicName."""
    violation = RULES[kind].violation(name)
    if violation is not None:
        raise InvalidTopicName(violation)
    return name


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @staticmethod
    def parse(text: str) -> NamespaceName:
        """Parse `tenant/namespace`. Raises InvalidTopicName."""
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidTopicName(f"namespace {text!r} is not valid; write tenant/namespace")
        return NamespaceName(check_part("tenant", parts[0]), check_part("namespace", parts[1]))


SYSTEM_NAMESPACE = NamespaceName("pulsar", "system")
"""What brokers keep for themselves, as Pulsar's do: clients cannot change or delete it."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A full topic name; `local` includes a partition suffix if there is one."""

    domain: str
    tenant: str
    namespace: str
    local: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def namespace_name(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace)

    @property
    def persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def partition(self) -> int:
        """Partition index, or -1 for a topic that is not a partition."""
        return partition_of(self.local)

    @property
    def base(self) -> TopicName:
        """The partitioned topic this is a partition of, or itself."""
        match = _PARTITION.fullmatch(self.local)
        return TopicName(self.domain, self.tenant, self.namespace, match["base"]) if match else self

    def with_partition(self, index: int) -> TopicName:
        """The name of partition `index` of this topic."""
        return TopicName(
            self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}"
        )

    @property
    def hash(self) -> int:
        """Position on the namespace's ring: CRC-32 of the full name, 0..0xffffffff; that of its
        topic for a sidecar."""
        return zlib.crc32(str(self).removesuffix(SIDECAR).encode())

    @staticmethod
    def parse(text: str) -> TopicName:
        """Parse a full name, `tenant/ns/topic` or a bare `topic` (public/default). Raises
        InvalidTopicName naming the text."""
        return _parse_topic(text)


@lru_cache(maxsize=16384)
def _parse_topic(text: str) -> TopicName:
    if len(text.removesuffix(SIDECAR)) > NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"topic name has {len(text)} characters; the limit is {NAME_LENGTH_MAX}"
        )
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
        if "/" not in rest:
            rest = f"public/default/{rest}"
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidTopicName(
            f"topic {text!r}: domain {domain!r} is not valid; use persistent:// or "
            "non-persistent://"
        )
    parts = rest.split("/", 2)
    if len(parts) != 3 or not parts[2]:
        raise InvalidTopicName(
            f"topic {text!r} is not valid; write {domain}://tenant/namespace/topic"
        )
    tenant, namespace, local = parts
    check_part("tenant", tenant)
    check_part("namespace", namespace)
    violation = RULES["topic"].violation(local.removesuffix(SIDECAR))
    if violation is not None:
        raise InvalidTopicName(violation)
    if not {".", ".."}.isdisjoint(local.split("/")):
        raise InvalidTopicName(
            f"topic {text!r} is not valid; URLs cannot hold the path components . and .."
        )
    return TopicName(domain, tenant, namespace, local)


@dataclass(frozen=True, slots=True, order=True)
class BundleName:
    """A hash range [low, high) of a namespace; closed at the top when high is 0xffffffff."""

    namespace: NamespaceName
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @property
    def range(self) -> str:
        """`0x%08x_0x%08x`, as Pulsar writes it."""
        return f"0x{self.low:08x}_0x{self.high:08x}"

    def contains_hash(self, position: int) -> bool:
        return self.low <= position < self.high or (position == self.high == FULL_RANGE_END)

    def contains(self, topic: TopicName) -> bool:
        return topic.namespace_name == self.namespace and self.contains_hash(topic.hash)

    def includes(self, other: BundleName) -> bool:
        """Whether `other` is this range or part of it."""
        return (
            self.namespace == other.namespace and self.low <= other.low and other.high <= self.high
        )

    def overlaps(self, other: BundleName) -> bool:
        """Whether `other` has a hash in common with this range."""
        return self.namespace == other.namespace and self.low < other.high and other.low < self.high

    @staticmethod
    def parse(text: str) -> BundleName:
        """Parse `tenant/namespace/0x00000000_0x40000000`. Raises InvalidTopicName."""
        namespace, _, span = text.rpartition("/")
        match = _BUNDLE_RANGE.fullmatch(span)
        if not match or int(match[1], 16) >= int(match[2], 16):
            raise InvalidTopicName(
                f"bundle {text!r} is not valid; write tenant/namespace/0x00000000_0x40000000"
            )
        return BundleName(NamespaceName.parse(namespace), int(match[1], 16), int(match[2], 16))


def initial_boundaries(count: int) -> tuple[int, ...]:
    """Boundaries of a namespace with `count` equal bundles: 0, seg, 2*seg, ..., 0xffffffff (the
    last takes the remainder).

    Raises InvalidRequest.
    """
    if not 1 <= count <= BUNDLES_MAX:
        raise InvalidRequest(f"bundles: {count} is out of range; use 1..{BUNDLES_MAX}")
    segment = (1 << 32) // count
    return (*(index * segment for index in range(count)), FULL_RANGE_END)


def boundaries_given(texts: Sequence[object]) -> tuple[int, ...]:
    """Boundaries as an administrator writes them (`0x40000000`), in any order, sorted; they must
    span the whole ring. Raises InvalidRequest."""
    for text in texts:
        if not isinstance(text, str) or not _BOUNDARY.fullmatch(text):
            raise InvalidRequest(
                f"bundles.boundaries: {str(text)[:40]!r} is not a position on the ring; write it "
                "as 0x40000000"
            )
    found = tuple(sorted({int(str(text), 16) for text in texts}))
    if found[:1] != (0,) or found[-1:] != (FULL_RANGE_END,):
        raise InvalidRequest(
            f"bundles.boundaries: they do not span the whole ring; begin at 0x{0:08x} and end at "
            f"0x{FULL_RANGE_END:08x}"
        )
    if len(found) - 1 > BUNDLES_MAX:
        raise InvalidRequest(
            f"bundles.boundaries: {len(found) - 1} bundles are too many; use 1..{BUNDLES_MAX}"
        )
    return found


def fitting_boundaries(known: Sequence[int], bundles: Sequence[BundleName]) -> tuple[int, ...]:
    """Boundaries of which each of `bundles` (disjoint, of one namespace) is a bundle, as near to
    those `known` as that permits."""
    edges = {0, FULL_RANGE_END, *(edge for bundle in bundles for edge in (bundle.low, bundle.high))}
    edges |= {
        edge for edge in known if not any(bundle.low < edge < bundle.high for bundle in bundles)
    }
    return tuple(sorted(edges))


def bundle_of(namespace: NamespaceName, boundaries: Sequence[int], position: int) -> BundleName:
    """The bundle of hash `position` under sorted `boundaries`; the top hash belongs to the last
    bundle."""
    index = min(bisect.bisect_right(boundaries, position) - 1, len(boundaries) - 2)
    return BundleName(namespace, boundaries[index], boundaries[index + 1])


def bundles_of(namespace: NamespaceName, boundaries: Sequence[int]) -> list[BundleName]:
    """All bundles of a namespace in hash order."""
    return [BundleName(namespace, low, high) for low, high in itertools.pairwise(boundaries)]


def sidecar_of(topic: str) -> str:
    """What the log calls the transaction sidecar of a topic."""
    return topic + SIDECAR


def topic_of_sidecar(name: str) -> str | None:
    """The topic whose transaction sidecar the log calls `name`; None if it is the name of a
    topic."""
    return name.removesuffix(SIDECAR) if name.endswith(SIDECAR) else None


def partition_of(topic: str) -> int:
    """Partition index of the topic with this name (or local name), or -1 for a topic that is not
    a partition."""
    match = _PARTITION.fullmatch(topic)
    return int(match["index"]) if match else -1


COORDINATOR_TOPIC = TopicName("persistent", "pulsar", "system", "transaction_coordinator_assign")
"""Its partitions stand for the transaction coordinators: clients look them up."""

AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
"""Certificates in a directory, and in a Kubernetes secret of type kubernetes.io/tls."""
