"""Stories of load that changes, and their pictures."""

from __future__ import annotations

from xml.etree import ElementTree

from dev.bench.balance_stories import STORIES, Course, course, picture
from magnetar.balance.settings import PLANNER


def test_the_planner_follows_a_flash_crowd() -> None:
    """Two minutes after it came, and after it went, no broker is more than 5 % above the mean."""
    found = course(STORIES["flash-crowd"], PLANNER)
    settled = [ratio for minute, ratio in found.ratios if minute % 20 > 2 and minute > 32]
    assert settled
    assert max(settled) < 1.05
    assert found.moves < 40


def test_a_lost_brokers_bundles_are_spread_at_once() -> None:
    found = course(STORIES["lost-broker"], PLANNER)
    assert max(ratio for minute, ratio in found.ratios if minute > 10.5) < 1.05


def test_a_picture_has_a_line_for_each_strategy() -> None:
    courses = {
        "A, b & c": Course(((0.0, 1.0), (30.0, 9.0)), 3, 0.1),
        "D": Course(((0.0, 1.2),), 0, 0.0),
    }
    root = ElementTree.fromstring(picture(STORIES["zipf"], courses))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert "3 moves, mean 5.00" in "".join(root.itertext())
