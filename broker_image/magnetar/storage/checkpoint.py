"""Checkpoints of a bundle (version 2).

Owns: the object that holds a bundle's topics, ledgers and cursors as of a log position. Imports:
errors, names, metadata records, volume. Invariants: an object is written once under a name of its
own; it holds everything of its bundle up to its position, perhaps more, and applying the log from
there again changes nothing.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from magnetar.errors import CorruptData, StorageError
from magnetar.metadata.records import LogPosition
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.document import close_document, decode_document, document_json
from magnetar.storage.transactions.topic_format import participant_pieces, participant_state
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.participant_records import ParticipantState

KIND, VERSION = "checkpoint", 2
CONTROL_RECORDS_PER_PIECE = 500
"""Of watermarks: a millisecond or two."""


class CursorValues(Protocol):
    """What a checkpoint keeps of a cursor: positions and ranges as in a CURSOR record."""

    @property
    def mark_delete(self) -> tuple[int, int]: ...
    @property
    def ranges(self) -> Sequence[tuple[int, int, int]]: ...
    @property
    def partial(self) -> Sequence[tuple[int, int, tuple[int, ...]]]: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


class TopicValues(Protocol):
    """What a checkpoint keeps of a topic: `ledgers` are (ledger, entry count) in order, `sequences`
    (producer, highest sequence id).

    `sizes` is (bytes dropped, bytes appended, messages appended), `marks` are (ledger, entry,
    elapsed ms of `Checkpoint.incarnation`, bytes appended) of how old its entries are. `chunks` are
    (producer, sequence id, number, checksum, ledger, entry) of the chunks of messages stored last.
    `transactions` is None for a topic that was never used with any, `watermarks` for one on which
    no producer ever asserted any; else control records in their order, as the log has them.
    """

    @property
    def created_ms(self) -> int: ...
    @property
    def ledgers(self) -> Sequence[tuple[int, int]]: ...
    @property
    def cursors(self) -> Mapping[str, CursorValues]: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def sequences(self) -> Sequence[tuple[str, int]]: ...
    @property
    def sizes(self) -> tuple[int, int, int]: ...
    @property
    def marks(self) -> Sequence[tuple[int, int, int, int]]: ...
    @property
    def chunks(self) -> Sequence[tuple[str, int, int, int, int, int]]: ...
    @property
    def transactions(self) -> ParticipantState | None: ...
    @property
    def watermarks(self) -> Iterable[bytes] | None: ...


@dataclass(frozen=True, slots=True)
class CursorCheckpoint:
    """`CursorValues` as read."""

    mark_delete: tuple[int, int]
    ranges: tuple[tuple[int, int, int], ...] = ()
    partial: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicCheckpoint:
    """`TopicValues` as read."""

    created_ms: int
    ledgers: tuple[tuple[int, int], ...] = ()
    cursors: Mapping[str, CursorCheckpoint] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    sequences: tuple[tuple[str, int], ...] = ()
    sizes: tuple[int, int, int] = (0, 0, 0)
    marks: tuple[tuple[int, int, int, int], ...] = ()
    chunks: tuple[tuple[str, int, int, int, int, int], ...] = ()
    transactions: ParticipantState | None = None
    watermarks: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of `bundle` (its full name) in `epoch`, at `position` of the log of `incarnation`.

    Topics of a checkpoint that was read are parsed on demand, which may raise CorruptData.
    """

    bundle: str
    epoch: int
    incarnation: str
    position: LogPosition
    topics: Mapping[str, TopicValues]


class CheckpointEncoder:
    """Encodes a checkpoint topic by topic: one of many topics need not be made in one go.

    Cursors and topics are lists, not objects with keys, since there may be very many. Topics are
    added once each, by rising name. Their states may be of different moments, all at `position` or
    later: recovery applies the log from there on to each anyway.
    """

    def __init__(self, bundle: str, epoch: int, incarnation: str, position: LogPosition) -> None:
        """As the fields of `Checkpoint`."""
        self.bundle, self.epoch = bundle, epoch
        head = {
            "bundle": bundle,
            "epoch": epoch,
            "incarnation": incarnation,
            "kind": KIND,
            "position": [position.file, position.offset],
        }
        self._parts = [document_json(head)[:-1], b',"topics":{']
        self._last = ""
        self.size = 0
        """Bytes of the topics so far."""

    def add(self, name: str, topic: TopicValues) -> None:
        """One more topic, as it is now."""
        for _ in self.add_in_pieces(name, topic):
            pass

    def add_in_pieces(self, name: str, topic: TopicValues) -> Iterator[None]:
        """As `add`, to be gone through to its end: a topic that was much used with transactions
        takes long."""
        assert name > self._last or len(self._parts) == 2, (name, self._last)
        separator = b"," if len(self._parts) > 2 else b""
        self._last = name
        for piece in _pieces(separator, name, topic):
            self._parts.append(piece)
            self.size += len(piece)
            yield

    def finish(self) -> bytes:
        """The object's bytes."""
        return close_document([*self._parts, b"},", document_json({"version": VERSION})[1:]])


def _pieces(separator: bytes, name: str, topic: TopicValues) -> Iterator[bytes]:
    fields = document_json(_fields(topic))
    if topic.transactions is None and topic.watermarks is None:
        yield b"%s%s:%s" % (separator, document_json(name), fields)
        return
    yield b"%s%s:%s," % (separator, document_json(name), fields[:-1])
    if topic.transactions is not None:
        yield from participant_pieces(topic.transactions)
    else:
        yield b"null"
    if topic.watermarks is not None:
        yield b",["
        comma = b""
        controls = iter(topic.watermarks)
        while batch := list(islice(controls, CONTROL_RECORDS_PER_PIECE)):
            yield comma + b",".join(b'"%s"' % b64encode(control) for control in batch)
            comma = b","
        yield b"]"
    yield b"]"


def _fields(topic: TopicValues) -> list[Any]:
    return [
        topic.created_ms,
        [list(ledger) for ledger in topic.ledgers],
        {
            subscription: [
                list(cursor.mark_delete),
                [list(span) for span in cursor.ranges],
                [[ledger, entry, list(words)] for ledger, entry, words in cursor.partial],
                dict(cursor.properties),
            ]
            for subscription, cursor in topic.cursors.items()
        },
        dict(topic.properties),
        [list(known) for known in topic.sequences],
        list(topic.sizes),
        [list(mark) for mark in topic.marks],
        [list(chunk) for chunk in topic.chunks],
    ]


def decode_checkpoint(data: bytes, name: str) -> Checkpoint:
    """Parse the object `name`; its topics are `TopicCheckpoint`. Raises CorruptData."""
    body = decode_document(KIND, VERSION, data, name)
    try:
        position, topics = LogPosition(*body["position"]), _StoredTopics(name, body["topics"])
        return Checkpoint(body["bundle"], body["epoch"], body["incarnation"], position, topics)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(name, error) from error


class _StoredTopics(Mapping[str, TopicCheckpoint]):
    """Topics as they lie in the object `name`. There may be very many: a caller that needs them all
    pauses between them."""

    def __init__(self, name: str, fields: dict[str, list[Any]]) -> None:
        self._name, self._fields = name, fields

    def __getitem__(self, topic: str) -> TopicCheckpoint:
        fields = self._fields[topic]
        try:
            return _topic(*fields)
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(self._name, error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _malformed(name: str, error: Exception) -> CorruptData:
    return CorruptData(f"{name}: does not hold a checkpoint: {error!r}")


def _topic(
    created_ms: int,
    ledgers: list[Any],
    cursors: dict[str, list[Any]],
    properties: dict[str, str],
    sequences: list[Any],
    sizes: list[int],
    marks: list[list[int]],
    chunks: list[Any],
    transactions: dict[str, Any] | None = None,
    watermarks: list[str] | None = None,
) -> TopicCheckpoint:
    return TopicCheckpoint(
        created_ms,
        tuple((ledger, count) for ledger, count in ledgers),
        {subscription: _cursor(*fields) for subscription, fields in cursors.items()},
        properties,
        tuple((producer, sequence) for producer, sequence in sequences),
        (sizes[0], sizes[1], sizes[2]),
        tuple((ledger, entry, elapsed_ms, total) for ledger, entry, elapsed_ms, total in marks),
        tuple(
            (producer, sequence, number, checksum, ledger, entry)
            for producer, sequence, number, checksum, ledger, entry in chunks
        ),
        None if transactions is None else participant_state(transactions),
        None if watermarks is None else tuple(map(b64decode, watermarks)),
    )


def _cursor(
    mark_delete: list[int], ranges: list[Any], partial: list[Any], properties: dict[str, str]
) -> CursorCheckpoint:
    return CursorCheckpoint(
        (mark_delete[0], mark_delete[1]),
        tuple((ledger, first, last) for ledger, first, last in ranges),
        tuple((ledger, entry, tuple(words)) for ledger, entry, words in partial),
        properties,
    )


async def write_checkpoint(
    volume: Volume, encoder: CheckpointEncoder, sequence: int
) -> tuple[str, int]:
    """Write the `sequence`-th checkpoint of this bundle and epoch; its object's name and bytes.
    Raises StorageError, also if that one exists."""
    name = names.checkpoint(BundleName.parse(encoder.bundle), encoder.epoch, sequence)
    encoded = encoder.finish()
    if not await volume.put_if_absent(name, encoded):
        raise StorageError(
            f"{name} exists already: epoch {encoder.epoch} of {encoder.bundle} was served twice"
        )
    return name, len(encoded)


async def read_checkpoint(volume: Volume, name: str) -> Checkpoint:
    """Read the object `name`. Raises CorruptData, StorageError, FileNotFoundError."""
    return decode_checkpoint(await volume.read(name), name)
