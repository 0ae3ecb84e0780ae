"""One entry as the compacted view holds it.

Owns: `view_row`. Imports: messages, the segment format. Pure. Invariants: an entry that loses
nothing keeps its bytes; position, append time and number of messages stay as they were.
"""

from __future__ import annotations

from collections.abc import Collection

from magnetar.compaction.messages import Kind, examine, key_of, readable_metadata, rewrite
from magnetar.storage.segments.format import (
    HAS_REMOVED,
    IS_BATCH,
    IS_DECIDED,
    IS_DELETION,
    Row,
)


def view_row(stored: Row, keep: Collection[int]) -> Row:
    """The entry with those of its messages that survive (not empty); an entry of a log file has no
    flags, no key and no times."""
    if stored.flags & IS_DECIDED:
        return stored
    entry = memoryview(stored.payload)
    metadata = readable_metadata(entry)
    examined = examine(entry)
    flags = stored.flags & HAS_REMOVED
    if metadata.HasField("num_messages_in_batch"):
        flags |= IS_BATCH
        if examined.kind is Kind.KEYED and len(keep) < len(examined.messages):
            entry = memoryview(rewrite(entry, keep))
            flags |= HAS_REMOVED
    elif examined.kind is Kind.KEYED:
        flags |= IS_DECIDED | (0 if examined.messages[0].live else IS_DELETION)
    return Row(
        stored.ledger,
        stored.entry,
        metadata.event_time,
        metadata.publish_time,
        stored.append_time,
        stored.message_count,
        flags,
        key_of(metadata),
        entry,
    )
