"""What every driver is: its arguments, its store, its record and its end.

Owns: the part of the command line that all jobs share, the frame around a run, exit codes and last
words. Imports: session, progress, run_record, metadata; argparse. Invariants: a run id that
succeeded is done: a second driver with it exits at once; the record says how a run ended, whatever
it was. Exit codes: 0 succeeded (now or before), 1 failed (the record says why), 2 the arguments or
the environment need a change, 3 failed because executors were lost.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from magnetar.clock import Clock
from magnetar.errors import InvalidRequest, InvalidTopicName, MagnetarError, TopicNotFound
from magnetar.metadata.store import MetadataStore
from magnetar.names import NamespaceName, TopicName
from magnetar.storage.volumes.opening import check_location
from magnetar_jobs.cluster import partitions_of, topics_of
from magnetar_jobs.java import JavaEnded, JavaMissing
from magnetar_jobs.progress import STARTING, Publisher, published
from magnetar_jobs.remote_store import TOKEN_FILE
from magnetar_jobs.reporting import Report
from magnetar_jobs.run_record import RunRecord
from magnetar_jobs.session import SessionSettings, lost_executors, spark_session
from magnetar_jobs.store_places import StorePlace, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

SUCCEEDED, FAILED, UNUSABLE, EXECUTORS_LOST, NOT_STARTED = 0, 1, 2, 3, 4
TERMINATION_LOG = Path("/dev/termination-log")
LAST_WORDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Done:
    """What a run that succeeded did, and what else there is to say of it."""

    result: dict[str, Any]
    message: str = ""


def _location(location: str) -> str:
    try:
        check_location(location)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return location


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every driver."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--store",
        help="etcd://host:port[,host:port] or embedded://DIRECTORY (no broker may be running on it)",
    )
    parser.add_argument(
        "--store-tls", default="", help="directory with ca.crt, tls.crt and tls.key for etcd"
    )
    where.add_argument(
        "--broker-url",
        help="http://127.0.0.1:8080 of a standalone broker, which then commits for this job",
    )
    parser.add_argument("--volume", required=True, type=_location, help="the cluster's storage")
    parser.add_argument(
        "--job", required=True, help="name of the job; with --run the key of its record"
    )
    parser.add_argument(
        "--run", required=True, help="id of this run; a run that succeeded is not repeated"
    )
    parser.add_argument(
        "--master", default="local[2]", help="local[N]: N threads of this process do the work"
    )
    parser.add_argument(
        "--executors",
        type=int,
        default=0,
        help="as many executors do the work instead, and come to this driver by themselves",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="print progress and result as lines of JSON; logs go to standard error",
    )
    parser.add_argument("--executor-memory-mib", type=int, default=1024)
    parser.add_argument("--executor-cores", type=int, default=1)


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Which topics a driver works on."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--topic", help="full topic name; a partitioned topic stands for all its partitions"
    )
    what.add_argument("--namespace", help="tenant/namespace: all its persistent topics")


async def named_partitions(store: MetadataStore, options: argparse.Namespace) -> list[TopicName]:
    """Those of `add_topic_arguments`. Raises InvalidTopicName, InvalidRequest, NamespaceNotFound,
    TopicNotFound."""
    if options.topic:
        names = [TopicName.parse(options.topic)]
    else:
        names = await topics_of(store, NamespaceName.parse(options.namespace))
    return [partition for name in names for partition in await partitions_of(store, name)]


def session_settings(options: argparse.Namespace, prefix: str) -> SessionSettings:
    """The session a command line asks for."""
    return SessionSettings(
        name=f"{prefix}-{options.job}-{options.run}",
        master=options.master,
        executors=options.executors,
        executor_memory_mib=options.executor_memory_mib,
        executor_cores=options.executor_cores,
    )


@asynccontextmanager
async def session_of(
    settings: SessionSettings, environment: Mapping[str, str], publisher: Publisher
) -> AsyncIterator[SparkSession]:
    """A Spark session. That it starts is published before: nothing else runs here until it has.
    Raises JavaMissing, JavaEnded, InvalidRequest."""
    publisher.progress.enter(STARTING)
    await publisher.publish()
    with spark_session(settings, environment, publisher.progress.tasks) as session:
        yield session


async def recorded(
    options: argparse.Namespace,
    kind: str,
    clock: Clock,
    work: Callable[[MetadataStore, Clock, Publisher], Awaitable[Done]],
) -> int:
    """One run of `work`, recorded. Raises MagnetarError for what the record cannot hold (store
    unreachable, arguments unusable)."""
    place = StorePlace(options.store or "", options.store_tls, options.broker_url or "")
    report = Report(options.report)
    async with open_store(place, clock, os.environ.get(TOKEN_FILE, "")) as store:
        record = RunRecord(store, clock, kind, options.job, options.run)
        done = await record.begin()
        if done is not None:
            log.info(f"{kind}.done_before", job=options.job, run=options.run, **done.result)
            report.result(done.result)
            return SUCCEEDED
        try:
            async with published(store, clock, options.job, options.run, report) as publisher:
                done_now = await work(store, clock, publisher)
        except MagnetarError as error:
            await record.fail(f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            # Spark reports an executor's failure as its own exception types; the record must say
            # that the run is over, whatever it was.
            await record.fail(f"{type(error).__name__}: {error}")
            raise
        await record.succeed(done_now.result, done_now.message)
        log.info(f"{kind}.succeeded", job=options.job, run=options.run, **done_now.result)
        report.result(done_now.result | {"message": done_now.message})
        return SUCCEEDED


def leave_last_words(error: Exception) -> None:
    """Say why the driver ends where the kubelet looks, in one line: Spark's errors have many.
    Outside Kubernetes there is no such file."""
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(
            " ".join(f"{type(error).__name__}: {error}".split())[:LAST_WORDS_MAX]
        )


def exit_code(kind: str, run: Callable[[], int], report: Report) -> int:
    """What the driver ends with; `report` gets why it failed."""
    report.begin()
    try:
        return run()
    except (InvalidRequest, InvalidTopicName, TopicNotFound, JavaMissing) as error:
        log.error(f"{kind}.unusable", error=str(error))
        report.error(str(error))
        leave_last_words(error)
        return UNUSABLE
    except MagnetarError as error:
        log.error(f"{kind}.failed", error=f"{type(error).__name__}: {error}")
        report.error(str(error))
        leave_last_words(error)
        return NOT_STARTED if isinstance(error, JavaEnded) else FAILED
    except Exception as error:
        log.error(f"{kind}.failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        report.error(f"{type(error).__name__}: {error}")
        leave_last_words(error)
        return EXECUTORS_LOST if lost_executors(error) else FAILED
