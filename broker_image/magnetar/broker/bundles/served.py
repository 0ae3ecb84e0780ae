"""The bundles that this broker serves.

Owns: the table of `OwnedBundle`, which acquisition, release, split and merge change through `begin` and
`end`. Imports: bundle. Invariant: a bundle stands here from its Owned record until the
record that ends our term is committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.phases import Phase
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import NotOwner


class ServedBundles:
    """Bundles by name."""

    def __init__(self, context: BrokerContext, registry: TopicRegistry) -> None:
        self._metrics, self._registry = context.metrics, registry
        self._by_name: dict[str, OwnedBundle] = {}

    @property
    def by_name(self) -> Mapping[str, OwnedBundle]:
        return self._by_name

    def get(self, name: str) -> OwnedBundle | None:
        """The bundle, if it is served here."""
        return self._by_name.get(name)

    def require(self, name: str) -> OwnedBundle:
        """The bundle. Raises NotOwner."""
        owned = self._by_name.get(name)
        if owned is None:
            raise NotOwner(f"bundle {name} is not served by this broker")
        return owned

    def begin(self, owned: OwnedBundle) -> None:
        """Serve a bundle from now on."""
        self._by_name[str(owned.name)] = owned
        self._registry.adopt(owned)
        self._metrics.begin(owned.traffic)
        self._metrics.bundles_owned.set(len(self._by_name))

    def end(self, owned: OwnedBundle) -> None:
        """A bundle's term here is over."""
        owned.enter(Phase.ABSENT)
        del self._by_name[str(owned.name)]
        self._metrics.end(owned.traffic)
        self._metrics.bundles_owned.set(len(self._by_name))

    def stop(self) -> None:
        """The incarnation is over."""
        for owned in self._by_name.values():
            owned.stop()
        self._by_name.clear()
