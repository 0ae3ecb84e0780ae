"""What a process does between two lives."""

from __future__ import annotations

from pathlib import Path

from magnetar.server.process import EMBEDDED, RESTART_BASE_S, STORE_WAIT_MAX_S, BrokerProcess, ProcessOptions
from magnetar.server.settings import BrokerSettings


def test_a_store_that_stays_away_for_an_hour_is_still_waited_for() -> None:
    """The pause grows up to its bound and stays there, however often a life has failed in a row."""
    options = ProcessOptions("b", Path(), EMBEDDED, "127.0.0.1", "127.0.0.1", 0, 0, BrokerSettings())
    process = BrokerProcess(options)
    assert process.back_off_s(1, STORE_WAIT_MAX_S) <= 2 * RESTART_BASE_S
    for failures in (10, 1_000, 1_100, 1_000_000):
        assert STORE_WAIT_MAX_S / 2 <= process.back_off_s(failures, STORE_WAIT_MAX_S) <= STORE_WAIT_MAX_S
