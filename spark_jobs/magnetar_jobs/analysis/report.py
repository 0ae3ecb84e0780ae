"""The report of a run, for people.

Owns: `report`, one HTML page. Imports: numpy, balance.advice, siblings. Pure. Invariants: names from
the cluster are escaped; the page refers to no other resource; tables have at most `ROWS_MAX` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from magnetar.amounts import size_text
from magnetar.balance.advice import BYTES, CPU, MESSAGES, LoadAdvice, LoadForecast, TopicAdvice
from magnetar_jobs.analysis.forecast import Series
from magnetar_jobs.analysis.measured import Measured
from magnetar_jobs.analysis.plots import Band, Curve, amount, bars, lines, when
from magnetar_jobs.analysis.profiles import concentration

ROWS_MAX = 50
BROKERS_SHOWN_MAX = 8
TITLES = {
    CPU: ("CPU of all brokers", " cores"),
    MESSAGES: ("Messages in and out per second", ""),
    BYTES: ("Bytes in and out per second", ""),
}
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#111827}
table{border-collapse:collapse;margin:.5em 0;font-size:13px}
td,th{text-align:left;padding:.2em .8em .2em 0;border-bottom:1px solid #e5e7eb;word-break:break-all}
h1{font-size:22px}h2{font-size:17px;margin-top:2em}.legend span{margin-right:1.2em}
"""


def report(measured: Measured, advice: LoadAdvice) -> str:
    """The whole page."""
    body = [
        "<h1>Load analytics</h1>",
        _facts(measured, advice),
        *_forecasts(measured, advice),
        *_brokers(measured),
        *_bundles(measured),
        *_advice(advice),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Load analytics</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _facts(measured: Measured, advice: LoadAdvice) -> str:
    rows = [
        ("history", f"{when(measured.from_ms / 1000)} to {when(measured.to_ms / 1000)} UTC"),
        ("samples", f"{measured.samples}; {measured.damaged} damaged lines were left out"),
        ("brokers, bundles", f"{len(measured.brokers)}, {len(measured.bundles)}"),
        ("load now", f"{amount(measured.load)} messages/s as the planner weighs them"),
        ("made", f"{when(advice.made_ms / 1000)} UTC by {advice.job}, run {advice.run}"),
        ("advice is valid until", f"{when(advice.valid_until_ms / 1000)} UTC"),
    ]
    return _table((), rows)


def _forecasts(measured: Measured, advice: LoadAdvice) -> Iterable[str]:
    foretold = {found.measure: found for found in advice.forecasts}
    for measure, (title, unit) in TITLES.items():
        series = measured.totals.get(measure)
        if series is None:
            continue
        yield f"<h2>{title}</h2>"
        curves, bands = [Curve("measured", series)], []
        if measure in foretold:
            made = foretold[measure]
            middle = made.values[min(1, len(made.values) - 1)]
            curves.append(Curve("forecast", _course(made, middle), dashed=True))
            bands.append(Band("", _course(made, made.values[0]), _course(made, made.values[-1])))
        yield lines(curves, bands, unit)
        yield _foretold(foretold.get(measure), unit)


def _course(made: LoadForecast, values: Sequence[float]) -> Series:
    return Series(made.from_ms / 1000, made.step_ms / 1000, np.asarray(values, dtype=np.float64))


def _foretold(made: LoadForecast | None, unit: str) -> str:
    if made is None:
        return "<p>Too little history for a forecast.</p>"
    highest = max(made.values[-1])
    at = made.from_ms / 1000 + made.step_ms / 1000 * made.values[-1].index(highest)
    return (
        f"<p>With a probability of {made.quantiles[-1]:.0%} at most {amount(highest)}{unit}, "
        f"about {when(at)} UTC.</p>"
    )


def _brokers(measured: Measured) -> Iterable[str]:
    yield "<h2>Brokers</h2>"
    shown = sorted(measured.brokers, key=lambda found: -_last(found.load))[:BROKERS_SHOWN_MAX]
    yield lines([Curve(found.name, found.load) for found in shown])
    yield _table(
        ("broker", "load now", "CPU", "of", "memory"),
        [
            (
                found.name,
                amount(_last(found.load)),
                amount(_last(found.cpu)),
                amount(found.cpu_limit),
                f"{found.memory_share:.0%}",
            )
            for found in measured.brokers[:ROWS_MAX]
        ],
    )


def _last(series: Series) -> float:
    known = series.values[np.isfinite(series.values)]
    return float(known[-1]) if len(known) else 0.0


def _bundles(measured: Measured) -> Iterable[str]:
    loads = np.asarray([bundle.now for bundle in measured.bundles], dtype=np.float64)
    yield f"<h2>Bundles</h2><p>Concentration (Gini): {concentration(loads):.2f}.</p>"
    yield bars((bundle.name, bundle.now) for bundle in measured.bundles)
    yield _table(
        ("bundle", "kind", "now", "mean", "p95", "highest", "daily", "growth/day", "missing"),
        [
            (
                bundle.name,
                bundle.load.kind,
                amount(bundle.now),
                amount(bundle.load.mean),
                amount(bundle.load.p95),
                amount(bundle.load.highest),
                f"{bundle.load.daily:.0%}",
                f"{bundle.load.growth:+.1%}",
                f"{bundle.load.missing:.0%}",
            )
            for bundle in measured.bundles[:ROWS_MAX]
        ],
    )


def _advice(advice: LoadAdvice) -> Iterable[str]:
    yield "<h2>Where hot bundles are to be cut</h2>"
    yield _table(
        ("bundle", "boundaries", "largest part, of a mean broker"),
        [
            (split.bundle, " ".join(f"0x{at:08x}" for at in split.boundaries), f"{split.share:.0%}")
            for split in advice.splits[:ROWS_MAX]
        ],
    )
    yield "<h2>Neighbours that were cold throughout</h2>"
    yield _table(
        ("bundles", "highest load together"),
        [(" ".join(merge.bundles), amount(merge.peak)) for merge in advice.merges[:ROWS_MAX]],
    )
    yield "<h2>Hot topics</h2>"
    yield _table(
        ("topic", "load", "of a mean broker", "partitions", "note"),
        [
            (one.topic, amount(one.load), f"{one.share:.0%}", one.partitions or "", one.note)
            for one in advice.hot_topics[:ROWS_MAX]
        ],
    )
    yield "<h2>Topics to compact</h2>"
    yield _table(
        ("topic", "bytes that it would free", "not compacted yet", "known by"),
        [_compaction(one) for one in advice.compactions[:ROWS_MAX]],
    )


def _compaction(one: TopicAdvice) -> tuple[str, ...]:
    return one.topic, size_text(one.bytes), f"{one.share:.0%}", one.note


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    lines_ = (
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(lines_)}</table>"
