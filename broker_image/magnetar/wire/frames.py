"""Frames: where one command ends and the next begins.

Owns: cutting a byte stream into frames, and wrapping commands into frames. Imports: errors,
varints, the generated protocol. Pure. Source: Pulsar's protocol: `totalSize u32 | commandSize u32 |
BaseCommand | body`, big-endian; totalSize counts everything after itself. Invariants: the frames of
a stream do not depend on how it was split into reads; no byte of a frame is copied while it is cut;
a frame beyond the limit is refused from its first four bytes; memory follows bytes received, not
sizes announced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from magnetar.errors import FrameTooLarge, ProtocolError
from magnetar.wire.checksum import Buffer
from magnetar.wire.pulsar_api_pb2 import BaseCommand
from magnetar.wire.varints import varint

MESSAGE_BYTES_MAX = 5 * 1024 * 1024
FRAME_OVERHEAD_BYTES_MAX = 10 * 1024
READ_BUFFER_BYTES = 1024 * 1024
START_BYTES = 4 * 1024
"""Of the buffer of a connection that has not sent much at once yet; thousands of them are idle."""
GROWTH = 8
SIZE_BYTES = 4
HEADER_BYTES = 8

Frame: TypeAlias = tuple[int, int, int]
"""(command start, command end = body start, body end): offsets into `InboundBuffer.data`; an
empty body has start == end."""

_SIZES = struct.Struct(">II")
_U32 = struct.Struct(">I")


class InboundBuffer:
    """One reused receive buffer behind asyncio's BufferedProtocol, shared by broker and client. It
    grows to `capacity` with what comes.

    `get_buffer` and `advance` are what `get_buffer` and `buffer_updated` of the protocol call.
    Frames point into `data` and are valid until the next `get_buffer`; a caller that keeps bytes
    longer copies them first.
    """

    __slots__ = (
        "_begun", "_consumed", "_first", "_frame_bytes_max", "_have", "capacity", "data", "view",
    )  # fmt: skip

    def __init__(
        self, message_bytes_max: int = MESSAGE_BYTES_MAX, capacity: int = READ_BUFFER_BYTES
    ) -> None:
        assert capacity >= HEADER_BYTES, "a buffer must hold a frame's header"
        self.capacity = capacity
        """Bytes that large reads may make it grow to; a frame that is larger has it grow on."""
        self._frame_bytes_max = message_bytes_max + FRAME_OVERHEAD_BYTES_MAX
        self._consumed = 0
        self._have = 0
        self._begun = -1
        """Bytes of an unfinished frame at the last `trickles`; -1: that frame has ended since."""
        self._first = self.data = bytearray(min(capacity, START_BYTES))
        self.view = memoryview(self.data)

    def allow(self, message_bytes_max: int) -> None:
        """Another limit, for the frames of the next `advance`."""
        self._frame_bytes_max = message_bytes_max + FRAME_OVERHEAD_BYTES_MAX

    @property
    def pending(self) -> int:
        """Bytes received that do not make a whole frame yet."""
        return self._have - self._consumed

    @property
    def unfinished(self) -> int:
        """Bytes of the frame that has begun, with those to come, at most those of the largest frame;
        0 = none has, or its size is not known yet."""
        if self._have - self._consumed < SIZE_BYTES:
            return 0
        (total,) = _U32.unpack_from(self.data, self._consumed)
        whole = SIZE_BYTES + min(int(total), self._frame_bytes_max)
        return whole if self._have - self._consumed < whole else 0

    def trickles(self, bytes_min: int) -> bool:
        """Whether a frame that had begun at the last call has not ended, and grew by fewer
        bytes."""
        before, self._begun = self._begun, self.pending
        return not self._consumed and before > 0 and self._begun - before < bytes_min

    def excuse(self) -> None:
        """Nothing was read for a while: the next `trickles` judges no peer."""
        self._begun = -1

    def give_back(self) -> None:
        """Free the room that large reads needed, unless as much lies in it. Invalidates the frames
        of earlier reads.

        The first buffer is used again: a new one would lie between those that others free.
        """
        rest = self._have - self._consumed
        if self.data is not self._first and rest < len(self._first):
            self._first[:rest] = self.view[self._consumed : self._have]
            self.data, self.view = self._first, memoryview(self._first)
            self._moved(rest)

    def shrink(self) -> bool:
        """Whether a buffer beyond `capacity` is one of that size now: unless as much lies in it.
        Invalidates the frames of earlier reads."""
        rest = self._have - self._consumed
        shrinks = len(self.data) > self.capacity > rest
        if shrinks:
            self._reallocate(self.capacity, rest)
            self._moved(rest)
        return shrinks

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Room for the next read, never empty. Invalidates the frames of earlier reads."""
        rest = self._have - self._consumed
        if self._consumed and not self.shrink():
            size = len(self.data)
            if self._have == size < self.capacity:
                # the last read filled it: there is more to come
                self._reallocate(min(GROWTH * size, self.capacity), rest)
            else:
                self.view[:rest] = self.view[self._consumed : self._have]
            self._moved(rest)
        if self._have == len(self.data):
            grown = min(GROWTH * len(self.data), self.capacity)
            if grown <= len(self.data):  # nothing behind the frame: no room is left over after it
                grown = min(2 * len(self.data), self.unfinished)
            assert grown > len(self.data), "whole frames were left unread"
            self._reallocate(grown, rest)
        return self.view[self._have :]

    def advance(self, count: int) -> Iterator[Frame]:
        """Take note of `count` bytes read, then yield every whole frame.

        Raises ProtocolError or FrameTooLarge on reaching a malformed frame, after the good ones
        before it. A caller that stops early gets the remaining frames from its next call.
        """
        self._have += count
        assert self._have <= len(self.data), "more bytes than the buffer had room for"
        return self._frames()

    @property
    def received(self) -> int:
        """Where the received bytes end in `data`."""
        return self._have

    def skip_to(self, end: int) -> None:
        """Whole frames up to `end` were taken by other means: the iterator under way continues
        behind them."""
        assert self._consumed <= end <= self._have, (self._consumed, end, self._have)
        self._consumed = end

    def _frames(self) -> Iterator[Frame]:
        sizes, data = _SIZES.unpack_from, self.data
        have, limit = self._have, self._frame_bytes_max
        while have - (start := self._consumed) >= HEADER_BYTES:
            total, command = sizes(data, start)
            if total > limit or command > total - SIZE_BYTES:
                raise _malformed(total, command, limit)
            end = start + SIZE_BYTES + total
            if end > have:
                return
            self._consumed = end
            yield start + HEADER_BYTES, start + HEADER_BYTES + command, end
        if have - start >= SIZE_BYTES:
            (total,) = _U32.unpack_from(data, start)
            if not SIZE_BYTES <= total <= limit:
                raise _malformed(total, 0, limit)

    def _moved(self, rest: int) -> None:
        """The bytes that are not handled lie at the beginning now."""
        if self._consumed:
            self._begun = -1
        self._consumed, self._have = 0, rest

    def _reallocate(self, capacity: int, rest: int) -> None:
        """Move the unconsumed bytes to a buffer of another size; views of the old one stay
        readable."""
        fresh = bytearray(capacity)
        fresh[:rest] = self.view[self._consumed : self._consumed + rest]
        self.data, self.view = fresh, memoryview(fresh)


def _malformed(total: int, command: int, limit: int) -> ProtocolError:
    if total > limit:
        return FrameTooLarge(
            f"frame of {total} bytes exceeds the limit of {limit}; send smaller messages or use "
            "chunks"
        )
    return ProtocolError(
        f"frame of {total} bytes cannot hold a command of {command} bytes; the stream is not the "
        "Pulsar protocol"
    )


def encode_command(command: BaseCommand) -> bytes:
    """The frame of a command without a body."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + SIZE_BYTES, len(encoded)) + encoded


_FIELDS = {
    field.message_type: field for field in BaseCommand.DESCRIPTOR.fields if field.message_type
}


@lru_cache(len(_FIELDS))
def _before_body(kind: Descriptor) -> bytes:
    """The encoded type of the command with this sub-message, and the tag of that."""
    field = _FIELDS[kind]
    number = BaseCommand.Type.Value(field.name.upper())
    return b"\x08" + varint(number) + varint(field.number << 3 | 2)


def frame_of(body: Message) -> bytes:
    """The frame of the command whose sub-message is `body`: the bytes of `encode_command`, without
    a copy of the sub-message."""
    encoded = body.SerializeToString()
    command = _before_body(body.DESCRIPTOR) + varint(len(encoded)) + encoded
    return _SIZES.pack(len(command) + SIZE_BYTES, len(command)) + command


def frame_header(command: BaseCommand, body_bytes: int) -> bytes:
    """Everything of a frame before its body, for callers that write the body without copying it."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + SIZE_BYTES + body_bytes, len(encoded)) + encoded


def encode_with_body(command: BaseCommand, body: Buffer) -> bytes:
    """The frame of a SEND or MESSAGE with its entry bytes."""
    return b"".join((frame_header(command, len(body)), body))
