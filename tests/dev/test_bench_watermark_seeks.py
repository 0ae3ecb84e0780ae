"""The benchmark of attaches and seeks with watermarks: every case runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.bench.watermark_seeks import run


@pytest.mark.slow
def test_every_case_is_measured(tmp_path: Path) -> None:
    found = run(tmp_path, megabytes=4, rounds=2)
    assert {case: len(figures) for case, figures in found.items()} == {
        "attach, without": 2,
        "seek, without": 2,
        "attach, with watermarks": 2,
        "seek, with watermarks": 2,
        "first attach after a restart": 1,
    }
