"""Settings that administrators change while this broker runs.

Owns: `SettingsFollower`, which puts what the metadata store says into force. Imports: live
settings, views, ownership, the table of connections. Invariants: a broker that cannot reach the
store keeps what it knows; topics are notified in turns of the loop; connections that are open keep
the settings that they began with.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.broker.context import BrokerContext
from magnetar.broker.replay.topic_transactions import limits_of
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import BROKER_CONFIGURATION
from magnetar.storage.turns import Turns

log = structlog.get_logger(__name__)

TOPICS_PER_TURN_MAX = 50


class SettingsFollower:
    """Of one incarnation."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        ownership: Ownership,
        connections: ConnectionTable,
    ) -> None:
        self._context, self._ownership, self._connections = context, ownership, connections
        self._documents, self._changed = views.documents, asyncio.Event()
        views.documents.listen(self._look)
        self._look([BROKER_CONFIGURATION])

    def _look(self, names: list[str]) -> None:
        if BROKER_CONFIGURATION not in names:
            return
        viewed, before = self._documents.get(BROKER_CONFIGURATION), self._context.settings
        refused = self._context.live.follow(viewed.record.documents if viewed is not None else {})
        for name, error in refused.items():
            log.error("settings.refused", setting=name, error=str(error))
        if self._context.settings != before:
            self._connections.settings = self._context.settings
            self._changed.set()

    async def run(self) -> None:
        """Notify topics of changes, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            turns = Turns(TOPICS_PER_TURN_MAX)
            for owned in list(self._ownership.owned.values()):
                for topic in [*owned.topics.values(), *owned.unstored.values()]:
                    with self._context.metrics.surprises.contained(
                        "settings", topic=str(topic.name)
                    ):
                        _notify(topic)
                    await turns.after(1)


def _notify(topic: TopicHost) -> None:
    topic.refresh_policies()
    if topic.transactions is not None:
        topic.transactions.limit(limits_of(topic.context.settings))
