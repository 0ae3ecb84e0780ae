"""Frames: the same commands come out however the stream is cut into reads, and malformed streams
end in typed errors."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import FrameTooLarge, ProtocolError
from magnetar.wire import commands, frames
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import (
    FRAME_OVERHEAD_BYTES_MAX,
    READ_BUFFER_BYTES,
    START_BYTES,
    InboundBuffer,
)


def send(sequence: int, body: bytes) -> bytes:
    command = api.BaseCommand(
        type=api.BaseCommand.SEND, send=api.CommandSend(producer_id=1, sequence_id=sequence)
    )
    return frames.encode_with_body(command, body)


def feed(buffer: InboundBuffer, pieces: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Hand the pieces in as reads would arrive; returns (command, body) of every frame, copied
    while valid."""
    out = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            room = buffer.get_buffer(-1)
            assert len(room) > 0
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            for start, body, end in buffer.advance(count):
                out.append((bytes(buffer.data[start:body]), bytes(buffer.view[body:end])))
    return out


def feed_into(bodies: list[bytes], buffer: InboundBuffer, pieces: Iterable[bytes]) -> None:
    """Like `feed`, but what came before an error is in `bodies`."""
    for piece in pieces:
        buffer.get_buffer()[: len(piece)] = piece
        bodies += (bytes(buffer.view[body:end]) for _, body, end in buffer.advance(len(piece)))


STREAM = [
    commands.PING,
    send(1, b"abc"),
    send(2, b""),
    commands.success(7),
    send(3, b"x" * 50),
    commands.PONG,
]


def test_every_split_of_a_stream_gives_the_same_frames() -> None:
    """Cutting the stream in two at every byte, and into single bytes, changes nothing."""
    stream = b"".join(STREAM)
    whole = feed(InboundBuffer(), [stream])
    assert [len(command) + len(body) + 8 for command, body in whole] == [
        len(frame) for frame in STREAM
    ]
    for cut in range(1, len(stream)):
        assert feed(InboundBuffer(capacity=64), [stream[:cut], stream[cut:]]) == whole
    assert feed(InboundBuffer(capacity=8), [bytes([byte]) for byte in stream]) == whole


@given(
    st.lists(st.binary(max_size=300), max_size=8),
    st.lists(st.integers(1, 97), min_size=1, max_size=40),
)
def test_any_bodies_in_any_reads_round_trip(bodies: list[bytes], cuts: list[int]) -> None:
    """Bodies come out byte for byte whatever the read sizes."""
    stream = b"".join(send(index, body) for index, body in enumerate(bodies))
    pieces, at, turn = [], 0, 0
    while at < len(stream):
        pieces.append(stream[at : at + cuts[turn % len(cuts)]])
        at += len(pieces[-1])
        turn += 1
    received = feed(InboundBuffer(capacity=16), pieces)
    assert [body for _, body in received] == bodies
    assert [commands.decode_command(command).send.sequence_id for command, _ in received] == list(
        range(len(bodies))
    )


def test_a_frame_larger_than_the_buffer_grows_it_and_it_shrinks_again() -> None:
    """The largest legal frame passes through a small buffer, whose memory is given back
    afterwards."""
    buffer = InboundBuffer(message_bytes_max=100_000, capacity=1024)
    large = send(1, bytes(range(256)) * 390)
    assert [body for _, body in feed(buffer, [large])] == [large[-256 * 390 :]]
    assert 1024 < len(buffer.data) <= 100_000 + FRAME_OVERHEAD_BYTES_MAX + 4
    assert [body for _, body in feed(buffer, [send(2, b"after")])] == [b"after"]
    assert len(buffer.data) == 1024


@pytest.mark.parametrize("body_bytes", [100, 3000, 40_000])
def test_a_buffer_begins_small_and_grows_while_reads_fill_it(body_bytes: int) -> None:
    """An idle connection costs 4 KiB; one that sends as fast as it is read soon gets whole
    megabytes, and no byte is lost on the way."""
    buffer = InboundBuffer()
    assert len(buffer.data) == START_BYTES
    bodies = [
        bytes([number % 256]) * body_bytes
        for number in range(1 + 4 * READ_BUFFER_BYTES // body_bytes)
    ]
    left = memoryview(b"".join(send(number, body) for number, body in enumerate(bodies)))
    found, sizes = [], [START_BYTES]
    while left:
        room = buffer.get_buffer()
        count = min(len(room), len(left))
        room[:count] = left[:count]
        left = left[count:]
        found += [bytes(buffer.view[body:end]) for _, body, end in buffer.advance(count)]
        sizes.append(len(buffer.data))
    assert found == bodies
    assert sorted(set(sizes)) == [
        START_BYTES,
        8 * START_BYTES,
        64 * START_BYTES,
        READ_BUFFER_BYTES,
    ]


def test_memory_follows_received_bytes_not_announced_ones() -> None:
    """A peer that announces a 5 MiB frame and sends 8 bytes of it costs nothing."""
    buffer = InboundBuffer(capacity=1024)
    assert feed(buffer, [(5 * 1024 * 1024).to_bytes(4, "big") + b"\x00\x00\x00\x08"]) == []
    assert len(buffer.get_buffer()) == 1024 - 8


def test_the_largest_frame_passes_and_one_byte_more_is_refused_from_its_size_alone() -> None:
    """The limit counts what follows the size field: message limit plus 10 KiB."""
    limit = 1000 + FRAME_OVERHEAD_BYTES_MAX
    head = len(send(1, b"")) - 4
    assert len(feed(InboundBuffer(1000, 64), [send(1, b"x" * (limit - head))])) == 1
    with pytest.raises(FrameTooLarge, match=str(limit + 1)):
        feed(InboundBuffer(1000, 64), [(limit + 1).to_bytes(4, "big")])


@pytest.mark.parametrize(
    "bad", [b"\x00\x00\x00\x03", b"\x00\x00\x00\x08\x00\x00\x00\x05", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_good_frames_before_a_malformed_one_are_delivered_then_the_error(bad: bytes) -> None:
    """However the reads fall, the good frames come out first."""
    stream = commands.PING + send(1, b"ok") + bad
    for cut in range(1, len(stream)):
        seen: list[bytes] = []
        with pytest.raises(ProtocolError):
            feed_into(seen, InboundBuffer(capacity=256), [stream[:cut], stream[cut:]])
        assert seen == [b"", b"ok"]


def test_frames_left_unread_come_with_the_next_call() -> None:
    """A caller that stops early loses nothing."""
    buffer = InboundBuffer()
    stream = commands.PING * 3
    buffer.get_buffer()[: len(stream)] = stream
    next(buffer.advance(len(stream)))
    assert buffer.pending == 2 * len(commands.PING)
    assert len(list(buffer.advance(0))) == 2
    assert buffer.pending == 0


@given(st.lists(st.binary(min_size=1, max_size=64), max_size=20))
def test_random_bytes_never_raise_anything_but_protocol_errors(pieces: list[bytes]) -> None:
    """Fuzz: frames, or an error of the ProtocolError family."""
    buffer = InboundBuffer(message_bytes_max=256, capacity=32)
    try:
        feed(buffer, pieces)
    except ProtocolError:
        return
    assert buffer.pending <= 256 + FRAME_OVERHEAD_BYTES_MAX + 4


@pytest.mark.parametrize(
    "command",
    [
        api.BaseCommand(type=api.BaseCommand.SUCCESS, success=api.CommandSuccess(request_id=3)),
        api.BaseCommand(
            type=api.BaseCommand.ERROR,
            error=api.CommandError(request_id=1 << 63, error=api.UnknownError, message="x" * 300),
        ),
        api.BaseCommand(
            type=api.BaseCommand.WATCH_TOPIC_UPDATE,
            watch_topic_update=api.CommandWatchTopicUpdate(
                watcher_id=7, new_topics=["a"], topics_hash="h"
            ),
        ),
    ],
    ids=lambda command: api.BaseCommand.Type.Name(command.type),
)
def test_a_command_is_framed_by_its_body_alone(command: api.BaseCommand) -> None:
    """The same bytes without a copy of the body, whatever the size of its tag and length."""
    body = getattr(command, api.BaseCommand.Type.Name(command.type).lower())
    assert frames.frame_of(body) == frames.encode_command(command)
