"""Load that changes: how even each strategy keeps a synthetic cluster over time, as pictures.

Owns: the stories (Zipf, diurnal, flash crowd, a hot topic that migrates, a broker that is lost,
unequal brokers) and their pictures in SVG. Imports: dev.bench.balance_simulation. Deterministic: loads come
from seeds, time is simulated, statistics are perfect.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from dev.bench.balance_simulation import (
    MINUTE_MS,
    STRATEGIES,
    Simulation,
    Start,
    even_start,
    random_start,
)
from magnetar.balance.settings import PLANNER

BROKERS, EACH, SEED = 12, 16, 1
SAMPLE_MS = 10_000
SHOWN_MAX = 3.0
"""Of max/mean in a picture: what is above is cut off."""
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 260, 44, 28, 220, 34
COLOURS = ("#888888", "#bbbbbb", "#c58b2a", "#5b8f3c", "#8a5fb0", "#1f5fbf")
LINE_WIDTHS = {PLANNER: 2.5}


@dataclass(frozen=True)
class Story:
    """`factor(bundle, minute)`: its load then, in loads at the beginning. With `lost_at` the last
    broker is gone from that minute on."""

    what: str
    minutes: int
    start: Callable[[], Start]
    factor: Callable[[int, float], float] = lambda _bundle, _minute: 1.0
    lost_at: int = 0


def _zipf() -> Start:
    start = random_start(BROKERS, EACH, SEED)
    ranks = list(range(1, len(start.loads) + 1))
    random.Random(SEED).shuffle(ranks)
    return replace(start, loads=tuple(1 / rank**0.8 for rank in ranks))


def _diurnal(bundle: int, minute: float) -> float:
    """Three time zones; a day has six hours here."""
    return 1 + 0.8 * math.sin(2 * math.pi * (minute / 360 + bundle % 3 / 3))


def _flash_crowd(bundle: int, minute: float) -> float:
    return 5.0 if bundle % 24 == 0 and 10 <= minute < 30 else 1.0


def _migrating(bundle: int, minute: float) -> float:
    return 8.0 if bundle == 17 * (int(minute) // 15) else 1.0


STORIES: Mapping[str, Story] = {
    "zipf": Story("loads by Zipf's law, placed at random", 60, _zipf),
    "diurnal": Story(
        "load follows the day in three time zones",
        360,
        lambda: even_start(BROKERS, EACH, SEED),
        _diurnal,
    ),
    "flash-crowd": Story(
        "one bundle of 24 has 5 times its load for 20 minutes",
        60,
        lambda: even_start(BROKERS, EACH, SEED),
        _flash_crowd,
    ),
    "hot-topic": Story(
        "one bundle has 8 times its load, another one every 15 minutes",
        90,
        lambda: even_start(BROKERS, EACH, SEED),
        _migrating,
    ),
    "lost-broker": Story(
        "one of 12 brokers is lost at minute 10",
        60,
        lambda: even_start(BROKERS, EACH, SEED),
        lost_at=10,
    ),
    "unequal": Story(
        "brokers of one, two and four times the size, placed at random",
        60,
        lambda: random_start(BROKERS, EACH, SEED, [1.0, 2.0, 4.0] * (BROKERS // 3)),
    ),
}


@dataclass(frozen=True)
class Course:
    """max/mean of the brokers' fill by minute, moves, and the load moved, in loads of the
    cluster."""

    ratios: tuple[tuple[float, float], ...]
    moves: int
    moved: float

    @property
    def mean(self) -> float:
        return sum(ratio for _, ratio in self.ratios) / len(self.ratios)


def course(story: Story, strategy: str) -> Course:
    """One strategy in one story."""
    start = story.start()
    simulation = Simulation(start, STRATEGIES[strategy])
    planning = simulation.settings.shedder == PLANNER
    ratios, base = [], start.loads
    for tick in range(story.minutes * MINUTE_MS // SAMPLE_MS):
        minute = tick * SAMPLE_MS / MINUTE_MS
        loads = tuple(load * story.factor(at, minute) for at, load in enumerate(base))
        simulation.start = replace(simulation.start, loads=loads)
        if story.lost_at and minute == story.lost_at:
            _lose_last(simulation)
        simulation.observe(loads)
        if planning or minute == int(minute):
            simulation.step(SAMPLE_MS if planning else MINUTE_MS)
        ratios.append((minute, max(simulation.start.fills(simulation.owners))))
    return Course(tuple(ratios), simulation.moves, simulation.moved / sum(base))


def _lose_last(simulation: Simulation) -> None:
    last = len(simulation.start.capacities) - 1
    simulation.start = replace(simulation.start, capacities=simulation.start.capacities[:-1])
    simulation.bundles = [
        replace(bundle, broker="") if owner == last else bundle
        for bundle, owner in zip(simulation.bundles, simulation.owners, strict=True)
    ]


def draw(directory: Path) -> list[Path]:
    """A picture of each story with all strategies; the files."""
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    for name, story in STORIES.items():
        courses = {strategy: course(story, strategy) for strategy in STRATEGIES}
        found.append(directory / f"{name}.svg")
        found[-1].write_text(picture(story, courses))
    return found


def picture(story: Story, courses: Mapping[str, Course]) -> str:
    """max/mean over time, a line for each strategy."""
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(minute: float, ratio: float) -> str:
        x = LEFT + across * minute / story.minutes
        y = TOP + down * (SHOWN_MAX - min(ratio, SHOWN_MAX)) / (SHOWN_MAX - 1)
        return f"{x:.1f},{y:.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">Fullest broker over the mean: '
        f"{escape(story.what)}</text>",
    ]
    for ratio in (1.0, 1.5, 2.0, 2.5, 3.0):
        y = place(0, ratio).partition(",")[2]
        lines.append(f'<path d="M{LEFT},{y} h{across}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" dy="4">{ratio:.1f}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LEFT + across * share
        lines.append(
            f'<text x="{x:.0f}" y="{HEIGHT - 14}" text-anchor="middle">'
            f"{share * story.minutes:.0f} min</text>"
        )
    for at, (strategy, found) in enumerate(courses.items()):
        points = " ".join(place(minute, ratio) for minute, ratio in _thinned(found.ratios))
        stroke = f'stroke="{COLOURS[at]}" stroke-width="{LINE_WIDTHS.get(strategy, 1.2)}"'
        lines.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        lines += _legend(at, strategy, found, stroke)
    return "\n".join([*lines, "</svg>", ""])


def _legend(at: int, strategy: str, found: Course, stroke: str) -> list[str]:
    left, top = WIDTH - RIGHT + 12, TOP + 8 + 30 * at
    label, _, placement = strategy.partition(", ")
    words = f"{placement}: " if placement else ""
    words += f"{found.moves} moves, mean {found.mean:.2f}"
    return [
        f'<path d="M{left},{top} h18" {stroke}/>',
        f'<text x="{left + 24}" y="{top + 4}">{escape(label)}</text>',
        f'<text x="{left + 24}" y="{top + 16}" fill="#666666">{escape(words)}</text>',
    ]


def _thinned(
    ratios: Sequence[tuple[float, float]], points: int = 180
) -> Sequence[tuple[float, float]]:
    return ratios[:: max(1, len(ratios) // points)]
