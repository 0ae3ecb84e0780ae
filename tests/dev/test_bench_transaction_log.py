"""The benchmark of compaction of transaction logs, with few messages: what it counts. Its times are
nobody's bar here."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.bench.transaction_log import READS_BAR, measure, render

pytestmark = [pytest.mark.slow, pytest.mark.java]


def test_few_reads_and_no_aborted_byte_are_left(tmp_path: Path) -> None:
    """A message of the transaction between those of the others is a read; behind the job they are
    one stretch. What was aborted is in no file."""
    found = measure(tmp_path, messages=100, others=6, pairs=1)
    assert found.aborted_before == 3 * 100
    assert found.aborted_after == 0
    assert found.before.reads >= READS_BAR * found.after.reads
    assert found.job["entries_out"] == 4 * 100
    assert "aborted messages in files" in render(found)
