"""`magnetar job`.

Owns: list, logs and explain of DataJobs, and reports of load analytics. Imports: typer, kubernetes,
screen, rest, local_jobs. Invariants: these change nothing; what is shown of a job is what the
operator has written into the status; reports come from the cluster's brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from magnetar.amounts import size_text
from magnetar.cli.failures import CommandFailed
from magnetar.cli.kubernetes import Context, Kubernetes, Manifest, Namespace
from magnetar.cli.local_jobs import LOCAL_JOB, run
from magnetar.cli.screen import OutputFormat, Screen, since_text
from magnetar.cli.session import NoColor, Output, Session, connected, group

Name = Annotated[str, typer.Argument(help="Name of the DataJob.")]
LINES = 200
REPORTS = "/magnetar/v1/load-analytics/reports"

jobs = group("Spark jobs: on this machine, and those of Kubernetes.")
jobs.add_typer(run, name="run")


@jobs.command("list")
def list_(
    namespace: Namespace = "",
    context: Context = "",
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """DataJobs: what they do, how far they are, and when they run."""
    from magnetar_operator.kube.kinds import DATA_JOB

    found = Kubernetes(namespace, context).list(DATA_JOB)
    rows = [_row(item) for item in sorted(found, key=lambda item: str(item["metadata"]["name"]))]
    screen = Screen(output, no_color)
    columns = ("job", "type", "state", "progress", "last run", "next run", "reason")
    screen.show(
        rows,
        lambda: screen.table(
            columns, [[row[name.replace(" ", "_")] or "-" for name in columns] for row in rows]
        ),
    )


@jobs.command()
def logs(
    name: Name,
    lines: Annotated[
        int, typer.Option("--lines", min=1, max=100_000, help="Last lines of the log.")
    ] = LINES,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """The log of a job's latest driver."""
    kubernetes = Kubernetes(namespace, context)
    pod = _job(kubernetes, name).get("status", {}).get("driverPod", "")
    if not pod:
        raise CommandFailed(
            f"datajob/{name} has had no driver yet", f"magnetar job explain {name} says why"
        )
    Screen().line(kubernetes.logs(pod, {"tailLines": lines}).rstrip("\n"))


@jobs.command()
def explain(
    name: Name,
    namespace: Namespace = "",
    context: Context = "",
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """What a job does now, why, and what to do."""
    item = _job(Kubernetes(namespace, context), name)
    screen = Screen(output, no_color)
    found = explanation(item)
    history = found["history"]

    def render() -> None:
        screen.facts((key, value) for key, value in found.items() if value and key != "history")
        if history:
            screen.line()
            screen.table(
                ("run", "state", "attempts", "started", "finished", "message"),
                [
                    [
                        entry.get(key) or "-"
                        for key in (
                            "run", "state", "attempts", "startedAt", "finishedAt", "message",
                        )
                    ]
                    for entry in history
                ],
            )  # fmt: skip

    screen.show(found, render)


@jobs.command()
@connected
def report(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            help=f"Name of a LoadAnalytics job; {LOCAL_JOB} = run on a machine by hand."
        ),
    ],
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the newest page there; else only list them."),
    ] = None,
) -> None:
    """Reports of load analytics that the cluster keeps, newest first."""
    found = session.rest.get(REPORTS, {"job": name})
    if not found:
        raise CommandFailed(
            f"no report of a job {name} is kept", "magnetar job explain NAME says how its runs went"
        )
    if save is not None:
        save.write_text(session.rest.get(f"{REPORTS}/{quote(found[0]['id'], safe='')}"))

    def render() -> None:
        session.screen.table(
            ("id", "ago", "job", "size"),
            [
                (row["id"], since_text(row["at_ms"]), row["job"], size_text(row["bytes"]))
                for row in found
            ],
        )
        session.screen.line(
            f"the newest is in {save}" if save is not None else "--save FILE.html writes the newest"
        )

    session.screen.show(found, render)


def explanation(item: Manifest) -> dict[str, Any]:
    """The facts about a job, and the sentence of its reason."""
    status = item.get("status", {})
    ready = _ready(item)
    latest: Mapping[str, Any] = next(iter(status.get("history", [])), {})
    failures = latest.get("failures", {})
    return {
        "job": item["metadata"]["name"],
        "state": status.get("state", ""),
        "why": ready.get("message", "the operator has not reconciled it yet"),
        "remedy": _remedy(ready.get("reason", "")),
        "run": status.get("run", ""),
        "progress": _progress(status),
        "failures": ", ".join(f"{kind}: {count}" for kind, count in sorted(failures.items())),
        "last_error": latest.get("lastError", ""),
        "driver": status.get("driverPod", ""),
        "schedule": status.get("schedule", ""),
        "next_run": status.get("nextScheduleTime", ""),
        "last_success": status.get("lastSuccessfulTime", ""),
        "history": status.get("history", []),
    }


def _job(kubernetes: Kubernetes, name: str) -> Manifest:
    from magnetar_operator.kube.kinds import DATA_JOB

    found = kubernetes.get(DATA_JOB, name)
    if found is None:
        raise CommandFailed(
            f"datajob/{name} does not exist in this namespace",
            "magnetar job list shows which there are; --namespace chooses another one",
        )
    return found


def _row(item: Manifest) -> dict[str, str]:
    status = item.get("status", {})
    latest: Mapping[str, Any] = next(iter(status.get("history", [])), {})
    return {
        "job": item["metadata"]["name"],
        "type": item["spec"].get("type", "Compaction"),
        "state": status.get("state", ""),
        "progress": _progress(status),
        "last_run": latest.get("startedAt", ""),
        "next_run": status.get("nextScheduleTime", ""),
        "reason": _ready(item).get("reason", ""),
    }


def _progress(status: Mapping[str, Any]) -> str:
    """Such as `Reading 31%, 60 s left`; "" while no driver is at work."""
    found = status.get("progress", {})
    left = found.get("secondsLeft")
    done = " ".join(filter(None, (found.get("phase", ""), found.get("complete", ""))))
    return f"{done}, {left} s left" if done and left is not None else done


def _ready(item: Manifest) -> Mapping[str, str]:
    conditions = item.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == "Ready"), {})


def _remedy(reason: str) -> str:
    """What the operator says that people do; "" for a reason of another version."""
    from magnetar_operator.conditions import Reason

    return Reason(reason).remedy if reason in {known.value for known in Reason} else ""
