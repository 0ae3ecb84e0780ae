"""`magnetar txn`.

Owns: list, slow, show and abort of transactions. Imports: typer, rest, screen. Invariant: what is
aborted by force was named by its id, as `list` prints it, or by the role that began it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from magnetar.amounts import age_text
from magnetar.cli.failures import WrongUsage
from magnetar.cli.screen import since_text
from magnetar.cli.session import Session, connected, group

PATH = "/magnetar/v1/transactions"
COLUMNS = ("transaction", "status", "age", "timeout", "owner", "participants", "waiting")
SHOWN_DEFAULT = 100
_ID = re.compile(r"\(?\s*(\d+)\s*[,:]\s*(\d+)\s*\)?")

transactions = group("Transactions: list, slow, show, abort, abort-role.")

Id = Annotated[
    str,
    typer.Argument(
        help="coordinator:sequence, such as 0:3; (0,3) as logs and errors print it will do."
    ),
]
Coordinator = Annotated[
    int | None,
    typer.Option("--coordinator", "-c", min=0, help="Of one coordinator; default: of all."),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many, the oldest first.")
]


@transactions.command("list")
@connected
def list_(session: Session, coordinator: Coordinator = None, limit: Limit = SHOWN_DEFAULT) -> None:
    """Transactions that have not ended everywhere, the oldest first."""
    _show(session, coordinator, 0.0, limit)


@transactions.command()
@connected
def slow(
    session: Session,
    older: Annotated[
        float, typer.Option("--older", min=0.0, help="Begun so many seconds ago, or earlier.")
    ] = 60.0,
    coordinator: Coordinator = None,
    limit: Limit = SHOWN_DEFAULT,
) -> None:
    """Transactions that have been open for long, with whose they are."""
    _show(session, coordinator, older, limit)


@transactions.command()
@connected
def show(session: Session, txn: Id) -> None:
    """A transaction, its participants, and those that have not carried its end out; or how it
    has ended."""
    most, least = _id_of(txn)
    found: dict[str, Any] = session.rest.get(f"{PATH}/{most}/{least}")

    def render() -> None:
        facts = [
            ("transaction", found["txn"]),
            ("status", found["status"]),
            ("owner", found["owner"] or None),
        ]
        if "age_ms" in found:
            facts += [
                ("began", f"{since_text(found['opened_ms'])} ago"),
                ("timeout", age_text(found["timeout_ms"] / 1000)),
            ]
        session.screen.facts(facts)
        waiting = {
            *found.get("waiting_partitions", ()),
            *map(_subscription, found.get("waiting_subscriptions", ())),
        }
        names = [*found.get("partitions", ()), *map(_subscription, found.get("subscriptions", ()))]
        if names:
            session.screen.line()
            decided = found["status"] != "OPEN"
            rows = [
                (name, "-" if not decided else "no" if name in waiting else "yes") for name in names
            ]
            session.screen.table(("participant", "ended"), rows)

    session.screen.show(found, render)


@transactions.command()
@connected
def abort(session: Session, txn: Id) -> None:
    """Abort an open transaction of any role: its messages are never seen, what it
    acknowledged is delivered again."""
    most, least = _id_of(txn)
    session.rest.post(f"/admin/v3/transactions/abortTransaction/{most}/{least}")
    session.screen.done(f"transaction ({most},{least}) aborted", txn=f"({most},{least})")


@transactions.command("abort-role")
@connected
def abort_role(session: Session, role: str) -> None:
    """Abort all open transactions that a role began."""
    aborted, more = 0, True
    while more:
        found = session.rest.post(f"{PATH}/abort", query={"role": role})
        aborted, more = aborted + found["aborted"], found["more"] and found["aborted"]
    session.screen.done(
        f"{aborted} transactions of role {role} aborted", role=role, aborted=aborted
    )


def _show(session: Session, coordinator: int | None, older_s: float, limit: int) -> None:
    found = session.rest.get(
        PATH, {"coordinatorId": coordinator, "older_ms": int(older_s * 1000), "limit": limit}
    )

    def render() -> None:
        session.screen.table(COLUMNS, map(_row, found["transactions"]))
        if found["more"]:
            session.screen.note(
                f"there are more than these {limit}, which are the oldest: ask for more with "
                "--limit, or for older ones"
            )
        for number in found["unreachable"]:
            session.screen.note(
                f"coordinator {number} does not answer: its transactions are not listed"
            )

    session.screen.show(found, render)


def _row(found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        found["txn"],
        found["status"],
        age_text(found["age_ms"] / 1000),
        age_text(found["timeout_ms"] / 1000),
        found["owner"] or "-",
        found["participants"],
        found.get("waiting"),
    )


def _subscription(named: dict[str, str]) -> str:
    return f"{named['topic']} / {named['subscription']}"


def _id_of(text: str) -> tuple[int, int]:
    """The two numbers of a transaction's id. Raises WrongUsage."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        raise WrongUsage(
            f"transaction: {text!r} is not an id", "write coordinator:sequence, such as 0:3"
        )
    return int(match[1]), int(match[2])
