"""What a server said, without what no two servers have in common.

Owns: `Names` (message ids by the order of publication), and how answers, messages and REST bodies
are shown. Imports: magnetar.wire. Pure. Invariants: an id that was not published in the scenario is
`start` before a ledger's first entry, `none` for -1:-1, else `other`, which is settled at the end: a
transaction's message may be recognized later than its id was seen; texts of errors are collected, not
compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from magnetar.errors import ProtocolError
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import signed
from magnetar.wire.entries import parse_entry

Type = api.BaseCommand
_UNKNOWN = re.compile(r"other (-?\d+):(-?\d+)")


@dataclass
class Published:
    """An entry of the scenario: one message, or a batch."""

    ledger: int
    entry: int
    messages: int
    publish_ms: int
    payload: bytes
    in_transaction: bool = False


@dataclass
class Names:
    """Entries in the order of their publication; a message that was refused has none."""

    published: list[Published | None] = field(default_factory=list)
    transactional: bool = False
    """Whether a transaction has the topic: its markers are entries with Apache Pulsar, and count as
    backlog."""
    duplicates: bool = False
    """Whether a message was sent again: Apache Pulsar counts it once more."""
    _known: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(self, entry: Published | None) -> str:
        """The name of the next entry."""
        name = f"m{len(self.published)}"
        self.published.append(entry)
        if entry is not None:
            self._known[entry.ledger, entry.entry] = name
        return name

    def find(self, name: str) -> Published | None:
        """By `m3`; None if there is no such entry."""
        number = int(name.removeprefix("m"))
        return self.published[number] if number < len(self.published) else None

    def recognize(self, ledger: int, entry: int, payload: bytes) -> None:
        """A transaction's message may get its place in the topic, and so another id, at the
        commit: clients know it by that."""
        if (ledger, entry) in self._known:
            return
        for number, published in enumerate(self.published):
            if published is not None and published.in_transaction and published.payload == payload:
                self._known[ledger, entry] = f"m{number}"
                published.ledger, published.entry = ledger, entry

    def of(self, ledger: int, entry: int) -> str:
        """An id as it is shown."""
        ledger, entry = signed(ledger), signed(entry)
        if (ledger, entry) == (-1, -1):
            return "none"
        if entry == -1:
            return "start"
        return self._known.get((ledger, entry), f"other {ledger}:{entry}")

    def settled(self, shown: Any) -> Any:
        """What was shown, with the names that are known by now."""
        if isinstance(shown, dict):
            return {key: self.settled(value) for key, value in shown.items()}
        if isinstance(shown, list):
            return [self.settled(value) for value in shown]
        if isinstance(shown, str):
            return _UNKNOWN.sub(self._name_of, shown)
        return shown

    def _name_of(self, found: re.Match[str]) -> str:
        return self._known.get((int(found[1]), int(found[2])), "other")


def shown_message(message: api.CommandMessage, entry: bytes, names: Names) -> str:
    """`m3`, with its redelivery count, what is left of a batch, and whether its bytes are others
    than those that were published."""
    identity = message.message_id
    try:
        payload = bytes(parse_entry(entry).payload)
    except ProtocolError:
        payload = b"unreadable"
    names.recognize(identity.ledgerId, identity.entryId, payload)
    name = names.of(identity.ledgerId, identity.entryId)
    text = name
    if message.redelivery_count:
        text += f" redelivered {message.redelivery_count}"
    if message.ack_set:
        text += f" left {[signed(word) for word in message.ack_set]}"
    if message.HasField("consumer_epoch"):
        text += f" epoch {message.consumer_epoch}"
    published = names.find(name) if name.startswith("m") else None
    if published is not None and payload != published.payload:
        text += " OTHER BYTES"
    return text


def _last_id(answer: api.CommandGetLastMessageIdResponse, names: Names) -> dict[str, Any]:
    last, mark = answer.last_message_id, answer.consumer_mark_delete_position
    found: dict[str, Any] = {
        "last": names.of(last.ledgerId, last.entryId),
        "index": last.batch_index,
    }
    if answer.HasField("consumer_mark_delete_position"):
        found["acknowledged"] = names.of(mark.ledgerId, mark.entryId)
    return found


def _stats(answer: api.CommandConsumerStatsResponse, names: Names) -> dict[str, Any]:
    found = {
        "type": answer.type,
        "permits": answer.availablePermits,
        "unacked": answer.unackedMessages,
        "blocked": answer.blockedConsumerOnUnackedMsgs,
    }
    return found if names.transactional else found | {"backlog": answer.msgBacklog}


def _producer(answer: api.CommandProducerSuccess) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ready": answer.producer_ready,
        "last_sequence": answer.last_sequence_id,
        "schema": answer.schema_version.hex(),
    }
    if answer.HasField("topic_epoch"):
        found["epoch"] = answer.topic_epoch
    return found


def shown_answer(command: api.BaseCommand, names: Names, texts: list[str]) -> Any:
    """A command as a step shows it."""
    body = getattr(command, commands.FIELD_OF_TYPE[command.type])
    kind = Type.Type.Name(command.type)
    for code, text in (("error", "message"), ("error_code", "error_message")):
        if code in body.DESCRIPTOR.fields_by_name and body.HasField(code):
            texts.append(f"{kind}: {getattr(body, text)}")
            return f"{kind} {api.ServerError.Name(getattr(body, code))}"
    if command.type == Type.PRODUCER_SUCCESS:
        return {kind: _producer(body)}
    if command.type == Type.GET_LAST_MESSAGE_ID_RESPONSE:
        return {kind: _last_id(body, names)}
    if command.type == Type.CONSUMER_STATS_RESPONSE:
        return {kind: _stats(body, names)}
    if command.type == Type.PARTITIONED_METADATA_RESPONSE:
        return {kind: body.partitions}
    if command.type == Type.LOOKUP_RESPONSE:
        return {kind: api.CommandLookupTopicResponse.LookupType.Name(body.response)}
    if command.type == Type.GET_SCHEMA_RESPONSE:
        schema = body.schema
        return {
            kind: [
                body.schema_version.hex(),
                api.Schema.Type.Name(schema.type),
                schema.schema_data.decode(errors="replace"),
            ]
        }
    if command.type == Type.GET_OR_CREATE_SCHEMA_RESPONSE:
        return {kind: body.schema_version.hex()}
    return kind


DROPPED = {"reason", "timestamp"}


def shown_body(body: Any, names: Names, topic: str) -> Any:
    """A REST body: ids by name, the scenario's topic as TOPIC, reasons left out."""
    if isinstance(body, dict):
        if "ledgerId" in body and "entryId" in body:
            return names.of(body["ledgerId"], body["entryId"])
        return {
            key: shown_body(value, names, topic)
            for key, value in sorted(body.items())
            if key not in DROPPED
        }
    if isinstance(body, list):
        return [shown_body(value, names, topic) for value in body]
    return body.replace(topic, "TOPIC") if isinstance(body, str) else body
