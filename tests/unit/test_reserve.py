"""The space kept for when a file system is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from magnetar import reserve
from magnetar.reserve import STEPS, Reserve

SIZE = 1 << 20
STEP = SIZE // STEPS


def full(needed: int, path: Path) -> int:
    """As a write that finds space once so much of the reserve was given back."""
    if SIZE - path.stat().st_size < needed:
        raise OSError(errno.ENOSPC, "No space left on device")
    return needed


def test_its_blocks_are_allocated(tmp_path: Path) -> None:
    assert Reserve(str(tmp_path / "r"), SIZE).refill() == 0
    assert (tmp_path / "r").stat().st_blocks * 512 >= SIZE


@pytest.mark.parametrize(
    ("needed", "left"), [(0, SIZE), (1, SIZE - STEP), (3 * STEP, SIZE - 3 * STEP), (SIZE, 0)]
)
def test_no_more_of_it_is_given_back_than_is_needed(tmp_path: Path, needed: int, left: int) -> None:
    kept = Reserve(str(tmp_path / "r"), SIZE)
    kept.refill()
    assert kept.spend(full, needed, tmp_path / "r") == needed
    assert (tmp_path / "r").stat().st_size == left


def test_what_finds_no_space_in_spite_of_it_fails_and_other_errors_cost_nothing(
    tmp_path: Path,
) -> None:
    kept, path = Reserve(str(tmp_path / "r"), SIZE), tmp_path / "r"

    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    kept.refill()
    with pytest.raises(OSError, match="Input/output"):
        kept.spend(broken)
    assert path.stat().st_size == SIZE
    with pytest.raises(OSError, match="No space"):
        kept.spend(full, SIZE + 1, path)
    assert path.stat().st_size == 0
    with pytest.raises(OSError, match="No space"):
        Reserve(str(tmp_path / "none"), 0).spend(full, SIZE + 1, path)


def test_it_is_filled_only_when_more_than_it_takes_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was just given back to a caller that waits for it is not taken again."""
    kept, free = Reserve(str(tmp_path / "r"), SIZE), [SIZE + STEP - 1]
    monkeypatch.setattr(reserve, "free_bytes", lambda _directory: free[0])
    assert kept.refill() == SIZE
    free[0] += 1
    assert kept.refill() == 0
    kept.release()
    free[0] = STEP
    assert kept.refill() == STEP
    assert Reserve(str(tmp_path / "r"), SIZE).refill() == STEP, "any process sees what is missing"
    free[0] = 2 * STEP
    assert kept.refill() == 0


def test_allocating_that_fails_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int, _offset: int, length: int) -> None:
        os.ftruncate(descriptor, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    assert Reserve(str(tmp_path / "r"), SIZE).refill() == SIZE
    assert (tmp_path / "r").stat().st_size == 0
