"""Where a topic is: partitions, bundle, owner.

Owns: a job's questions to the metadata store, its one request to a broker (roll the log) and the
wait until files have what was rolled. Imports: errors, names, metadata, json_http. Invariants: the map from topic to bundle is the
brokers' own (`names.bundle_of` over the namespace's boundaries); a roll that was answered covers
everything that was acknowledged before the request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar
from urllib.parse import quote

import structlog

from magnetar.errors import (
    InvalidRequest,
    MagnetarError,
    NamespaceNotFound,
    ServiceNotReady,
    TopicNotFound,
)
from magnetar.json_http import Answer, NoAnswer, exchange
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, IncarnationRecord, NamespaceRecord
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.topic_entries import partition_count
from magnetar.names import BundleName, NamespaceName, TopicName, bundle_of
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.inputs import BEFORE_ALL, Position
from magnetar_jobs.planning import holdings_of
from magnetar_jobs.remote_store import bearer

log = structlog.get_logger(__name__)

ROLL_TIMEOUT_S = 60.0
ROLL_ATTEMPTS_MAX = 8
"""Half a minute: a takeover waits for the lease of a broker that died, and recovers."""
ROLL_RETRY_S = 1.0
OR_WHAT_IS_SEALED = "; --no-roll, or option roll=false, takes what is sealed already"
PLAN_ATTEMPTS_MAX = 10
PLAN_RETRY_S = 3.0
"""Brokers rewrite what transactions have published within `maintenance_s` (10 s) of a roll; a
session takes about as long to begin."""
TRY_AGAIN = (408, 429)
"""Refusals of the 4xx kind that speak of the moment, not of the request."""


async def partitions_of(store: MetadataStore, topic: TopicName) -> list[TopicName]:
    """The topics to work on: all partitions of a partitioned topic, or the topic itself.

    Raises InvalidRequest if it is not persistent, NamespaceNotFound, TopicNotFound.
    """
    if not topic.persistent:
        raise InvalidRequest(
            f"topic {topic} is not persistent: it has no stored messages to compact"
        )
    return [
        topic.with_partition(index) for index in range(await partition_count(store, topic))
    ] or [topic]


async def topics_of(store: MetadataStore, namespace: NamespaceName) -> list[TopicName]:
    """The persistent topics that a namespace has now; partitions in use are their topic's. Raises
    NamespaceNotFound."""
    if await store.get(keys.namespace(namespace)) is None:
        raise NamespaceNotFound(
            f"namespace {namespace} does not exist in this store; check the name, and --store"
        )
    prefix = keys.partitioned_topics_in(namespace)
    names = set()
    for item in (await store.range(prefix)).items:
        domain, _, local = item.key.removeprefix(prefix).partition("/")
        name = TopicName.parse(f"{domain}://{namespace}/{local}")
        if name.persistent:
            names.add(name.base)
    return sorted(names, key=str)


async def bundle_of_topic(store: MetadataStore, topic: TopicName) -> BundleName:
    """The bundle whose manifest lists the topic. Raises NamespaceNotFound."""
    item = await store.get(keys.namespace(topic.namespace_name))
    if item is None:
        raise NamespaceNotFound(
            f"namespace {topic.namespace_name} of topic {topic} does not exist in this store; "
            "check --topic and --store"
        )
    return bundle_of(
        topic.namespace_name, NamespaceRecord.decode(item.value).boundaries, topic.hash
    )


async def owner_of(store: MetadataStore, bundle: BundleName) -> IncarnationRecord | None:
    """The live broker that serves the bundle, or None: then nothing new can be acknowledged
    either."""
    item = await store.get(keys.bundle(bundle))
    if item is None:
        return None
    record = BundleRecord.decode(item.value)
    if record.state is not BundleState.OWNED:
        return None
    live = await store.get(keys.incarnation(record.incarnation))
    return IncarnationRecord.decode(live.value) if live is not None else None


def roll_log(
    http_url: str, topic: TopicName, token_file: str = "", *, rewrite: bool = True
) -> Position:
    """Ask the owner at `http_url` to seal what it has acknowledged of `topic`; the last position
    that is then in sealed, listed files. Without `rewrite` it does not rewrite what transactions
    have published.

    Raises ServiceNotReady if it does not answer or no longer owns the topic: ask the new owner.
    Raises TopicNotFound, and InvalidRequest for any other refusal: asking again would end the same
    way.
    """
    url = (
        f"{http_url.rstrip('/')}/admin/v2/{topic.domain}/{quote(topic.tenant, safe='')}/{quote(topic.namespace, safe='')}"
        f"/{quote(topic.local, safe='')}/roll{'' if rewrite else '?rewrite=false'}"
    )
    unreachable = f"is the broker reachable from here?{OR_WHAT_IS_SEALED}"
    try:
        answer = exchange("POST", url, headers=bearer(token_file), timeout_s=ROLL_TIMEOUT_S)
    except NoAnswer as error:
        raise ServiceNotReady(f"{url}: {error}; {unreachable}") from error
    if answer.status != 200:
        raise _refusal(answer, url, topic)
    try:
        position = json.loads(answer.body)["position"]
        return int(position["ledgerId"]), int(position["entryId"])
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceNotReady(f"{url}: {error}; {unreachable}") from error


def _refusal(answer: Answer, url: str, topic: TopicName) -> MagnetarError:
    refused = f"{url}: status {answer.status}: {answer.body[:4096].decode(errors='replace')}"
    if answer.status == TopicNotFound.http_status:
        return TopicNotFound(f"topic {topic} does not exist, says its broker ({refused})")
    if 400 <= answer.status < 500 and answer.status not in TRY_AGAIN:
        return InvalidRequest(refused + OR_WHAT_IS_SEALED)
    return ServiceNotReady(refused)


def shown(position: Position) -> str:
    """A position as Pulsar's tools write it: ledger:entry."""
    return f"{position[0]}:{position[1]}"


async def roll_owner(
    store: MetadataStore,
    volume: Volume,
    topic: TopicName,
    broker_url: str = "",
    token_file: str = "",
    *,
    rewrite: bool = True,
) -> Position:
    """Have everything acknowledged so far put into sealed files; its last position.

    A bundle without an owner has nothing else once its whole chain is sealed: until then it is on
    its way to another broker. `rewrite` and errors as `roll_log`; ServiceNotReady too if it does
    not get there.
    """
    for attempt in range(1, ROLL_ATTEMPTS_MAX + 1):
        try:
            return await _roll_once(store, volume, topic, broker_url, token_file, rewrite)
        except ServiceNotReady as error:
            if attempt == ROLL_ATTEMPTS_MAX:
                raise
            log.warning("job.roll_failed", topic=str(topic), attempt=attempt, error=str(error))
            await asyncio.sleep(ROLL_RETRY_S * attempt)
    raise AssertionError("the loop returns or raises")


async def _roll_once(
    store: MetadataStore,
    volume: Volume,
    topic: TopicName,
    broker_url: str,
    token_file: str,
    rewrite: bool,
) -> Position:
    bundle = await bundle_of_topic(store, topic)
    owner = await owner_of(store, bundle)
    if owner is None:
        unsealed = (await holdings_of(store, volume, bundle, topic)).unsealed
        if unsealed:
            raise ServiceNotReady(
                f"topic {topic} has no live broker, and {unsealed}, which may hold what its last "
                f"one has acknowledged, is not sealed; start a broker{OR_WHAT_IS_SEALED}"
            )
        return BEFORE_ALL
    position = await asyncio.to_thread(
        roll_log, broker_url or owner.http_url, topic, token_file, rewrite=rewrite
    )
    log.info("job.rolled", topic=str(topic), position=shown(position))
    return position


class Reaching(Protocol):
    """A plan of what sealed files hold of a topic."""

    @property
    def complete(self) -> Position | None: ...
    def reaches(self, position: Position) -> bool: ...


P = TypeVar("P", bound=Reaching)


async def until_reached(plan: Callable[[], Awaitable[P]], topic: TopicName, rolled: Position) -> P:
    """The first plan that reaches `rolled`; if that takes the broker too long, the last one. Raises
    what `plan` raises, ServiceNotReady the last time only."""
    for attempt in range(1, PLAN_ATTEMPTS_MAX + 1):
        last = attempt == PLAN_ATTEMPTS_MAX
        try:
            found = await plan()
        except ServiceNotReady as error:
            if last:
                raise
            reason = str(error)
        else:
            if found.reaches(rolled) or last:
                return found
            assert found.complete is not None
            reason = f"complete up to {shown(found.complete)} of {shown(rolled)}"
        log.info("job.waits", topic=str(topic), attempt=attempt, reason=reason)
        await asyncio.sleep(PLAN_RETRY_S)
    raise AssertionError("the loop returns or raises")
