"""Every command of the binary protocol, said by every kind of role: one without a row of
expectation fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command
from tests.support.access_matrix import (
    ANONYMOUS,
    GRANTED,
    NAME,
    NAMESPACE,
    UNKNOWN,
    Server,
    secured_server,
)
from tests.support.access_rows import COMMAND_ROWS, CommandRow
from tests.support.brokers import Peer, Type, command_frame, entry, read_command
from tests.support.secured import peer_of, show

REQUEST = 1000
NUMBER = 1
"""Of every producer, consumer and watcher."""
ANSWER_S = 120.0
BETWEEN = (Type.ACTIVE_CONSUMER_CHANGE, Type.MESSAGE, Type.CLOSE_CONSUMER)
"""What a broker says to consumers besides: that of a SEEK is closed before the answer."""
Txn = tuple[int, int]


def _filled(message: Message) -> None:
    """Give every required field some value."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            _filled(getattr(message, field.name))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            setattr(message, field.name, b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x")
        elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            setattr(message, field.name, field.enum_type.values[0].number)
        else:
            setattr(message, field.name, NUMBER)


def _frame(name: str, txn: Txn = (0, 0), subscription: str = "s") -> bytes:
    """A command of one kind that is in order, about the topic."""
    if name == "SEND":
        return requests.send(NUMBER, 0, entry(b"x"))
    command = api.BaseCommand(type=Type.Value(name))
    body: Any = getattr(command, commands.FIELD_OF_TYPE[command.type])
    body.SetInParent()
    _filled(body)
    for field, value in {
        "topic": NAME,
        "namespace": NAMESPACE,
        "subscription": subscription,
        "request_id": REQUEST,
        "protocol_version": 21,
        "topics_pattern": ".*",
        "message_publish_time": 1,
        "initialPosition": api.CommandSubscribe.Earliest,
        "subType": api.CommandSubscribe.Shared,
        "tc_id": 0,
        **({"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]} if "TXN" in name else {}),
    }.items():
        described = body.DESCRIPTOR.fields_by_name.get(field)
        if (
            described is not None
            and described.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE
            and not described.is_repeated
        ):
            setattr(body, field, value)
    if name == "ACK":
        body.message_id.add(ledgerId=0, entryId=0)
    elif name == "END_TXN":
        body.txn_action = api.ABORT
    elif name == "ADD_PARTITION_TO_TXN":
        body.partitions.append(NAME)
    elif name == "ADD_SUBSCRIPTION_TO_TXN":
        body.subscription.add(topic=NAME, subscription=subscription)
    elif name == "END_TXN_ON_SUBSCRIPTION":
        body.subscription.topic, body.subscription.subscription = NAME, subscription
    return encode_command(command)


async def _outcome(peer: Peer, frame: bytes, expected: str) -> str:
    """What comes of a command: the field of its answer, an error's name, "closed" or "silent"."""
    peer.write(frame + commands.PING)
    async with asyncio.timeout(ANSWER_S):
        while True:
            try:
                command, _ = await read_command(peer.reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return "closed"
            field = commands.FIELD_OF_TYPE[command.type]
            if command.type == Type.PONG and expected == "silent":
                return "silent"
            if command.type == Type.PONG or (command.type in BETWEEN and field != expected):
                continue
            body: Any = getattr(command, field)
            for name in ("error", "error_code"):  # of statistics
                if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
                    return api.ServerError.Name(getattr(body, name))
            return field


async def _owned(peer: Peer, what: str, subscription: str, others: Txn) -> Txn:
    """Make what the command acts on, if the role may; the transaction to name: that of others,
    if it may begin none."""
    name = {
        "producer": "PRODUCER",
        "consumer": "SUBSCRIBE",
        "watcher": "WATCH_TOPIC_LIST",
        "transaction": "NEW_TXN",
    }[what]
    peer.write(_frame(name, subscription=subscription))
    begun = (await peer.answer()).new_txn_response
    return (
        (begun.txnid_most_bits, begun.txnid_least_bits)
        if begun.HasField("txnid_least_bits")
        else others
    )


async def _wrong(server: Server, role: str, name: str, row: CommandRow, others: Txn) -> str:
    """What is not as the row says, of a command on a connection of its own; "" if all is."""
    expected = row.granted if row.right in GRANTED[role] else row.refused
    subscription = f"{name}-{role}"
    async with peer_of(server.broker) as peer:
        method, shown = server.credentials(role)
        assert (await show(peer, shown, method)).type == Type.CONNECTED
        txn = await _owned(peer, row.owned, subscription, others) if row.owned else others
        if name == "AUTH_RESPONSE":
            response = api.AuthData(auth_method_name=method, auth_data=shown.encode())
            frame = command_frame("auth_response", response=response)
        else:
            frame = _frame(name, txn, subscription)
        found = await _outcome(peer, frame, expected)
    return f"{role}: {name} came to {found}, not {expected}" if found != expected else ""


async def _check(server: Server, roles: Collection[str]) -> None:
    async with peer_of(server.broker) as peer:
        method, shown = server.credentials("admin")
        assert (await show(peer, shown, method)).type == Type.CONNECTED
        await peer.lookup(NAME)
        await peer.produce(NUMBER, NAME)
        await peer.send(b"x", 0, NUMBER)
        others = await _owned(peer, "transaction", "", (0, 0))
        before = await server.stored()
        for granted in (False, True):
            found = await asyncio.gather(
                *(
                    _wrong(server, role, name, row, others)
                    for name, row in COMMAND_ROWS.items()
                    for role in roles
                    if (row.right in GRANTED[role]) is granted
                )
            )
            assert "\n".join(filter(None, found)) == ""
            assert granted or await server.stored() == before


async def test_every_command_answers_exactly_the_roles_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without a row fails, and a row without a command; a refused role has changed
    nothing in the store."""
    assert {*COMMAND_ROWS} == {*Type.keys()}

    async with secured_server(tmp_path, monkeypatch) as server:
        await _check(server, [role for role in GRANTED if role not in (*UNKNOWN, "anonymous")])


async def test_the_anonymous_role_says_every_command_as_a_known_role_without_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured_server(tmp_path, monkeypatch, ANONYMOUS) as server:
        await _check(server, ["anonymous"])


@pytest.mark.parametrize("role", UNKNOWN)
async def test_no_command_is_answered_before_the_peer_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """CONNECT with wrong or no credentials is refused; any other command but PING and PONG ends
    the connection without an answer."""

    async with secured_server(tmp_path, monkeypatch) as server:
        method, shown = server.credentials(role)
        for name in COMMAND_ROWS:
            async with peer_of(server.broker) as peer:
                if name != "CONNECT":
                    peer.write(_frame(name))
                try:
                    answer = await show(peer, shown, method)
                except (asyncio.IncompleteReadError, ConnectionError):
                    assert name not in ("CONNECT", "PING", "PONG")
                else:
                    assert name in ("CONNECT", "PING", "PONG")
                    assert answer.error.error == api.AuthenticationError
                    assert await peer.closed_by_broker()
