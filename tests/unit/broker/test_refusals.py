"""Every command of the protocol, sent to a real broker: each request gets exactly one answer
that its sender waits for, nothing else gets any."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command
from tests.support.brokers import Peer, Type, connected_peer, open_peer, running_broker

REQUEST_ID = 77
AT_ONCE_S = 30.0
"""Less than a peer that says nothing is kept for, whose end would pass for a refusal."""
ANSWERS = {
    "SUBSCRIBE": "SUCCESS",
    "PRODUCER": "PRODUCER_SUCCESS",
    "UNSUBSCRIBE": "ERROR",
    "CLOSE_PRODUCER": "SUCCESS",
    "CLOSE_CONSUMER": "SUCCESS",
    "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE",
    "LOOKUP": "LOOKUP_RESPONSE",
    "CONSUMER_STATS": "CONSUMER_STATS_RESPONSE",
    "SEEK": "ERROR",
    "GET_LAST_MESSAGE_ID": "ERROR",
    "GET_TOPICS_OF_NAMESPACE": "GET_TOPICS_OF_NAMESPACE_RESPONSE",
    "GET_SCHEMA": "GET_SCHEMA_RESPONSE",
    "GET_OR_CREATE_SCHEMA": "GET_OR_CREATE_SCHEMA_RESPONSE",
    "NEW_TXN": "ERROR",
    "ADD_PARTITION_TO_TXN": "ERROR",
    "ADD_SUBSCRIPTION_TO_TXN": "ERROR",
    "END_TXN": "ERROR",
    "END_TXN_ON_PARTITION": "END_TXN_ON_PARTITION_RESPONSE",
    "END_TXN_ON_SUBSCRIPTION": "END_TXN_ON_SUBSCRIPTION_RESPONSE",
    "TC_CLIENT_CONNECT_REQUEST": "ERROR",
    "ACK": "ACK_RESPONSE",
    "WATCH_TOPIC_LIST": "WATCH_TOPIC_LIST_SUCCESS",
    "WATCH_TOPIC_LIST_CLOSE": "SUCCESS",
    "SET_WATERMARK": "ERROR",
    "GET_LAST_WATERMARK": "ERROR",
}
"""Requests that expect an answer, and what answers a minimal one on a broker without producers,
consumers and optional features."""
CLOSING = {"CONNECT", "SEND"}
"""The second handshake and a SEND without a producer end the connection (both have tests of
their own)."""
SILENT = {"PING", "PONG", "FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "AUTH_RESPONSE"}
"""Expect no answer (PING's is checked apart)."""
NOT_OFFERED = {
    "GET_SCHEMA", "NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN",
    "TC_CLIENT_CONNECT_REQUEST",
}  # fmt: skip
KINDS = [name for name in Type.keys() if name not in CLOSING]  # noqa: SIM118 (an enum wrapper of protobuf is not a mapping)
FINAL_CODES = {3, 4, 5, 7, 8, 9, 11, 14, 15, 16, 18, 19, 22}
"""Codes that the C++ client gives up on at once (protocol 1.5); any other makes it try again
until its operation times out."""


def fill(message: Message) -> None:
    """Set every required field, and the request id."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        if field.name == "request_id":
            setattr(message, field.name, REQUEST_ID)
        elif field.is_required:
            if field.message_type is not None:
                fill(getattr(message, field.name))
            elif field.name == "namespace":
                setattr(message, field.name, "public/default")
            elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                setattr(
                    message, field.name, "x" if field.type == FieldDescriptor.TYPE_STRING else b"x"
                )
            elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                setattr(message, field.name, field.enum_type.values[0].number)
            else:
                setattr(message, field.name, 1)


def minimal(name: str) -> bytes:
    """The smallest valid command of a type."""
    command = api.BaseCommand(type=Type.Value(name))
    fill(getattr(command, commands.FIELD_OF_TYPE[Type.Value(name)]))
    assert command.IsInitialized(), name
    return encode_command(command)


def body_of(command: api.BaseCommand) -> Message:
    found: Message = getattr(command, commands.FIELD_OF_TYPE[command.type])
    return found


def code_of(command: api.BaseCommand) -> int | None:
    """The error code of an answer, whatever its field is called."""
    body = body_of(command)
    for field in ("error", "error_code"):
        if field in body.DESCRIPTOR.fields_by_name and body.HasField(field):
            return int(getattr(body, field))
    return None


def test_the_table_knows_every_type() -> None:
    """A command added to the protocol must be put into one of the groups here."""
    assert set(ANSWERS) <= set(KINDS)
    assert not NOT_OFFERED - set(ANSWERS)
    assert set(KINDS) | CLOSING == {value.name for value in Type.DESCRIPTOR.values}


async def check(peer: Peer, name: str) -> None:
    """Send a minimal command of one type, and compare what comes back."""
    peer.write(minimal(name))
    if name == "PING":
        await peer.answer(Type.PONG)
    elif name not in ANSWERS and name not in SILENT:
        async with asyncio.timeout(AT_ONCE_S):
            assert await peer.closed_by_broker(), f"{name}: only a broker sends this"
        return
    elif name in ANSWERS:
        answer = await peer.answer()
        assert Type.Name(answer.type) == ANSWERS[name], (name, answer)
        assert body_of(answer).request_id == REQUEST_ID, (name, answer)  # type: ignore[attr-defined]
        refused = code_of(answer)
        if name in NOT_OFFERED:
            assert refused in FINAL_CODES, (name, answer)
        else:
            assert refused != 0, f"{name}: code 0 gives the client no reason"
    assert await peer.is_quiet(), f"{name}: more than one answer, or one that nobody waits for"


@pytest.mark.slow
async def test_every_request_gets_one_answer_and_nothing_else_gets_any(tmp_path: Path) -> None:
    """For all types of the protocol: the answer's type and request id, a typed code, and silence
    afterwards; what only brokers send ends it."""

    async with running_broker(tmp_path) as broker:
        async with open_peer(broker) as peer:
            await peer.lookup("x")
        for name in KINDS:
            async with open_peer(broker) as peer:
                await check(peer, name)
        async with open_peer(broker) as peer:
            await check(peer, "PING")  # nobody else was harmed


async def test_transactions_are_refused_with_the_text_that_clients_look_for(tmp_path: Path) -> None:
    """The Go client compares the words, not the number."""

    async with connected_peer(tmp_path) as (_broker, peer):
        for name in ("NEW_TXN", "END_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN"):
            peer.write(minimal(name))
            assert "Transactions are not enabled." in str(body_of(await peer.answer())), name
