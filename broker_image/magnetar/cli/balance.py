"""`magnetar balance`.

Owns: plan, history, show and simulate of load balancing. Imports: typer, rest, screen; the package
balance once something is simulated. Invariants: nothing here moves a bundle; `simulate` asks no
server, and without `--set` says whether the same outcome came out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnetar.cli.failures import REFUSED, WrongUsage
from magnetar.cli.names import pairs_of
from magnetar.cli.screen import OutputFormat, Screen, since_text
from magnetar.cli.session import NoColor, Output, Session, connected, group
from magnetar.errors import StoreError

if TYPE_CHECKING:
    from magnetar.balance.cluster import Outcome
    from magnetar.balance.decision import Decision, Request

PATH = "/magnetar/v1/balance"
MOVES_SHOWN = 20
RECORD_BYTES_MAX = 64 << 20

balance = group("What load balancing decides, decided, and would decide.")


@balance.command()
@connected
def plan(
    session: Session,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the plan's record there, for simulate.")
    ] = None,
) -> None:
    """What the leader would do now; moves nothing."""
    found = session.rest.get(f"{PATH}/plan", {"inputs": True} if save is not None else None)
    if save is not None:
        save.write_text(json.dumps(found.pop("record")))

    def render() -> None:
        screen = session.screen
        screen.line(
            f"{found['strategy']}, imbalance {found['imbalance']:.2f} (max/mean): "
            f"{_counted(len(found['moves']), 'move')}{_because(found['reason'])}"
        )
        screen.table(
            ("broker", "load", "capacity"),
            [(name, row["load"], row["capacity"]) for name, row in found["brokers"].items()],
        )
        _moves(screen, found["moves"], found["notes"])
        if save is not None:
            screen.line(f"\nits record is in {save}: `magnetar balance simulate {save}`")

    session.screen.show(found, render)


@balance.command()
@connected
def history(
    session: Session,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=100, help="Decisions shown.")
    ] = 20,
    before: Annotated[str, typer.Option("--before", help="Only those before this id.")] = "",
) -> None:
    """Decisions of the last day, newest first."""
    found = session.rest.get(f"{PATH}/history", {"count": count, "before": before})
    session.screen.show(
        found,
        lambda: session.screen.table(
            ("id", "ago", "decided", "replayable", "reason"),
            [
                (
                    row["id"],
                    since_text(row["at_ms"]),
                    _decided_text(row),
                    row["replayable"],
                    row["reason"] or _first_reason(row),
                )
                for row in found
            ],
        ),
    )


@balance.command()
@connected
def show(
    session: Session,
    decision: Annotated[str, typer.Argument(metavar="ID", help="As `balance history` shows it.")],
    save: Annotated[
        Path | None, typer.Option("--save", help="Write its record there, for simulate.")
    ] = None,
) -> None:
    """One decision: its moves, splits or merges, and what was passed over."""
    found = session.rest.get(f"{PATH}/decisions/{decision}")
    if save is not None:
        save.write_text(json.dumps(found["record"]))

    def render() -> None:
        screen = session.screen
        screen.line(
            f"{found['kind']}, {since_text(found['at_ms'])} ago: "
            f"{_decided_text(found)}{_because(found['reason'])}"
        )
        outcome = found["record"]["outcome"]
        _moves(screen, outcome["moves"], found["notes"])
        _reshaped(screen, "bundle that is split", outcome["splits"])
        _reshaped(screen, "bundles that become one", outcome["merges"])
        if not found["replayable"]:
            screen.line("its inputs were too large to be kept: it cannot be simulated")

    session.screen.show(found, render)


@balance.command()
def simulate(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A record that `plan` or `show` saved.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="name=value of another setting; may be repeated."),
    ] = None,
    cycles: Annotated[
        int,
        typer.Option(
            "--cycles", min=1, max=100, help="With --set: decide so often, until bundles move."
        ),
    ] = 1,
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Decide again from a record, offline, as it was or by other settings.

    Exit 1 if a record without --set leads to another outcome than it says.
    """
    from magnetar.balance.decision import asked, replay

    decision, changed = _record(path), pairs_of(settings, "--set")
    screen = Screen(output, no_color)
    try:
        request = asked(decision)
        if changed:
            request = replace(request, settings=request.settings | changed)
            outcome, same = _decided(request, cycles), None
        else:
            outcome = replay(decision)
            same = outcome == decision.outcome
    except StoreError as error:
        raise WrongUsage(
            str(error), "`magnetar balance history` shows which are replayable"
        ) from error
    found = _simulated(request, outcome) | {"same": same}
    screen.show(found, lambda: _render(screen, found))
    if same is False:
        raise typer.Exit(REFUSED)


def _record(path: Path) -> Decision:
    """The decision in a file: a record, or an answer of REST that has one. Raises WrongUsage."""
    from magnetar.balance.decision import Decision

    hint = "save one by `magnetar balance plan --save FILE` or `balance show ID --save FILE`"
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            raise WrongUsage(f"{path} is larger than any record", hint)
        found = json.loads(path.read_text())
        record = found.get("record", found) if isinstance(found, dict) else found
        return Decision.decode(json.dumps(record).encode())
    except (OSError, ValueError, StoreError) as error:
        raise WrongUsage(f"{path} is not the record of a decision: {error}", hint) from error


def _decided(request: Request, cycles: int) -> Outcome:
    """The first outcome that moves something, of so many cycles on the same load: some strategies
    act only once a condition has lasted."""
    from magnetar.balance.decision import decide

    outcome = decide(request)
    for _ in range(cycles - 1):
        if outcome.moves:
            break
        request = replace(request, memory=outcome.memory)
        outcome = decide(request)
    return outcome


def _simulated(request: Request, outcome: Outcome) -> dict[str, Any]:
    """An outcome, and the loads that it leads to if every bundle keeps its own."""
    from magnetar.balance.planner import filled

    before = request.situation()
    goes = {move.bundle: move.destination for move in outcome.moves}
    bundles = tuple(
        replace(bundle, broker=goes.get(bundle.name, bundle.broker))
        for bundle in before.cluster.bundles
    )
    loads = filled(before).loads
    moved = filled(replace(before, cluster=replace(before.cluster, bundles=bundles)))
    totals = dict.fromkeys(moved.totals, 0.0)
    for bundle in bundles:
        if bundle.broker in totals:
            totals[bundle.broker] += loads[bundle.name]
    after = replace(moved, totals=totals)
    return {
        "kind": request.kind,
        "strategy": before.settings.shedder,
        "reason": outcome.reason,
        "notes": list(outcome.notes),
        **{
            name: [asdict(found) for found in getattr(outcome, name)]
            for name in ("moves", "splits", "merges")
        },
        "imbalance": {
            "before": round(filled(before).imbalance, 4),
            "after": round(after.imbalance, 4),
        },
        "brokers": {
            name: {"before": round(total, 1), "after": round(totals[name], 1)}
            for name, total in filled(before).totals.items()
        },
    }


def _render(screen: Screen, found: Mapping[str, Any]) -> None:
    imbalance = found["imbalance"]
    screen.line(
        f"{found['strategy']}: {_counted(len(found['moves']), 'move')}{_because(found['reason'])}"
    )
    screen.line(f"imbalance (max/mean) {imbalance['before']:.2f}, then {imbalance['after']:.2f}")
    screen.table(
        ("broker", "load", "then"),
        [(name, row["before"], row["after"]) for name, row in found["brokers"].items()],
    )
    _moves(screen, found["moves"], found["notes"])
    if found["same"] is not None:
        screen.line(
            "\nthe record says the same" if found["same"] else "\nthe record says something else"
        )


def _moves(screen: Screen, moves: list[Mapping[str, str]], notes: Iterable[str]) -> None:
    if moves:
        screen.line()
        screen.table(
            ("bundle", "from", "to", "reason"),
            [
                (row["bundle"], row["source"] or "-", row["destination"] or "-", row["reason"])
                for row in moves[:MOVES_SHOWN]
            ],
        )
        if len(moves) > MOVES_SHOWN:
            screen.line(f"... and {len(moves) - MOVES_SHOWN} more; --output json has them")
    for sentence in notes:
        screen.line(f"note: {sentence}")


def _reshaped(screen: Screen, title: str, found: list[Mapping[str, Any]]) -> None:
    """Splits or merges with their reasons."""
    if found:
        screen.line()
        screen.table(
            (title, "reason"),
            [(row.get("bundle") or " ".join(row["bundles"]), row["reason"]) for row in found],
        )


def _decided_text(row: Mapping[str, Any]) -> str:
    """How much a decision changes."""
    found = [
        _counted(row[f"{what}s_total"], what)
        for what in ("move", "split", "merge")
        if row[f"{what}s_total"]
    ]
    return ", ".join(found) or "no moves"


def _first_reason(row: Mapping[str, Any]) -> str:
    """Why it splits or merges the first bundle."""
    return str(next((found["reason"] for found in [*row["splits"], *row["merges"]]), ""))


def _counted(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count or 'no'} {one}s"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
