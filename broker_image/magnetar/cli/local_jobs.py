"""`magnetar job run`.

Owns: a Spark job on this machine: its driver's process, its progress and its result. Imports:
typer, rest, screen; rich for a terminal's progress bar. Invariants: the driver works in a process
of its own, which ends with the command; its logs are shown only with --verbose, or their end when
it has failed; whatever happens, readers see the old view of a topic or the new one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Annotated, Any

import typer

from magnetar.cli.access import Access
from magnetar.cli.failures import USAGE, CommandFailed, WrongUsage
from magnetar.cli.names import namespace_of, topic_of
from magnetar.cli.screen import Screen
from magnetar.cli.session import Session, connected, group
from magnetar.clock import SystemClock
from magnetar.job_drivers import (
    COMPACTION,
    DRIVERS,
    LOAD_ANALYTICS,
    LOG_COMPACTION,
    RETAIN_KEYLESS,
    load_analytics_options,
    topic_options,
)

LOCAL_JOB = "command-line"
"""The name of what is run by hand."""
LAST_LINES = 5
STOP_S = 20.0
Update = Callable[[Mapping[str, Any]], None]

run = group("Run a job on this machine, without Kubernetes.")


Master = Annotated[
    str, typer.Option("--master", help="Where Spark works: local[N] = N threads of this machine.")
]
VolumeOption = Annotated[
    str,
    typer.Option(
        "--volume", envvar="MAGNETAR_VOLUME", help="The cluster's storage; default: as it says."
    ),
]
Store = Annotated[
    str, typer.Option("--store", help="etcd://host:port of the cluster; default: through --url.")
]
StoreTls = Annotated[
    str, typer.Option("--store-tls", help="Directory with ca.crt, tls.crt, tls.key for etcd.")
]
TopicArgument = Annotated[
    str, typer.Argument(help="One topic; a partitioned one is all of its partitions.")
]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", help="tenant/namespace instead: all its topics.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what the driver and Spark log.")]


def _topic_options(topic: str, namespace: str) -> list[str]:
    """Raises WrongUsage."""
    if bool(topic) == bool(namespace):
        raise WrongUsage("give a topic, or --namespace: one of the two")
    return topic_options(
        str(topic_of(topic)) if topic else "", str(namespace_of(namespace)) if namespace else ""
    )


@run.command()
@connected
def compaction(
    session: Session,
    topic: TopicArgument = "",
    namespace: NamespaceOption = "",
    master: Master = "local[2]",
    volume: VolumeOption = "",
    store: Store = "",
    store_tls: StoreTls = "",
    retain_keyless: Annotated[
        bool, typer.Option("--retain-keyless", help="Keep messages without a key.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Keep the latest message per key of a topic, for consumers that read compacted."""
    options = _topic_options(topic, namespace)
    if retain_keyless:
        options.append(RETAIN_KEYLESS)
    place = place_arguments(session, master, volume, store, store_tls)
    result = driven(COMPACTION, [*options, *place], session, verbose=verbose)
    session.screen.show(result, lambda: _show_compaction(session.screen, result))


@run.command("transaction-log-compaction")
@connected
def transaction_log_compaction(
    session: Session,
    topic: TopicArgument = "",
    namespace: NamespaceOption = "",
    master: Master = "local[2]",
    volume: VolumeOption = "",
    store: Store = "",
    store_tls: StoreTls = "",
    verbose: Verbose = False,
) -> None:
    """Write what transactions have committed in the order of commits, and drop what was aborted."""
    options = _topic_options(topic, namespace)
    place = place_arguments(session, master, volume, store, store_tls)
    result = driven(LOG_COMPACTION, [*options, *place], session, verbose=verbose)
    session.screen.show(result, lambda: _show_log_compaction(session.screen, result))


@run.command("load-analytics")
@connected
def load_analytics(
    session: Session,
    days: Annotated[
        int, typer.Option("--days", min=1, max=90, help="Days of history that are read.")
    ] = 14,
    window_seconds: Annotated[
        int, typer.Option("--window-seconds", min=60, max=86400, help="Width of a window.")
    ] = 600,
    valid_hours: Annotated[
        int, typer.Option("--valid-hours", min=1, max=168, help="How long the advice holds.")
    ] = 24,
    sample_topics: Annotated[
        int, typer.Option("--sample-topics", min=0, max=50, help="Topics whose keys are looked at.")
    ] = 5,
    master: Master = "local[2]",
    volume: VolumeOption = "",
    store: Store = "",
    store_tls: StoreTls = "",
    verbose: Verbose = False,
) -> None:
    """Advice on splits, merges and the number of brokers, from the history of their load."""
    options = load_analytics_options(days, window_seconds, valid_hours, sample_topics)
    place = place_arguments(session, master, volume, store, store_tls)
    result = driven(LOAD_ANALYTICS, [*options, *place], session, verbose=verbose)
    session.screen.show(result, lambda: _show_advice(session.screen, result))


def place_arguments(
    session: Session, master: str, volume: str, store: str, store_tls: str
) -> list[str]:
    """What every driver is given: where storage and metadata are, and its run's name. Raises
    WrongUsage."""
    found = volume or str(session.rest.get("/magnetar/v1/status").get("volume") or "")
    if not found:
        raise WrongUsage("the cluster does not say where its storage is", "give --volume")
    return [
        "--volume", found,
        "--job", LOCAL_JOB,
        "--run", f"{SystemClock().wall_ms()}-{os.getpid()}",
        "--master", master,
        *(["--store", store, "--store-tls", store_tls] if store else ["--broker-url", session.rest.urls[0]]),
    ]  # fmt: skip


def _show_advice(screen: Screen, result: Mapping[str, Any]) -> None:
    names = ("samples", "damaged", "brokers", "bundles", "splits", "merges")
    more = ("hot_topics", "compactions", "forecasts")
    _show(screen, result, {name.replace("_", " "): name for name in (*names, *more)})
    screen.line(f"its report: magnetar job report {LOCAL_JOB}")


def _show_compaction(screen: Screen, result: Mapping[str, Any]) -> None:
    if not result["topics"]:
        screen.line("nothing new: the view has everything that can be compacted")
    _show(
        screen,
        result,
        {
            "topics": "topics",
            "messages read": "messages_in",
            "keys": "keys",
            "entries written": "entries_out",
            "bytes read": "bytes_in",
            "bytes written": "bytes_out",
            "up to": "horizon",
        }
        if result["topics"]
        else {},
    )


def _show_log_compaction(screen: Screen, result: Mapping[str, Any]) -> None:
    if not result["bundles"]:
        screen.line("nothing new: no sealed log file has anything that can move")
    _show(
        screen,
        result,
        {
            "topics": "topics",
            "log files taken off": "files",
            "entries written": "entries_out",
            "segments": "segments",
            "bytes read": "bytes_in",
            "bytes written": "bytes_out",
            "bytes dropped": "bytes_void",
        }
        if result["bundles"]
        else {},
    )


def _show(screen: Screen, result: Mapping[str, Any], facts: Mapping[str, str]) -> None:
    """Fields of a result by what they are called, and what else the driver says."""
    if facts:
        screen.facts([(called, result[field]) for called, field in facts.items()])
    if result.get("message"):
        screen.note(str(result["message"]))


def driven(
    type_: str, arguments: Sequence[str], session: Session, *, verbose: bool = False
) -> dict[str, Any]:
    """Run the driver of a type of job to its end; its result. Raises WrongUsage, CommandFailed."""
    for module in ("pyspark", DRIVERS[type_].partition(".")[0]):
        if importlib.util.find_spec(module) is None:
            raise WrongUsage(f"{module} is not installed", "pip install 'magnetar[spark]'")
    command = [sys.executable, "-m", DRIVERS[type_], "--report", *arguments]
    with (
        tempfile.TemporaryFile() as logs,
        _environment(session.access) as environment,
        _shown(session.screen) as update,
    ):
        driver = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=None if verbose else logs,
            env=environment,
            text=True,
        )
        try:
            said = _read(driver, update)
            status = driver.wait()
        finally:
            if driver.poll() is None:
                driver.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(STOP_S)
                driver.kill()
        if status == 0 and "result" in said:
            result: dict[str, Any] = said["result"]
            return result
        error = str(said.get("error") or f"the driver ended with status {status}: {_end_of(logs)}")
        raise WrongUsage(error) if status == USAGE else CommandFailed(error)


@contextlib.contextmanager
def _environment(access: Access) -> Iterator[dict[str, str]]:
    """The driver asks with the token that this command was given, from a file that only its user
    may read. Raises WrongUsage."""
    if access.user:
        raise WrongUsage(
            f"--user: {access.user!r}: jobs ask servers with a token only",
            "give --token-file instead, with a token of the same role",
        )
    with tempfile.NamedTemporaryFile("w") as file:
        named = access.token_file
        if access.token:
            file.write(access.token)
            file.flush()
            named = file.name
        yield {**os.environ, **({"MAGNETAR_TOKEN_FILE": named} if named else {})}


def _read(driver: subprocess.Popen[str], update: Update) -> dict[str, Any]:
    """What the driver reports besides its progress, up to its end."""
    said: dict[str, Any] = {}
    assert driver.stdout is not None
    for line in driver.stdout:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # a library printed it
        if isinstance(found, dict):
            if isinstance(progress := found.pop("progress", None), dict):
                update(progress)
            said |= found
    return said


def _end_of(logs: IO[bytes]) -> str:
    logs.seek(0)
    lines = logs.read().decode(errors="replace").splitlines()
    return " ".join(line.strip() for line in lines[-LAST_LINES:])


@contextlib.contextmanager
def _shown(screen: Screen) -> Iterator[Update]:
    """Progress on standard error: a bar on a terminal, a line for each phase elsewhere."""
    if not (screen.terminal and sys.stderr.isatty()):
        phase = ""

        def note(progress: Mapping[str, Any]) -> None:
            nonlocal phase
            if progress["phase"] != phase:
                phase = progress["phase"]
                screen.note(f"{phase}, {progress['percent'] or 0} % done")

        yield note
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Starting", total=100, left="")

        def draw(progress: Mapping[str, Any]) -> None:
            left = progress["eta_s"]
            bar.update(
                task,
                completed=progress["percent"] or 0,
                description=progress["phase"],
                left="" if left is None else f"about {left} s left",
            )

        yield draw
