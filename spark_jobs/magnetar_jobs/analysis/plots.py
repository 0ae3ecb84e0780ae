"""Plots as inline SVG.

Owns: `lines`, curves and a band over time, and `bars`. Imports: numpy. Pure. Invariants: every text is
escaped; nothing refers to another resource; a plot has a bounded number of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

import numpy as np

from magnetar_jobs.analysis.forecast import Floats, Series

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 220, 70, 12, 12, 28
POINTS_MAX = 1500
BARS_MAX = 30
COLOURS = ("#2563eb", "#b45309", "#15803d", "#7c3aed", "#be123c", "#0e7490", "#4d7c0f", "#475569")


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve; a dashed one is a forecast."""

    name: str
    series: Series
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """What lies between two courses."""

    name: str
    low: Series
    high: Series


def lines(curves: Sequence[Curve], bands: Sequence[Band] = (), unit: str = "") -> str:
    """Curves over the time that they cover together."""
    every = [curve.series for curve in curves] + [
        one for band in bands for one in (band.low, band.high)
    ]
    known = [one for one in every if np.isfinite(one.values).any()]
    if not known:
        return "<p>Nothing was measured.</p>"
    axes = _Axes(
        min(one.start_s for one in known),
        max(one.start_s + one.step_s * len(one.values) for one in known),
        max(float(np.nanmax(one.values)) for one in known) or 1.0,
    )
    found = [*_frame(axes, unit)]
    for at, band in enumerate(bands):
        upper, lower = axes.points(band.high), axes.points(band.low)
        path = " ".join([*upper, *reversed(lower)])
        found.append(f'<polygon points="{path}" fill="{COLOURS[at]}" fill-opacity="0.15"/>')
    for at, curve in enumerate(curves):
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        colour = COLOURS[at % len(COLOURS)]
        found += [
            f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.3"{dash}/>'
            for run in axes.runs(curve.series)
        ]
    names = [curve.name for curve in curves]
    return _svg(HEIGHT, found) + _legend(names)


def bars(rows: Iterable[tuple[str, float]]) -> str:
    """The largest values with their names."""
    chosen = [(name, value) for name, value in rows if math.isfinite(value)][:BARS_MAX]
    highest = max((value for _, value in chosen), default=0.0) or 1.0
    found = []
    for at, (name, value) in enumerate(chosen):
        y, width = 4 + 18 * at, (WIDTH - 480) * max(value, 0.0) / highest
        found += [
            f'<text x="0" y="{y + 11}">{escape(_short(name))}</text>',
            f'<rect x="400" y="{y}" width="{width:.1f}" height="13" fill="{COLOURS[0]}"/>',
            f'<text x="{406 + width:.1f}" y="{y + 11}">{escape(amount(value))}</text>',
        ]
    return _svg(18 * len(chosen) + 8, found) if chosen else "<p>None.</p>"


def amount(value: float) -> str:
    """A number in few characters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def when(second: float) -> str:
    """UTC, to the minute."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M")


def _short(name: str) -> str:
    return name if len(name) <= 62 else f"{name[:20]}...{name[-39:]}"


def _svg(height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-size="11" '
        f'font-family="sans-serif" role="img">{"".join(parts)}</svg>'
    )


def _legend(names: Sequence[str]) -> str:
    entries = (
        f'<span style="color:{COLOURS[at % len(COLOURS)]}">&#9644; {escape(name)}</span>'
        for at, name in enumerate(names)
    )
    return f'<p class="legend">{" ".join(entries)}</p>'


@dataclass(frozen=True, slots=True)
class _Axes:
    begin: float
    end: float
    highest: float

    def x(self, second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (second - self.begin) / max(self.end - self.begin, 1)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.highest)

    def runs(self, series: Series) -> list[list[str]]:
        """Points of each stretch without a gap."""
        stride = max(1, len(series.values) // POINTS_MAX)
        found: list[list[str]] = [[]]
        for at in range(0, len(series.values), stride):
            value = float(_mean(series.values[at : at + stride]))
            if math.isfinite(value):
                second = series.start_s + series.step_s * (at + stride / 2)
                found[-1].append(f"{self.x(second):.1f},{self.y(value):.1f}")
            elif found[-1]:
                found.append([])
        return [run for run in found if run]

    def points(self, series: Series) -> list[str]:
        return [point for run in self.runs(series) for point in run]


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _frame(axes: _Axes, unit: str) -> Iterable[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = axes.y(share * axes.highest)
        yield f'<path d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}" stroke="#e5e7eb"/>'
        label = escape(f"{amount(share * axes.highest)}{unit}")
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        second = axes.begin + share * (axes.end - axes.begin)
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        yield (
            f'<text x="{axes.x(second):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">'
            f"{when(second)}</text>"
        )
