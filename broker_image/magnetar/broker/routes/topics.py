"""Routes of topics.

Owns: creation, deletion, partitions, statistics and the work on whole topics under
`/admin/v2/persistent/T/N/topic`. Imports: FastAPI, administration. Invariants: a topic's routes
answer at its owner, or redirect there; what is created twice is refused with 409.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.administration.statistics import Wanted, message_id
from magnetar.broker.routes.subscriptions import PROPERTIES
from magnetar.errors import InvalidRequest, NotOffered, TopicNotFound
from magnetar.rest.answers import (
    NO_CONTENT,
    TOPIC,
    Topic,
    body,
    body_of,
    object_of,
    strings_of,
)
from magnetar.rest.rights import Asked
from magnetar.shapes import FLAG, INT, Bean
from magnetar.shapes import PROPERTIES as STRINGS
from magnetar.topics.ledgers import Position

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
METADATA = Bean({"partitions": INT, "deleted": FLAG, "properties": STRINGS})
Destination = Annotated[
    str,
    Query(
        alias="destinationBroker", description="name or host:port of the broker that is to serve it"
    ),
]

WithSchema = Annotated[
    bool, Query(alias="deleteSchema", description="whether its schema goes with it")
]


async def _wanted(
    without_publishers: Annotated[bool, Query(alias="excludePublishers")] = False,
    without_consumers: Annotated[bool, Query(alias="excludeConsumers")] = False,
    earliest: Annotated[
        bool,
        Query(
            alias="getEarliestTimeInBacklog",
            description="whether to read when the first message of each backlog was published",
        ),
    ] = False,
) -> Wanted:
    return Wanted(not without_publishers, not without_consumers, earliest)


WantedStats = Annotated[Wanted, Depends(_wanted)]


def topic_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Topics over `admin`."""
    router = APIRouter(tags=["topics"], dependencies=asked)
    _add_work(router, admin)  # before partitions: of "t/terminate/partitions" the topic is "t"
    _add_partitions(router, admin)
    _add_statistics(router, admin)
    _add_offloading(router, admin)
    _add_compaction(router, admin)
    _add_life(router, admin)
    return router


def _add_life(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.put(
        ONE_TOPIC,
        status_code=NO_CONTENT,
        openapi_extra=body("properties", PROPERTIES, required=False),
    )
    async def create_topic(topic: Topic, request: Request) -> None:
        """Create a topic without partitions."""
        properties = strings_of("properties", await object_of(request))
        await admin.topics.create_topic(topic, properties)

    @router.delete(ONE_TOPIC, status_code=NO_CONTENT)
    async def delete_topic(
        topic: Topic, force: bool = False, with_schema: WithSchema = True
    ) -> None:
        """Delete a topic with its subscriptions; with clients only by force."""
        await admin.topics.delete_topic(topic, force, with_schema=with_schema)


def _add_partitions(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"{TOPIC}/partitions"

    @router.get(path)
    async def partitions(
        topic: Topic,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> dict[str, Any]:
        """Tell how many partitions a topic has; 0 if it is not partitioned."""
        count = await admin.topics.partitions(topic, may_create)
        properties = await admin.policies.properties(topic) if count else {}
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
    async def create_partitions(topic: Topic, request: Request) -> None:
        """Create a partitioned topic."""
        count, properties = await _metadata(request)
        await admin.topics.create_partitions(topic, count)
        if properties:
            await admin.policies.edit_properties(topic, properties, ())

    @router.post(path, status_code=NO_CONTENT, openapi_extra=body("how many there shall be", COUNT))
    async def grow_partitions(topic: Topic, request: Request) -> None:
        """Give a partitioned topic more partitions."""
        count, _ = await _metadata(request)
        await admin.topics.grow_partitions(topic, count)

    @router.delete(path, status_code=NO_CONTENT)
    async def delete_partitions(
        topic: Topic, force: bool = False, with_schema: WithSchema = True
    ) -> None:
        """Delete a partitioned topic with all its partitions."""
        await admin.topics.delete_partitions(topic, force, with_schema=with_schema)

    @router.post(f"{TOPIC}/createMissedPartitions", status_code=NO_CONTENT)
    async def create_missed(topic: Topic) -> None:
        """Make sure that all partitions exist, which they always do."""
        if not await admin.topics.partitions(topic, False):
            raise TopicNotFound(f"Topic {topic} does not exist", "it has no partitions")


async def _metadata(request: Request) -> tuple[int, dict[str, str]]:
    """The number of partitions in a body, bare or (with properties) as PartitionedTopicMetadata."""
    found = await body_of(request)
    given = METADATA.filled("metadata", found if isinstance(found, dict) else {"partitions": found})
    if given["partitions"] is None:
        raise InvalidRequest("partitions: the body is empty; send how many there shall be")
    return given["partitions"], given["properties"] or {}


def _add_statistics(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/stats")
    async def stats(topic: Topic, wanted: WantedStats) -> dict[str, Any]:
        """Tell what a topic has done: counters, producers, subscriptions and their consumers."""
        return await admin.topics.stats(topic, wanted)

    @router.get(f"{TOPIC}/internalStats")
    async def internal_stats(topic: Topic) -> dict[str, Any]:
        """Tell what a topic holds: ledgers and cursors."""
        return await admin.topics.internal_stats(topic)

    @router.get(f"{TOPIC}/internal-info")
    async def internal_info(topic: Topic) -> dict[str, Any]:
        """Tell what is stored of a topic: ledgers, and where cursors are."""
        return await admin.topics.internal_info(topic)

    @router.get(f"{TOPIC}/partitioned-stats")
    async def partitioned_stats(
        topic: Topic,
        wanted: WantedStats,
        per_partition: Annotated[bool, Query(alias="perPartition")] = True,
    ) -> dict[str, Any]:
        """Tell the sum of what the partitions of a topic have done, and each alone."""
        return await admin.topics.partitioned_stats(topic, per_partition, wanted)

    @router.get(f"{TOPIC}/partitioned-internalStats")
    async def partitioned_internal_stats(topic: Topic) -> dict[str, Any]:
        """Tell what each partition of a topic holds."""
        return await admin.topics.partitioned_internal_stats(topic)

    @router.get(f"{TOPIC}/lastMessageId")
    async def last_message_id(topic: Topic) -> dict[str, Any]:
        """Tell the id of the last message."""
        return await admin.topics.last_message_id(topic)


def _add_offloading(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/offload")
    async def offload_status(topic: Topic) -> dict[str, Any]:
        """Tell that nothing was offloaded."""
        await admin.topics.check_exists(topic)
        return {
            "status": "NOT_RUN",
            "lastError": "",
            "firstUnoffloadedMessage": message_id(Position(-1, -1), -1),
        }

    @router.put(f"{TOPIC}/offload", status_code=NO_CONTENT)
    async def offload(topic: Topic) -> None:
        """Refused: all messages of a cluster are in one storage."""
        await admin.topics.check_exists(topic)
        raise NotOffered(
            "Offloading is not offered by Magnetar; have the BrokerCluster store messages as objects"
        )


def _add_work(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.put(f"{TOPIC}/unload", status_code=NO_CONTENT)
    async def unload_topic(topic: Topic, destination: Destination = "") -> None:
        """Hand a topic, with its bundle, to another broker."""
        await admin.topics.unload_topic(topic, destination)

    @router.post(f"{TOPIC}/roll")
    async def roll(topic: Topic, rewrite: bool = True) -> dict[str, Any]:
        """Make everything acknowledged so far readable from sealed files, for jobs; the last id
        among it. `rewrite=false`: what transactions have published is not rewritten for it."""
        ledger, entry = await admin.topics.roll(topic, rewrite=rewrite)
        return {"position": {"ledgerId": ledger, "entryId": entry}}

    @router.post(f"{TOPIC}/terminate")
    async def terminate(topic: Topic) -> dict[str, Any]:
        """Let nothing more be published, permanently; the last id."""
        return await admin.topics.terminate(topic)

    @router.post(f"{TOPIC}/terminate/partitions")
    async def terminate_partitions(topic: Topic) -> dict[str, Any]:
        """Terminate all partitions of a topic; the last id of each."""
        return await admin.topics.terminate_partitions(topic)

    @router.post(f"{TOPIC}/trim", response_class=Response)
    async def trim(topic: Topic) -> None:
        """Drop what retention lets go now."""
        await admin.topics.trim(topic)

    @router.delete(f"{TOPIC}/truncate", status_code=NO_CONTENT)
    async def truncate(topic: Topic) -> None:
        """Drop everything, acknowledged or not."""
        await admin.topics.truncate(topic)


def _add_compaction(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/compaction")
    async def compaction_status(topic: Topic) -> dict[str, Any]:
        """Show what has become of the topic's last compaction."""
        return await admin.topics.compaction_status(topic)

    @router.put(f"{TOPIC}/compaction", status_code=NO_CONTENT)
    async def compact(topic: Topic) -> None:
        """Begin to compact the topic; of a partitioned topic, all partitions."""
        await admin.topics.compact(topic)
