"""Checkpoints, seals, the storage id: golden bytes, there and back, written once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.checkpoint import (
    Checkpoint,
    CursorCheckpoint,
    TopicCheckpoint,
    decode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.storage_id import read_or_create_storage_id, read_storage_id
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.checkpoints import encoder_of
from tests.support.logs import CLOCK, INCARNATION, run_on_volume

GOLDEN = (
    b'{"bundle":"a/b/0x00000000_0x40000000","epoch":7,"incarnation":"broker-0.5f","kind":"checkpoint","position":[2,8192],"topics":'
    b'{"persistent://a/b/c":[5,[[15,3],[17,0]],{"s":[[15,-1],[[15,1,2]],[[17,0,[-2]]],{"k":"v"}]},{"p":"q"},[["r",8]],[10,99,4],'
    b'[[15,2,1000,60]],[["q",3,0,77,15,2]]]},"version":2}\n'
    b"crc32c=1a30e0a3\n"
)
CURSOR = CursorCheckpoint((15, -1), ((15, 1, 2),), ((17, 0, (-2,)),), {"k": "v"})
TOPIC = TopicCheckpoint(
    5,
    ((15, 3), (17, 0)),
    {"s": CURSOR},
    {"p": "q"},
    (("r", 8),),
    (10, 99, 4),
    ((15, 2, 1000, 60),),
    (("q", 3, 0, 77, 15, 2),),
)
CHECKPOINT = Checkpoint(
    "a/b/0x00000000_0x40000000",
    7,
    "broker-0.5f",
    LogPosition(2, 8192),
    {"persistent://a/b/c": TOPIC},
)


def test_golden_checkpoint() -> None:
    """The bytes of version 2."""
    assert encoder_of(CHECKPOINT).finish() == GOLDEN
    assert decode_checkpoint(GOLDEN, "c") == CHECKPOINT


def test_golden_watermarks() -> None:
    """Control records of a topic, which has no transactions, are its last field."""
    topic = replace(TOPIC, watermarks=(b"\x01\x02", b"\x03"))
    data = encoder_of(replace(CHECKPOINT, topics={"persistent://a/b/c": topic})).finish()
    head, _ = GOLDEN.split(b"]]},")
    assert data.startswith(head + b'],null,["AQI=","Aw=="]]},"version":2}\n')
    assert decode_checkpoint(data, "c").topics["persistent://a/b/c"] == topic


NUMBER = st.integers(-1, 2**63 - 1)
CURSORS = st.builds(
    CursorCheckpoint,
    st.tuples(NUMBER, NUMBER),
    st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=3).map(tuple),
    st.lists(st.tuples(NUMBER, NUMBER, st.lists(NUMBER, max_size=2).map(tuple)), max_size=2).map(
        tuple
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
TOPICS = st.builds(
    TopicCheckpoint,
    NUMBER,
    st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=5), CURSORS, max_size=2),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    st.lists(st.tuples(st.text(max_size=5), NUMBER), max_size=2).map(tuple),
    st.tuples(NUMBER, NUMBER, NUMBER),
    st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER), max_size=2).map(tuple),
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=10), TOPICS, max_size=3), NUMBER, NUMBER)
def test_checkpoints_come_back(topics: dict[str, TopicCheckpoint], file: int, offset: int) -> None:
    checkpoint = Checkpoint("a/b/0x00000000_0x40000000", 1, "i", LogPosition(file, offset), topics)
    assert decode_checkpoint(encoder_of(checkpoint).finish(), "c") == checkpoint


def test_a_checkpoint_is_written_once(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        name, size = await write_checkpoint(volume, encoder_of(CHECKPOINT), 3)
        assert name == "checkpoints/a/b/0x00000000_0x40000000/00000000000000000007-00000003"
        assert size == len(await volume.read(name))
        assert await read_checkpoint(volume, name) == CHECKPOINT
        with pytest.raises(StorageError, match="served twice"):
            await write_checkpoint(volume, encoder_of(CHECKPOINT), 3)

    run_on_volume(tmp_path, script)


def test_a_document_of_another_kind_or_version_is_refused() -> None:
    data = encode_document("seal", 1, {"a": 1})
    assert decode_document("seal", 1, data, "d") == {"a": 1}
    for kind, version in (("claim", 1), ("seal", 2)):
        with pytest.raises(CorruptData, match="upgrade"):
            decode_document(kind, version, data, "d")
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            decode_document("seal", 1, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "d")
        with pytest.raises(CorruptData):
            decode_document("seal", 1, data[:at], "d")


def test_golden_seal(tmp_path: Path) -> None:
    """Version 1 never changes; the first length published is the one that holds."""

    async def script(volume: PosixVolume) -> None:
        assert await publish_seal(volume, INCARNATION, 1, 5000) == 5000
        assert await publish_seal(volume, INCARNATION, 1, 6000) == 5000
        assert await volume.read(names.sealed(INCARNATION, 1)) == (
            b'{"file":1,"incarnation":"broker-0.0123456789abcdef","kind":"sealed","length":5000,"version":1}\ncrc32c=5fe6ef02\n'
        )

    run_on_volume(tmp_path, script)


def test_concurrent_brokers_agree_on_the_storage_id(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        assert await read_storage_id(volume) is None
        found = await asyncio.gather(*(read_or_create_storage_id(volume, CLOCK) for _ in range(5)))
        assert len(set(found)) == 1
        assert len(found[0]) == 32
        assert await read_storage_id(volume) == found[0]

    run_on_volume(tmp_path, script)
