"""What is left of a batch after compaction."""

from __future__ import annotations

import pytest

from magnetar.broker.reading.catalog import last_surviving_message, surviving_messages
from magnetar.wire.pulsar_api_pb2 import MessageMetadata


def _metadata(count: int, removed: list[int]) -> MessageMetadata:
    return MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=0,
        num_messages_in_batch=count,
        compacted_batch_indexes=removed,
    )


@pytest.mark.parametrize(
    ("count", "removed"), [(1, []), (5, []), (5, [4]), (5, [0, 4]), (5, [3, 4]), (3, [0, 1, 2])]
)
def test_the_last_surviving_message_is_the_highest_bit_of_the_mask(
    count: int, removed: list[int]
) -> None:
    """Both readings of the field agree."""
    metadata = _metadata(count, removed)
    assert last_surviving_message(metadata) == surviving_messages(metadata).bit_length() - 1


def test_absurd_fields_of_a_producer_cost_nothing() -> None:
    """Indexes and counts come from a peer: no shift by a negative number, no integer of 256 MB."""
    assert last_surviving_message(_metadata(2**31 - 1, [-1, 2**31 - 2])) == 2**31 - 3
