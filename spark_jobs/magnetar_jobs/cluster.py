"""Where a topic is: partitions, bundle, owner.

Owns: a job's questions to the metadata store and its one request to a broker (roll the log).
Imports: errors, names, metadata, json_http. Invariants: the map from topic to bundle is the
brokers' own (`names.bundle_of` over the namespace's boundaries); a roll that was answered covers
everything that was acknowledged before the request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

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
from magnetar.names import BundleName, TopicName, bundle_of

ROLL_TIMEOUT_S = 60.0
TRY_AGAIN = (408, 429)
"""Refusals of the 4xx kind that speak of the moment, not of the request."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """An entry of a topic. `EARLIEST` is before every entry."""

    ledger: int
    entry: int


EARLIEST = Position(-1, -1)


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


def roll_log(http_url: str, topic: TopicName) -> Position:
    """Ask the owner at `http_url` to seal what it has acknowledged of `topic`; the last position
    that is then in sealed, listed files.

    Raises ServiceNotReady if it does not answer or no longer owns the topic: ask the new owner.
    Raises TopicNotFound, and InvalidRequest for any other refusal: asking again would end the same
    way.
    """
    url = (
        f"{http_url.rstrip('/')}/admin/v2/{topic.domain}/{quote(topic.tenant, safe='')}/{quote(topic.namespace, safe='')}"
        f"/{quote(topic.local, safe='')}/roll"
    )
    unreachable = "is the broker reachable from here? (--no-roll compacts what is sealed already)"
    try:
        answer = exchange("POST", url, timeout_s=ROLL_TIMEOUT_S)
    except NoAnswer as error:
        raise ServiceNotReady(f"{url}: {error}; {unreachable}") from error
    if answer.status != 200:
        raise _refusal(answer, url, topic)
    try:
        position = json.loads(answer.body)["position"]
        return Position(int(position["ledgerId"]), int(position["entryId"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceNotReady(f"{url}: {error}; {unreachable}") from error


def _refusal(answer: Answer, url: str, topic: TopicName) -> MagnetarError:
    refused = f"{url}: status {answer.status}: {answer.body[:4096].decode(errors='replace')}"
    if answer.status == TopicNotFound.http_status:
        return TopicNotFound(f"topic {topic} does not exist, says its broker ({refused})")
    if 400 <= answer.status < 500 and answer.status not in TRY_AGAIN:
        return InvalidRequest(f"{refused} (--no-roll compacts what is sealed already)")
    return ServiceNotReady(refused)
