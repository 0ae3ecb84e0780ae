"""Routes of topics.

Owns: creation, deletion, partitions, statistics and the work on whole topics under
`/admin/v2/persistent/T/N/topic`. Imports: FastAPI, ports. Invariants: a topic's routes answer at
its owner, or redirect there; what is created twice is refused with 409.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from magnetar.errors import InvalidRequest
from magnetar.rest.answers import (
    NO_CONTENT,
    TOPIC,
    Domain,
    answer,
    body,
    body_of,
    object_of,
    strings_of,
    topic_name,
)
from magnetar.rest.ports import Resources
from magnetar.rest.subscriptions import PROPERTIES

ONE_TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
COUNT = {
    "oneOf": [
        {"type": "integer", "minimum": 1},
        {
            "type": "object",
            "properties": {"partitions": {"type": "integer"}, "properties": PROPERTIES},
        },
    ]
}
Destination = Annotated[
    str,
    Query(
        alias="destinationBroker", description="name or host:port of the broker that is to serve it"
    ),
]


def topic_router(admin: Resources) -> APIRouter:
    """Topics over `admin`."""
    router = APIRouter(tags=["topics"])
    _add_work(router, admin)  # before partitions: of "t/terminate/partitions" the topic is "t"
    _add_partitions(router, admin)
    _add_statistics(router, admin)
    _add_compaction(router, admin)
    _add_life(router, admin)
    return router


def _add_life(router: APIRouter, admin: Resources) -> None:
    @router.put(
        ONE_TOPIC,
        status_code=NO_CONTENT,
        openapi_extra=body("properties", PROPERTIES, required=False),
    )
    async def create_topic(
        domain: Domain, tenant: str, namespace: str, topic: str, request: Request
    ) -> None:
        """Create a topic without partitions."""
        properties = strings_of("properties", await object_of(request))
        await admin.topics.create_topic(topic_name(domain, tenant, namespace, topic), properties)

    @router.delete(ONE_TOPIC, status_code=NO_CONTENT)
    async def delete_topic(
        domain: Domain, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> None:
        """Delete a topic with its subscriptions; with clients only by force."""
        await admin.topics.delete_topic(topic_name(domain, tenant, namespace, topic), force)


def _add_partitions(router: APIRouter, admin: Resources) -> None:
    path = f"{TOPIC}/partitions"

    @router.get(path)
    async def partitions(
        domain: Domain,
        tenant: str,
        namespace: str,
        topic: str,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> dict[str, Any]:
        """Tell how many partitions a topic has; 0 if it is not partitioned."""
        name = topic_name(domain, tenant, namespace, topic)
        count = await admin.topics.partitions(name, may_create)
        properties = await admin.policies.properties(name) if count else {}
        return {
            "partitions": count,
            "deleted": False,
            **({"properties": properties} if properties else {}),
        }

    @router.put(
        path,
        status_code=NO_CONTENT,
        openapi_extra=body("how many, or PartitionedTopicMetadata", COUNT),
    )
    async def create_partitions(
        domain: Domain, tenant: str, namespace: str, topic: str, request: Request
    ) -> None:
        """Create a partitioned topic."""
        count, properties = await _metadata(request)
        name = topic_name(domain, tenant, namespace, topic)
        await admin.topics.create_partitions(name, count)
        if properties:
            await admin.policies.edit_properties(name, properties, ())

    @router.post(path, status_code=NO_CONTENT, openapi_extra=body("how many there shall be", COUNT))
    async def grow_partitions(
        domain: Domain, tenant: str, namespace: str, topic: str, request: Request
    ) -> None:
        """Give a partitioned topic more partitions."""
        count, _ = await _metadata(request)
        await admin.topics.grow_partitions(topic_name(domain, tenant, namespace, topic), count)

    @router.delete(path, status_code=NO_CONTENT)
    async def delete_partitions(
        domain: Domain, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> None:
        """Delete a partitioned topic with all its partitions."""
        await admin.topics.delete_partitions(topic_name(domain, tenant, namespace, topic), force)

    @router.post(f"{TOPIC}/createMissedPartitions", status_code=NO_CONTENT)
    async def create_missed(domain: Domain, tenant: str, namespace: str, topic: str) -> None:
        """Make sure that all partitions exist, which they always do."""
        await admin.topics.partitions(topic_name(domain, tenant, namespace, topic), False)


async def _metadata(request: Request) -> tuple[int, dict[str, str]]:
    """The number of partitions in a body, bare or (with properties) as PartitionedTopicMetadata."""
    found = await body_of(request)
    count = found.get("partitions") if isinstance(found, dict) else found
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidRequest(
            f"partitions: {str(count)[:80]!r} is not a whole number; send how many there shall be"
        )
    return count, strings_of("properties", found.get("properties") or {}) if isinstance(
        found, dict
    ) else {}


def _add_statistics(router: APIRouter, admin: Resources) -> None:
    @router.get(f"{TOPIC}/stats")
    async def stats(domain: Domain, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Tell what a topic has done: counters, producers, subscriptions and their consumers."""
        return await admin.topics.stats(topic_name(domain, tenant, namespace, topic))

    @router.get(f"{TOPIC}/internalStats")
    async def internal_stats(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> dict[str, Any]:
        """Tell what a topic holds: ledgers and cursors."""
        return await admin.topics.internal_stats(topic_name(domain, tenant, namespace, topic))

    @router.get(f"{TOPIC}/internal-info")
    async def internal_info(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> dict[str, Any]:
        """Tell what is stored of a topic: ledgers, and where cursors are."""
        found = await admin.topics.internal_stats(topic_name(domain, tenant, namespace, topic))
        cursors = {
            name: {"markDelete": cursor["markDeletePosition"]}
            for name, cursor in found["cursors"].items()
        }
        return {
            "version": 1,
            "ledgers": found["ledgers"],
            "terminatedPosition": found.get("terminatedPosition"),
            "cursors": cursors,
        }

    @router.get(f"{TOPIC}/partitioned-stats")
    async def partitioned_stats(
        domain: Domain,
        tenant: str,
        namespace: str,
        topic: str,
        per_partition: Annotated[bool, Query(alias="perPartition")] = True,
    ) -> dict[str, Any]:
        """Tell the sum of what the partitions of a topic have done, and each alone."""
        return await admin.topics.partitioned_stats(
            topic_name(domain, tenant, namespace, topic), per_partition
        )

    @router.get(f"{TOPIC}/partitioned-internalStats")
    async def partitioned_internal_stats(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> dict[str, Any]:
        """Tell what each partition of a topic holds."""
        return await admin.topics.partitioned_internal_stats(
            topic_name(domain, tenant, namespace, topic)
        )

    @router.get(f"{TOPIC}/lastMessageId")
    async def last_message_id(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> dict[str, Any]:
        """Tell the id of the last message."""
        return await admin.topics.last_message_id(topic_name(domain, tenant, namespace, topic))


def _add_work(router: APIRouter, admin: Resources) -> None:
    @router.put(f"{TOPIC}/unload", status_code=NO_CONTENT)
    async def unload_topic(
        domain: Domain, tenant: str, namespace: str, topic: str, destination: Destination = ""
    ) -> None:
        """Hand a topic, with its bundle, to another broker."""
        await admin.topics.unload_topic(topic_name(domain, tenant, namespace, topic), destination)

    @router.post(f"{TOPIC}/roll")
    async def roll(domain: Domain, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Make everything acknowledged so far readable from sealed files, for jobs; the last id
        among it."""
        ledger, entry = await admin.topics.roll(topic_name(domain, tenant, namespace, topic))
        return {"position": {"ledgerId": ledger, "entryId": entry}}

    @router.post(f"{TOPIC}/terminate")
    async def terminate(domain: Domain, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Let nothing more be published, permanently; the last id."""
        return await admin.topics.terminate(topic_name(domain, tenant, namespace, topic))

    @router.post(f"{TOPIC}/terminate/partitions")
    async def terminate_partitions(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> Response:
        """Terminate all partitions of a topic; the last id of each."""
        return answer(
            await admin.topics.terminate_partitions(topic_name(domain, tenant, namespace, topic))
        )

    @router.post(f"{TOPIC}/trim", status_code=NO_CONTENT)
    async def trim(domain: Domain, tenant: str, namespace: str, topic: str) -> None:
        """Drop what retention lets go now."""
        await admin.topics.trim(topic_name(domain, tenant, namespace, topic))

    @router.delete(f"{TOPIC}/truncate", status_code=NO_CONTENT)
    async def truncate(domain: Domain, tenant: str, namespace: str, topic: str) -> None:
        """Drop everything, acknowledged or not."""
        await admin.topics.truncate(topic_name(domain, tenant, namespace, topic))


def _add_compaction(router: APIRouter, admin: Resources) -> None:
    @router.get(f"{TOPIC}/compaction")
    async def compaction_status(
        domain: Domain, tenant: str, namespace: str, topic: str
    ) -> dict[str, Any]:
        """Tell whether a compaction of this topic has been committed."""
        return await admin.topics.compaction_status(topic_name(domain, tenant, namespace, topic))

    @router.put(f"{TOPIC}/compaction", status_code=NO_CONTENT)
    async def compact(domain: Domain, tenant: str, namespace: str, topic: str) -> None:
        """Refused with what to do instead: compaction is a job of Spark's."""
        await admin.topics.compact(topic_name(domain, tenant, namespace, topic))
