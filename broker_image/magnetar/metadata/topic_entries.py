"""Whether a topic exists.

Owns: the answer for programs outside the brokers, by the entries that brokers keep. Imports:
errors, names, metadata siblings. Invariants: an entry suffices, be it a plain topic's, a
partitioned topic's or, for a partition, that of its partitioned topic; nothing is concluded from a
store that does not answer.
"""

from __future__ import annotations

from magnetar.errors import NamespaceNotFound, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import PartitionedTopicRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName


async def partition_count(store: MetadataStore, topic: TopicName) -> int:
    """Partitions of a topic that exists, 0 if it is not partitioned. Raises NamespaceNotFound,
    TopicNotFound, StoreError."""
    namespace = topic.namespace_name
    if await store.get(keys.namespace(namespace)) is None:
        raise NamespaceNotFound(
            f"namespace {namespace} of topic {topic} does not exist in this cluster; correct the "
            "topic or create the namespace"
        )
    item = await store.get(keys.partitioned_topic(topic))
    if item is not None:
        return PartitionedTopicRecord.decode(item.value).partitions
    whole = await store.get(keys.partitioned_topic(topic.base)) if topic.partition >= 0 else None
    if whole is None or topic.partition >= PartitionedTopicRecord.decode(whole.value).partitions:
        raise TopicNotFound(
            f"topic {topic} does not exist in this cluster; correct the name, or create the topic "
            "or publish to it first"
        )
    return 0
