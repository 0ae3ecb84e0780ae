"""What is rewritten while space is short."""

from __future__ import annotations

from magnetar.storage.manifest import LevelZero
from magnetar.storage.segments.level_one import FileState, Round, while_space_is_short


def state(number: int, live: int, size: int = 100) -> FileState:
    return FileState(LevelZero("b.1", number, size, (1,)), size, live, 0)


def test_only_what_gives_back_more_than_it_writes_is_rewritten_and_little_at_once() -> None:
    """What holds nothing alive goes all the same: that writes nothing."""
    files = [state(0, 0), state(1, 51), state(2, 50), state(3, 40), state(4, 5)]
    named = [found.file for found in files]
    chosen = Round(drop=(named[0],), rewrite=tuple(named[1:]), partly=(named[4],))
    assert while_space_is_short(chosen, files, 60) == Round(
        drop=(named[0],), rewrite=(named[2], named[4])
    )
