"""`python -m dev.bench.transaction_buffer [transactions]`: what ended transactions cost a topic.

Owns: one figure each for memory, checkpoint and reopening after so many aborted transactions.
Imports: magnetar's transactions and their codec. Twice: in the worst order, where no two fences and
no two translations join (every second number, a send point of its own), and in the usual one.
Nothing here passes or fails.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc

from magnetar.storage.transactions.topic_format import participant_pieces, participant_state
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import ParticipantState
from magnetar.transactions.topic.buffer import TransactionBuffer

TOPIC = "persistent://a/b/c"


def main() -> None:
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for name, step in (("worst order", 2), ("usual order", 1)):
        tracemalloc.start()
        buffer = TransactionBuffer(TOPIC, lambda: 2)
        begun = time.perf_counter()
        for number in range(transactions):
            _abort_one(buffer, TxnId(0, step * number + 1), number if step > 1 else 0)
        each_us = (time.perf_counter() - begun) / transactions * 1e6
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        document = b"".join(participant_pieces(ParticipantState(buffer.to_state())))
        begun = time.perf_counter()
        state = participant_state(json.loads(document)).buffer
        assert state is not None
        again = TransactionBuffer.from_state(TOPIC, lambda: 4, state)
        reopened_s = time.perf_counter() - begun
        assert again.to_state() == state
        print(
            f"{transactions} aborted transactions, {name}: {held / 1e6:.1f} MB in memory, "
            f"{len(document) / 1e6:.1f} MB in a checkpoint, "
            f"reopened in {reopened_s * 1000:.0f} ms ({each_us:.0f} us each, with memory traced)"
        )


def _abort_one(buffer: TransactionBuffer, txn: TxnId, entry: int) -> None:
    buffer.confirm(
        buffer.append(
            txn, "p", count=1, highest=0, size=100, messages=1, send_point=(3, entry), now_ms=0
        )
    )
    change = buffer.abort(txn, 0)
    assert change is not None
    buffer.confirm(change)


if __name__ == "__main__":
    main()
