"""`python -m magnetar_jobs.script`: a PySpark script of a user's own.

Owns: the command line, and the frame around the script: record, session, progress. Imports: driver,
session, source, runpy. Invariants: the script finds a session whose data source knows the cluster,
and where store and volume are in its environment; it succeeded if it ended without an exception and
without an exit code; a run that succeeded is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from magnetar.clock import Clock, SystemClock
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.metadata.store import MetadataStore
from magnetar_jobs.driver import (
    Done,
    add_arguments,
    exit_code,
    recorded,
    session_of,
    session_settings,
)
from magnetar_jobs.progress import WORKING, Publisher
from magnetar_jobs.reporting import Report
from magnetar_jobs.source import register_source
from magnetar_jobs.topic_source import MagnetarDataSource

KIND = "pyspark"
STORE, STORE_TLS, VOLUME = "MAGNETAR_STORE", "MAGNETAR_STORE_TLS", "MAGNETAR_VOLUME"
"""Variables that say to the script where the cluster's metadata and messages are."""


class ScriptFailed(MagnetarError):
    """The script ended with an exit code that is not 0."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="magnetar_jobs.script", description="Run a PySpark script with a session of its own."
    )
    parser.add_argument("--script", type=Path, required=True, help="the script, a file")
    add_arguments(parser)
    parser.add_argument("arguments", nargs="*", help="what the script gets, after --")
    return parser.parse_args(arguments)


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run it as Python does. Raises what it raises, and ScriptFailed."""
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptFailed(f"the script ended with exit code {end.code}") from end


async def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One run, recorded. Raises as `recorded`."""
    if not options.script.is_file():
        raise InvalidRequest(f"script: {options.script} is not a file; correct pySpark.key")
    os.environ[STORE] = options.store or options.broker_url
    os.environ[STORE_TLS] = options.store_tls
    os.environ[VOLUME] = str(options.volume)
    cluster = {
        "volume": str(options.volume),
        "store": options.store or "",
        "storeTls": options.store_tls,
        "brokerUrl": options.broker_url or "",
    }

    async def work(store: MetadataStore, clock: Clock, publisher: Publisher) -> Done:  # noqa: ARG001 - the script opens its own
        settings = session_settings(options, KIND)
        async with session_of(settings, environment, publisher) as session:
            register_source(session)
            session.dataSource.register(MagnetarDataSource.of(**cluster))
            publisher.progress.enter(WORKING)
            await asyncio.to_thread(run_script, options.script, options.arguments)
        return Done({})

    return await recorded(options, KIND, SystemClock(), work)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return exit_code(KIND, lambda: asyncio.run(run(options, os.environ)), Report(options.report))


if __name__ == "__main__":
    sys.exit(main())
