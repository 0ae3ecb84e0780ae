"""`DataJob`: a Spark job over the messages of a cluster.

Owns: its fields, defaults, limits and rules. Imports: resources.base, resources.cron,
resources.job_topics, job_drivers, magnetar.names. Invariants: a job runs in its cluster's Kubernetes namespace, because it mounts the
cluster's claim; what a user may override is what the fields say, and the service account is not
among it.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from magnetar import job_drivers
from magnetar.errors import InvalidRequest
from magnetar.resources import base
from magnetar.resources.base import (
    CONDITIONS,
    Condition,
    CustomResource,
    Model,
    Quantity,
    Rule,
    StatusModel,
)
from magnetar.resources.cron import CronSchedule, time_zone
from magnetar.resources.job_topics import Compaction, JobTopics, TransactionLogCompaction
from magnetar.resources.pod_template import ATOMIC, JobPodTemplate

EXECUTORS_MAX = 100
HISTORY_MAX = 50
WINDOWS_MAX = 20_000
"""Of one run of load analytics."""
SCHEDULE_PATTERN = r"^\s*(@[a-z]+|\S+(\s+\S+){4})\s*$"
DEFAULT_RUN = "once"


class SameNamespaceCluster(Model):
    """The cluster whose messages the job reads; in the same Kubernetes namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the BrokerCluster.")


def _is_schedule(text: str) -> str:
    """What the API server's pattern lets through may still be no schedule."""
    try:
        CronSchedule.parse(text)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    return text


def _is_time_zone(name: str) -> str:
    try:
        time_zone(name)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    return name


class PySpark(Model):
    """A PySpark script of one's own."""

    config_map: str = Field(
        min_length=1,
        max_length=253,
        description="Name of the ConfigMap that has the script, in the job's namespace.",
    )
    key: str = Field(
        default="main.py",
        min_length=1,
        max_length=253,
        pattern="^[-._a-zA-Z0-9]+$",
        description="Its entry that is run.",
    )
    arguments: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        description="Arguments of the script.",
        json_schema_extra=ATOMIC,
    )


class LoadAnalytics(Model):
    """Advice on load, from the history that brokers keep of it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.historyDays * 86400 <= {WINDOWS_MAX} * self.windowSeconds",
            f"loadAnalytics: use wider windows, or fewer days: at most {WINDOWS_MAX} windows",
            lambda wanted: wanted.history_days * 86400 <= WINDOWS_MAX * wanted.window_seconds,
        ),
    )

    history_days: int = Field(
        default=14, ge=1, le=90, description="Days of history that a run reads."
    )
    window_seconds: int = Field(
        default=600, ge=60, le=86400, description="Width of the windows that it computes means of."
    )
    valid_hours: int = Field(
        default=24,
        ge=1,
        le=168,
        description="How long brokers and the autoscaler use its advice; longer than the time "
        "between two runs.",
    )
    sample_topics: int = Field(
        default=5,
        ge=0,
        le=50,
        description="Topics whose newest messages are read to see how many keys are overwritten, "
        "the largest first.",
    )


class Driver(Model):
    """The pod that plans the work and commits its result."""

    cpu: Quantity = Field(default="250m", description="Processor request.")
    memory_mib: int = Field(
        default=1536,
        ge=768,
        le=65536,
        description="Memory request and limit: the JVM, Python and their overhead.",
    )
    pod_template: JobPodTemplate = Field(
        default_factory=JobPodTemplate, description="What is added to its pod."
    )


class Executors(Model):
    """The pods that do the work."""

    instances: int = Field(default=1, ge=1, le=EXECUTORS_MAX, description="Number of executors.")
    cores: int = Field(
        default=1, ge=1, le=64, description="Tasks that one executor runs at the same time."
    )
    cpu: Quantity | None = Field(
        default=None,
        description="Processor request of one executor; absent: as many as it has cores.",
    )
    memory_mib: int = Field(
        default=512,
        ge=512,
        le=262144,
        description="Heap of one executor; its pod asks for Python's share on top.",
    )
    pod_template: JobPodTemplate = Field(
        default_factory=JobPodTemplate, description="What is added to their pods."
    )


class Retries(Model):
    """How attempts are repeated that failed for another reason than the job itself."""

    unschedulable: int = Field(
        default=3,
        ge=0,
        le=20,
        description="Further attempts after no node took a driver within startTimeoutSeconds.",
    )
    driver_start: int = Field(
        default=3,
        ge=0,
        le=20,
        description="Further attempts after a driver did not start within startTimeoutSeconds, "
        "such as for its image.",
    )
    pods_lost: int = Field(
        default=5,
        ge=0,
        le=20,
        description="Further attempts after a driver was evicted or deleted, or its executors "
        "were lost.",
    )
    backoff_seconds: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="Pause before another attempt; it doubles with each failure of a kind.",
    )
    backoff_max_seconds: int = Field(
        default=300, ge=1, le=86400, description="The longest pause before another attempt."
    )
    start_timeout_seconds: int | None = Field(
        default=None,
        ge=5,
        le=86400,
        description="How long a driver may take to start. Absent: the run waits until it can.",
    )


class DataJobSpec(Model):
    """What should run."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef is immutable: make a new DataJob for another cluster",
        ),
        Rule(
            "self.type != 'Compaction' || has(self.compaction)",
            "type Compaction needs compaction.topic or .namespace",
            lambda spec: spec.type != "Compaction" or spec.compaction is not None,
        ),
        Rule(
            "self.type != 'PySpark' || has(self.pySpark)",
            "type PySpark needs pySpark.configMap",
            lambda spec: spec.type != "PySpark" or spec.py_spark is not None,
        ),
        Rule(
            "self.type != 'TransactionLogCompaction' || has(self.transactionLogCompaction)",
            "type TransactionLogCompaction needs transactionLogCompaction.topic or .namespace",
            lambda spec: (
                spec.type != "TransactionLogCompaction"
                or spec.transaction_log_compaction is not None
            ),
        ),
    )

    cluster_ref: SameNamespaceCluster = Field(
        description="The cluster whose messages the job reads."
    )
    type: Literal["Compaction", "LoadAnalytics", "PySpark", "TransactionLogCompaction"] = Field(
        default="Compaction", description="What the job does."
    )
    compaction: Compaction | None = Field(
        default=None, description="For type Compaction: what to compact."
    )
    load_analytics: LoadAnalytics | None = Field(
        default=None,
        description="For type LoadAnalytics: what to read, and how long advice holds. Absent: the "
        "defaults.",
    )
    py_spark: PySpark | None = Field(default=None, description="For type PySpark: what to run.")
    transaction_log_compaction: TransactionLogCompaction | None = Field(
        default=None,
        description="For type TransactionLogCompaction: whose transaction logs to compact.",
    )
    run_request: str = Field(
        default=DEFAULT_RUN,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=40,
        description="Name of a run on request; a new value runs the job again, now. With a "
        f"schedule, {DEFAULT_RUN} requests none.",
    )
    schedule: (
        Annotated[
            str,
            Field(min_length=1, max_length=128, pattern=SCHEDULE_PATTERN),
            AfterValidator(_is_schedule),
        ]
        | None
    ) = Field(
        default=None,
        description="When to run: minute, hour, day of month, month and day of week as in cron, "
        "or @hourly, @daily, @weekly, @monthly, @yearly. Absent: once, and on request.",
    )
    time_zone: Annotated[
        str,
        Field(max_length=64, pattern=r"^[-+/_A-Za-z0-9]+$"),
        AfterValidator(_is_time_zone),
    ] = Field(
        default="Etc/UTC",
        description="IANA time zone of the schedule. A local time that a clock change skips is "
        "not run; one that occurs twice is run twice.",
    )
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = Field(
        default="Forbid",
        description="If a run is under way when another one is due: Allow runs both, Forbid "
        "waits for its end, Replace stops it.",
    )
    starting_deadline_seconds: int | None = Field(
        default=None,
        ge=10,
        le=366 * 86400,
        description="How late a run of the schedule may begin; later it is left out. Absent: "
        "however late, the latest time that was missed is run.",
    )
    successful_runs_history_limit: int = Field(
        default=5,
        ge=0,
        le=HISTORY_MAX,
        description="Runs that succeeded, kept with their driver pods. The latest run stays.",
    )
    failed_runs_history_limit: int = Field(
        default=5,
        ge=0,
        le=HISTORY_MAX,
        description="Runs that failed or were replaced, kept with their driver pods.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=366 * 86400,
        description="How long driver pods of a run that is over are kept for their logs; its "
        "entry in the history stays. Absent: as long as the entry.",
    )
    suspend: bool = Field(default=False, description="True stops runs and starts no new one.")
    attempts_max: int = Field(
        default=3,
        ge=1,
        le=20,
        description="How often a run is tried that fails by itself. The other reasons for another "
        "attempt have limits of their own, in retries.",
    )
    retries: Retries = Field(
        default_factory=Retries,
        description="Limits for attempts that failed for another reason than the job itself.",
    )
    deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=366 * 86400,
        description="How long a run may take from its first driver on, all attempts together. "
        "Then it is stopped and has failed. Absent: as long as it takes.",
    )
    driver: Driver = Field(default_factory=Driver, description="Size of the driver.")
    executors: Executors = Field(
        default_factory=Executors, description="Number and size of the executors."
    )

    def driver_options(self) -> list[str]:
        """Options of the job's driver. A script has none here: its starter finds it."""
        if self.type == job_drivers.LOAD_ANALYTICS:
            wanted = self.load_analytics or LoadAnalytics()
            return job_drivers.load_analytics_options(
                wanted.history_days, wanted.window_seconds, wanted.valid_hours, wanted.sample_topics
            )
        topics = self.topics
        if topics is None:
            return []
        options = job_drivers.topic_options(topics.topic or "", topics.namespace or "")
        keyless = isinstance(topics, Compaction) and topics.retain_keyless
        return [*options, job_drivers.RETAIN_KEYLESS] if keyless else options

    @property
    def topics(self) -> JobTopics | None:
        """Those that a compaction works on; None for other types."""
        return {
            job_drivers.COMPACTION: self.compaction,
            job_drivers.LOG_COMPACTION: self.transaction_log_compaction,
        }.get(self.type)


class JobProgress(StatusModel):
    """How far the driver is, as it says itself."""

    phase: str = Field(
        description="Sealing, Starting, Planning, Reading, Writing or Committing; of a script, "
        "Starting or Working."
    )
    complete: str = Field(default="", description="Share of the work that is done, in percent.")
    topics_done: int = Field(default=0, description="Topics (partitions) that are done.")
    topics_total: int = Field(default=0, description="Topics (partitions) of the run.")
    bytes_done: int = Field(default=0, description="Bytes that were read and written again.")
    bytes_planned: int = Field(
        default=0, description="Bytes of the topics that have been planned so far."
    )
    bytes_per_second: int = Field(default=0, description="Bytes done by time.")
    seconds_left: int | None = Field(
        default=None, description="An estimate by the share that is done; absent: not known yet."
    )
    updated_at: str = Field(default="", description="When the driver said so, RFC 3339.")


class Run(StatusModel):
    """One run."""

    run: str = Field(description="Its name in the cluster's records.")
    state: str = Field(description="Pending, Running, Succeeded, Failed, Suspended or Replaced.")
    scheduled_at: str = Field(
        default="",
        description="The time of the schedule that it is for, RFC 3339; absent: it was requested.",
    )
    attempts: int = Field(default=0, description="Driver pods made for it so far.")
    started_at: str = Field(default="", description="RFC 3339.")
    finished_at: str = Field(default="", description="RFC 3339.")
    message: str = Field(
        default="",
        description="Why it failed, what it waits for, or what it has left to the next run.",
    )
    failures: dict[str, int] = Field(
        default={}, description="Attempts that failed: job, unschedulable, driverStart, podsLost."
    )
    last_failure: str = Field(default="", description="The kind of the latest of these.")
    deadline_at: str = Field(
        default="", description="When it is to be over, by spec.deadlineSeconds; RFC 3339."
    )
    last_error: str = Field(
        default="", description="Why its latest attempt that failed did, in the driver's words."
    )
    result: dict[str, str] = Field(default={}, description="What it did, as counted by the job.")


class DataJobStatus(StatusModel):
    """What has run."""

    observed_generation: int = Field(
        default=0, description="Generation of the spec that this status speaks of."
    )
    state: str = Field(
        default="",
        description="State of the latest run: Pending, Running, Succeeded, Failed, Suspended or "
        "Replaced; Scheduled before the first.",
    )
    run: str = Field(default="", description="Name of the latest run.")
    attempt: int = Field(default=0, description="Number of its latest driver pod.")
    driver_pod: str = Field(
        default="", description="Name of its latest driver pod: kubectl logs shows what it does."
    )
    progress: JobProgress | None = Field(
        default=None, description="How far the latest run is; absent while no driver is at work."
    )
    schedule: str = Field(
        default="", description="The schedule and time zone that the times below speak of."
    )
    scheduled_since: str = Field(
        default="", description="No time of the schedule up to this one is run, RFC 3339."
    )
    last_schedule_time: str = Field(
        default="", description="The latest time of the schedule that was run, RFC 3339."
    )
    next_schedule_time: str = Field(
        default="", description="The next time of the schedule, RFC 3339."
    )
    last_successful_time: str = Field(
        default="", description="When a run last succeeded, RFC 3339."
    )
    history: tuple[Run, ...] = Field(
        default=(),
        description="Runs, the latest first.",
        json_schema_extra=ATOMIC,
    )
    conditions: tuple[Condition, ...] = Field(
        default=(), description="Progressing, Degraded, Ready.", json_schema_extra=CONDITIONS
    )


class DataJob(CustomResource):
    """A Spark job over the messages of a cluster."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {base.NAME_LENGTH_MAX} && "
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name: use at most {base.NAME_LENGTH_MAX} lower-case letters, digits and -",
            lambda job: (
                len(job.name) <= base.NAME_LENGTH_MAX
                and re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", job.name) is not None
            ),
        ),
    )

    spec: DataJobSpec
    status: DataJobStatus = DataJobStatus()
