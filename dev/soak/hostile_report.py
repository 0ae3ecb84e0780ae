"""What the soak with a hostile client prints.

Owns: latencies by phase side by side, what each kind of attack did, stops of event loops, logged
errors. Imports: paced (values), report.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.soak.paced import Sample
from dev.soak.report import percentile

SHARES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
SHOWN_MAX = 25
STOP_SHOWN_S = 0.25
FRAMES_SHOWN = 3
UNFORESEEN = ("Exception", "Task exception", "Future exception", "Traceback", "Fatal")
"""How lines begin that Python itself, or a library, writes about an error that nobody caught."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of the run; moments by the monotonic clock."""

    hostile: bool
    began: float
    ended: float
    attack: str = ""
    """The only one of it, where a phase has one."""

    def holds(self, at: float) -> bool:
        return self.began <= at < self.ended


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of one kind in one kind of phase, in seconds."""

    count: int
    values: dict[str, float]


def measured(samples: Sequence[Sample], phases: Sequence[Phase], hostile: bool) -> Measured:
    """Percentiles of what was sent in phases with the hostile client, or without it."""
    mine = [phase for phase in phases if phase.hostile == hostile]
    seconds = [
        sample.seconds for sample in samples if any(phase.holds(sample.at) for phase in mine)
    ]
    return Measured(len(seconds), {name: percentile(seconds, share) for name, share in SHARES})


def latency_table(kinds: Mapping[str, Sequence[Sample]], phases: Sequence[Phase]) -> list[str]:
    """Per kind of latency: calm, hostile, ratio."""
    lines = [
        f"{'latency, ms':<22}"
        + "".join(f"{name + ' calm':>12}{'hostile':>10}{'ratio':>8}" for name, _ in SHARES)
    ]
    for kind, samples in kinds.items():
        calm, hostile = measured(samples, phases, False), measured(samples, phases, True)
        line = f"{kind:<22}"
        for name, _ in SHARES:
            quiet, loud = calm.values[name], hostile.values[name]
            ratio = f"{loud / quiet:.1f}" if quiet else "-"
            line += f"{quiet * 1000:>12.1f}{loud * 1000:>10.1f}{ratio:>8}"
        lines.append(f"{line}   of {calm.count} and {hostile.count}")
    return lines


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def attack_table(
    turns: Sequence[dict[str, Any]],
    stops: dict[str, list[dict[str, Any]]],
    deliveries: Sequence[Sample],
) -> list[str]:
    """Per kind of attack, worst first: how often, the longest stop of a broker's loop while it
    ran, the worst delivery that began then."""
    rows = []
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn in turns:
        by_kind[turn["attack"]].append(turn)
    for kind, mine in by_kind.items():
        worst, where = 0.0, ""
        for turn in mine:
            for name, of_server in stops.items():
                for stop in of_server:
                    if (
                        turn["began"] - 0.1 <= stop["began"] <= turn["ended"]
                        and stop["cpu_s"] > worst
                    ):
                        worst, where = (
                            stop["cpu_s"],
                            f"{name}, attack {turn['number']}: "
                            f"{' < '.join(stop['where'][::-1][:FRAMES_SHOWN])}",
                        )
        late = max(
            (
                sample.seconds
                for sample in deliveries
                for turn in mine
                if turn["began"] <= sample.at <= turn["ended"]
            ),
            default=0.0,
        )
        rows.append((worst, kind, len(mine), late, where))
    lines = [f"{'attack':<24}{'turns':>6}{'stop s':>8}{'late s':>8}  where the loop was"]
    lines += [
        f"{kind:<24}{count:>6}{worst:>8.2f}{late:>8.2f}  {where}"
        for worst, kind, count, late, where in sorted(rows, reverse=True)
    ]
    return lines


def stop_lines(stops: dict[str, list[dict[str, Any]]], phases: Sequence[Phase]) -> list[str]:
    """Per process: its longest stops, by CPU time, in calm and hostile phases."""
    lines = []
    for name, of_server in stops.items():
        spans = {
            hostile: [
                stop
                for stop in of_server
                if any(p.hostile == hostile and p.holds(stop["began"]) for p in phases)
            ]
            for hostile in (False, True)
        }
        text = "; ".join(
            f"{'hostile' if hostile else 'calm'}: {len(found)} over 0.1 s, longest "
            f"{max((s['seconds'] for s in found), default=0.0):.2f} s"
            f" (CPU {max((s['cpu_s'] for s in found), default=0.0):.2f} s)"
            for hostile, found in spans.items()
        )
        lines.append(f"loop of {name:<18} {text}")
    return lines


def logged_errors(path: Path) -> Counter[str]:
    """Errors in a server's log that nobody foresaw, by event and first words: level error, and
    what nobody caught."""
    found: Counter[str] = Counter()
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            if line.startswith(UNFORESEEN):
                found[line[:120]] += 1
            continue
        if event.get("level") in ("error", "critical") or "exception" in event:
            last = str(event.get("exception", "")).strip().splitlines()[-1:] or [
                str(event.get("error", ""))
            ]
            found[f"{event.get('event')}: {last[0][:160]}"] += 1
    return found
