"""What a process does between two incarnations."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker import process as process_module
from magnetar.broker.incarnation import Broker
from magnetar.broker.process import (
    EMBEDDED,
    RESTART_BASE_S,
    STORE_WAIT_MAX_S,
    BrokerProcess,
    ProcessOptions,
)
from magnetar.hosting.settings import BrokerSettings


def test_a_store_that_stays_away_for_an_hour_is_still_waited_for() -> None:
    """The pause grows up to its bound and stays there, however often an incarnation has failed
    in a row."""
    options = ProcessOptions(
        "b", Path(), EMBEDDED, "127.0.0.1", "127.0.0.1", 0, 0, BrokerSettings()
    )
    process = BrokerProcess(options)
    assert process.back_off_s(1, STORE_WAIT_MAX_S) <= 2 * RESTART_BASE_S
    for failures in (10, 1_000, 1_100, 1_000_000):
        assert (
            STORE_WAIT_MAX_S / 2
            <= process.back_off_s(failures, STORE_WAIT_MAX_S)
            <= STORE_WAIT_MAX_S
        )


class ShortLives(BrokerProcess):
    """A process whose lives fail as soon as they are ready; `counted` is what each pause was
    asked for with."""

    def __init__(self, directory: Path, lives: int) -> None:
        options = ProcessOptions(
            "b",
            directory,
            EMBEDDED,
            "127.0.0.1",
            "127.0.0.1",
            0,
            0,
            BrokerSettings(transactions_enabled=0),
        )
        super().__init__(options, self._ready)
        self._lives = lives
        self.counted: list[int] = []

    def _ready(self, broker: Broker) -> None:
        if len(self.counted) == self._lives:
            self.stop()
        else:
            broker.fail("test")

    def back_off_s(self, failures: int, longest_s: float) -> float:
        assert super().back_off_s(failures, longest_s) >= 0
        self.counted.append(failures)
        return 0.0


@pytest.mark.parametrize(("in_service_s", "counted"), [(600.0, [1, 2, 3]), (0.0, [1, 1, 1])])
async def test_lives_that_fail_just_after_they_were_ready_follow_more_and_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_service_s: float, counted: list[int]
) -> None:
    """To be ready is no success; to have been in service for a while is one."""
    monkeypatch.setattr(process_module, "IN_SERVICE_S", in_service_s)
    process = ShortLives(tmp_path, len(counted))
    await process.run()
    assert process.counted == counted
