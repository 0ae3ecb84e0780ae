"""Per-entry decisions and batch rewriting: the acceptance list of compaction bugs that one entry
can show."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.compaction.messages import Examined, Kind, Message, examine, examine_single, rewrite
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import entry_checksum_ok
from magnetar.wire.entries import encode_entry, parse_entry
from tests.spark.histories import COMPRESSIONS, History, Sent, visible


@pytest.fixture
def history() -> History:
    return History(random.Random(1))


def test_deletion_is_decided_on_the_payload_not_on_the_entry_size(history: History) -> None:
    """#25817: the entry of an empty message has some 50 bytes of metadata; a size of the whole
    would keep the tombstone permanently."""
    entry = history.single("k", b"").data
    assert len(entry) > 20
    assert examine(entry).messages == (Message(0, b"k", False),)


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_an_empty_compressed_payload_is_a_deletion_though_it_takes_bytes(
    history: History, compression: int
) -> None:
    """The compressed form of nothing is not empty; the size before compression decides."""
    assert examine(history.single("k", b"", compression).data).messages == (
        Message(0, b"k", False),
    )
    assert examine(history.single("k", b"v", compression).data).messages == (
        Message(0, b"k", True),
    )


def test_null_value_deletes_even_when_encryption_pads_it() -> None:
    metadata = api.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key="k", null_value=True
    )
    metadata.encryption_keys.add(key="k", value=b"v")
    assert examine(encode_entry(metadata, b"x" * 16)).messages == (Message(0, b"k", False),)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_message_of_a_batch_is_decided_on_its_own(history: History, compression: int) -> None:
    """#20980: one empty value must not take its batch with it."""
    entry = history.batch([Sent("a", b"1"), Sent("b", b""), Sent(None, b"2")], compression)
    assert examine(entry.data).messages == (
        Message(0, b"a", True),
        Message(1, b"b", False),
        Message(2, None, True),
    )


def test_messages_removed_by_an_earlier_run_are_not_deletions(history: History) -> None:
    """A removed message has size 0 and stands in the input of the next run; a naive reader takes
    it for a tombstone."""
    entry = rewrite(history.batch([Sent("a", b"1"), Sent("b", b"2")]).data, {1})
    assert examine(entry).messages == (Message(1, b"b", True),)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_rewritten_batch_keeps_count_indexes_and_checksum(
    history: History, compression: int
) -> None:
    entry = history.batch(
        [Sent("a", b"1" * 50), Sent("b", b"2" * 50), Sent("c", b"3" * 50)], compression
    ).data
    slim = rewrite(entry, {1})
    parsed = parse_entry(slim)
    assert entry_checksum_ok(slim)
    assert parsed.metadata.num_messages_in_batch == 3
    assert parsed.metadata.compression == compression
    assert list(parsed.metadata.compacted_batch_indexes) == [0, 2]
    assert visible([(1, 1, bytes(slim))]) == [((1, 1, 1), "b", b"2" * 50)]


def test_metadata_that_compaction_does_not_own_survives_a_rewrite(history: History) -> None:
    described = history.batch([Sent("a", b"1"), Sent("b", b"2")])
    before, after = (
        parse_entry(described.data).metadata,
        parse_entry(rewrite(described.data, {0})).metadata,
    )
    del after.compacted_batch_indexes[:]
    assert before == after


def test_an_entry_that_loses_nothing_keeps_its_bytes(history: History) -> None:
    batch = history.batch([Sent("a", b"1"), Sent("b", b"2")], api.LZ4).data
    assert rewrite(batch, {0, 1}) is batch
    slim = rewrite(batch, {0})
    assert rewrite(slim, {0}) is slim


def test_broker_metadata_in_front_of_an_entry_survives_a_rewrite(history: History) -> None:
    broker = api.BrokerEntryMetadata(broker_timestamp=7, index=9).SerializeToString()
    prefix = b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker
    slim = rewrite(prefix + history.batch([Sent("a", b"1"), Sent("b", b"2")]).data, {0})
    assert bytes(slim).startswith(prefix)
    assert entry_checksum_ok(slim)
    assert parse_entry(slim).broker_metadata == api.BrokerEntryMetadata(broker_timestamp=7, index=9)


def test_markers_are_never_keyed_data(history: History) -> None:
    """Redpanda #15672: markers deduplicated by key resurrect aborted transactions."""
    assert examine(history.marker(21, key="k").data).kind is Kind.COMMIT
    assert examine(history.marker(22, key="k").data).kind is Kind.MARKER
    assert examine(history.marker(21, key="k").data).messages == ()


def test_an_encrypted_batch_is_one_message(history: History) -> None:
    sealed = history.sealed_batch("k", 5, b"ciphertext").data
    assert examine(sealed).messages == (Message(0, b"k", True),)
    assert rewrite(sealed, {0}) is sealed


def test_an_encrypted_batch_without_a_key_of_its_own_stays(history: History) -> None:
    """Its messages may have keys that nobody here can see: dropping it would lose them."""
    assert examine(history.sealed_batch(None, 5, b"ciphertext").data).kind is Kind.OPAQUE


def test_what_cannot_be_opened_stays(history: History) -> None:
    assert examine(history.garbage().data).kind is Kind.OPAQUE
    assert examine(b"").kind is Kind.OPAQUE
    assert examine(b"\x00\x00\x00\x02zz").kind is Kind.OPAQUE


def test_chunks_know_their_message(history: History) -> None:
    first, last = history.chunks("k", [b"1", b"2"])
    assert examine(first.data).kind is Kind.CHUNK
    one, two = examine(first.data).chunk, examine(last.data).chunk
    assert one is not None
    assert two is not None
    assert (one.number, one.count, one.key) == (0, 2, b"k")
    assert (two.number, two.identity) == (1, one.identity)


def test_binary_keys_are_compared_decoded_and_a_null_key_is_none() -> None:
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.partition_key, metadata.partition_key_b64_encoded = "YWJj", True
    assert examine(encode_entry(metadata, b"v")).messages == (Message(0, b"abc", True),)
    metadata.partition_key = "not base64!"
    assert examine(encode_entry(metadata, b"v")).messages == (Message(0, b"not base64!", True),)
    metadata.null_partition_key = True
    assert examine(encode_entry(metadata, b"v")).messages == (Message(0, None, True),)


@given(
    st.one_of(st.none(), st.text(max_size=5)),
    st.binary(max_size=5),
    st.fixed_dictionaries(
        {},
        optional={
            "null_value": st.booleans(),
            "null_partition_key": st.booleans(),
            "partition_key_b64_encoded": st.booleans(),
            "num_messages_in_batch": st.just(1),
            "marker_type": st.integers(0, 40),
            "num_chunks_from_msg": st.integers(0, 3),
            "compression": st.sampled_from(COMPRESSIONS),
        },
    ),
)
def test_the_fast_decision_is_the_same_decision(
    key: str | None, payload: bytes, traits: dict[str, Any]
) -> None:
    """Where the short cut decides, it decides as the long way does; it declines what is not one
    ordinary message."""
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **traits)
    if key is not None:
        metadata.partition_key = key
    entry = memoryview(encode_entry(metadata, payload))
    examined, single = examine(entry), examine_single(entry)
    if single is not None:
        assert examined == Examined(Kind.KEYED, (Message(0, *single),))
    if not traits:
        assert single is not None


def test_random_bytes_never_escape_as_an_error() -> None:
    chance = random.Random(7)
    for _ in range(300):
        entry = bytearray(
            History(chance)
            .batch([Sent("a", b"1" * 30), Sent("b", b"")], chance.choice(COMPRESSIONS))
            .data
        )
        for _flip in range(chance.randint(1, 4)):
            entry[chance.randrange(6, len(entry))] = chance.randrange(256)
        assert (
            examine_single(memoryview(bytes(entry))) is None
            or examine(bytes(entry)).kind is Kind.KEYED
        )
