"""The largest frame of every command of the protocol.

Owns: `largest_frames`: for each command, and for each of its fields that can grow (those of nested
messages too), a frame in which that field is as large as a frame may be. Imports: the generated
protocol. Made from the descriptors, so a new command or field is attacked from its first day.
Invariant: every frame is well-formed: required fields are set, enums are in range.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dev.soak.attacks.raw import (
    FRAME_BYTES_MAX,
    Gone,
    RawConnection,
    Target,
    Type,
    broker_of,
    connection,
    produce,
    subscribe,
)
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import FIELD_OF_TYPE
from magnetar.wire.frames import encode_command

NESTING_MAX = 3
MESSAGES_MAX = 200_000
"""Elements of a repeated message: each costs the attacker time, too."""
FRAMES_PER_TURN = 4
CONSUMER, PRODUCER = 1, 1
_NUMBERS = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32,
)


class Shape:
    """Fills messages: required fields plausibly, one chosen field to the brim."""

    def __init__(self, target: Target, chance: random.Random) -> None:
        self._target, self._chance = target, chance

    def fill(self, message: Message, path: tuple[str, ...], bytes_max: int) -> None:
        """Set what is required, and make the field at `path` large."""
        for field in message.DESCRIPTOR.fields:
            if path and field.name == path[0]:
                self._enlarge(message, field, path[1:], bytes_max)
            elif field.is_required or (
                field.name in ("topic", "namespace") and not field.is_repeated
            ):
                self._set(message, field)

    def _set(self, message: Message, field: Any) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.fill(getattr(message, field.name), (), 0)
            getattr(message, field.name).SetInParent()
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, self._text(field.name))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, b"x")
        elif field.type == FieldDescriptor.TYPE_ENUM:
            setattr(message, field.name, self._chance.choice(field.enum_type.values).number)
        elif field.name in ("consumer_id", "producer_id", "watcher_id"):
            setattr(message, field.name, CONSUMER)
        elif field.type in _NUMBERS:
            setattr(message, field.name, self._chance.choice((0, 1, 7)))

    def _text(self, name: str) -> str:
        if name == "topic":
            return self._target.any_topic()
        if name == "namespace":
            return self._target.namespace
        return self._target.fresh("hostile")

    def _enlarge(self, message: Message, field: Any, rest: tuple[str, ...], bytes_max: int) -> None:
        if not field.is_repeated:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                self.fill(getattr(message, field.name), rest, bytes_max)
                getattr(message, field.name).SetInParent()
            elif field.type == FieldDescriptor.TYPE_BYTES:
                setattr(message, field.name, self._long_bytes(bytes_max))
            else:
                setattr(message, field.name, self._long_text(field.name, bytes_max))
            return
        values = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            one = values.add()
            self.fill(one, (), 0)
            if rest:
                self.fill(one, rest, bytes_max)
                return
            del values[:]
            size = max(1, one.ByteSize() + 4)
            for number in range(min(MESSAGES_MAX, bytes_max // (size + 8))):
                values.append(self._numbered(one, number))
        elif field.type == FieldDescriptor.TYPE_STRING:
            text = (
                self._target.fresh_topic()
                if "topic" in field.name or "partition" in field.name
                else "hostile"
            )
            values.extend(f"{text}-{number}" for number in range(bytes_max // (len(text) + 10)))
        else:
            values.extend([-1] * (bytes_max // 11))

    def _numbered(self, one: Message, number: int) -> Message:
        """A copy whose texts and numbers differ from the others'."""
        copy = type(one)()
        copy.CopyFrom(one)
        for field in copy.DESCRIPTOR.fields:
            if field.is_repeated or field.type == FieldDescriptor.TYPE_MESSAGE:
                continue
            if field.type == FieldDescriptor.TYPE_STRING and field.is_required:
                setattr(copy, field.name, f"{getattr(copy, field.name)}-{number}")
            elif field.type in _NUMBERS and field.is_required:
                setattr(copy, field.name, 2 * number)
        return copy

    def _long_text(self, name: str, bytes_max: int) -> str:
        kinds = [
            "x" * bytes_max,
            "\u00e9" * (bytes_max // 2),
            "(a*)*" * (bytes_max // 5),
            "a/" * (bytes_max // 2),
        ]
        if name == "topic":
            kinds.append(f"{self._target.topic}{'y' * (bytes_max - len(self._target.topic))}")
        return self._chance.choice(kinds)

    def _long_bytes(self, bytes_max: int) -> bytes:
        depth = min(bytes_max // 12, 200_000)
        kinds = [
            bytes(bytes_max),
            b"[" * bytes_max,
            b'{"type":"array","items":' * (depth // 2) + b'"int"' + b"}" * (depth // 2),
            b'{"type":"record","name":"r","fields":[' + b",".join(
                b'{"name":"f%d","type":["null","string"]}' % number for number in range(min(20_000, bytes_max // 60))
            ) + b"]}",
        ]  # fmt: skip
        return self._chance.choice(kinds)


def large_fields(descriptor: Any, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Paths of all fields of a message that can grow."""
    for field in descriptor.fields:
        if field.is_repeated or field.type in (
            FieldDescriptor.TYPE_STRING,
            FieldDescriptor.TYPE_BYTES,
        ):
            yield (field.name,)
        if field.type == FieldDescriptor.TYPE_MESSAGE and depth < NESTING_MAX:
            yield from ((field.name, *path) for path in large_fields(field.message_type, depth + 1))


ALL = [
    (kind, path)
    for kind, name in FIELD_OF_TYPE.items()
    for path in large_fields(getattr(api.BaseCommand(), name).DESCRIPTOR)
]
"""Every command with every field of it that can grow."""


def largest_frame(
    target: Target, kind: int, path: tuple[str, ...], bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """The frame of one command with one of its fields as large as `bytes_max` allows."""
    command = api.BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(command, FIELD_OF_TYPE[kind])
    body.SetInParent()
    Shape(target, target.chance).fill(body, path, bytes_max - 1024)
    return encode_command(command)


async def _send_and_wait(raw: RawConnection, frame: bytes) -> str:
    await raw.send(frame)
    return await raw.pong()


async def largest_command(target: Target) -> str:
    """Some of all the largest frames, each on a connection that has a consumer and a producer."""
    said = []
    for kind, path in target.chance.sample(ALL, FRAMES_PER_TURN):
        name = f"{Type.Name(kind)}.{'.'.join(path)}"  # type: ignore[arg-type]
        frame = largest_frame(target, kind, path)
        try:
            async with connection(target, target.topic) as raw:
                await subscribe(
                    raw, target.topic, "hostile-largest", consumer=CONSUMER, earliest=False
                )
                await produce(raw, target.topic, producer=PRODUCER)
                said.append(f"{name} {await _send_and_wait(raw, frame)}")
        except (Gone, TimeoutError) as error:
            said.append(f"{name} {error!s:.40}")
    return "; ".join(said)


async def largest_to_coordinator(target: Target) -> str:
    """The same to a transaction coordinator."""
    if not target.coordinators:
        return "no coordinator"
    said = []
    chosen = [
        (kind, path) for kind, path in ALL if kind >= Type.NEW_TXN or target.chance.random() < 0.2
    ]
    for kind, path in target.chance.sample(chosen, FRAMES_PER_TURN):
        name = f"{Type.Name(kind)}.{'.'.join(path)}"  # type: ignore[arg-type]
        raw = await RawConnection.open(target.chance.choice(target.coordinators))
        try:
            await raw.shake_hands()
            said.append(f"{name} {await _send_and_wait(raw, largest_frame(target, kind, path))}")
        except (Gone, TimeoutError) as error:
            said.append(f"{name} {error!s:.40}")
        finally:
            raw.close()
    return "; ".join(said)


async def before_the_handshake(target: Target) -> str:
    """A largest frame as the first command of a connection."""
    kind, path = target.chance.choice(ALL)
    raw = await RawConnection.open(await broker_of(target, target.topic))
    try:
        await raw.send(largest_frame(target, kind, path))
        answer = await raw.receive()
        return f"{Type.Name(kind)} {Type.Name(answer.type)}"  # type: ignore[arg-type]
    except Gone as error:
        return str(error)
    finally:
        raw.close()


ATTACKS = (largest_command, largest_to_coordinator, before_the_handshake)
