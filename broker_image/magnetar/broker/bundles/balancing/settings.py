"""Settings of load balancing in force.

Owns: `BalanceSettings`: what this broker was started with, changed by what administrators have
written since. Imports: balance.settings, views, metadata keys. Invariant: a value that this version
refuses leaves the others in force.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from magnetar.balance.settings import FIELDS, STRATEGIES, Settings, companions, followed, is_average
from magnetar.broker.context import BrokerContext
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import BROKER_CONFIGURATION

log = structlog.get_logger(__name__)


class BalanceSettings:
    """The settings of this moment, which all brokers follow."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self.defaults = self._current = context.settings.balance_defaults
        self._documents, self._revision = views.documents, 0

    @property
    def current(self) -> Settings:
        viewed = self._documents.get(BROKER_CONFIGURATION)
        revision = viewed.mod_revision if viewed is not None else 0
        if revision != self._revision:
            given = of_balance(viewed.record.documents) if viewed is not None else {}
            self._current, self._revision = self._read(given), revision
        return self._current

    def _read(self, given: dict[str, object]) -> Settings:
        found, refused = followed(self.defaults, given)
        for name, error in refused.items():
            log.error("balance.setting_refused", setting=name, error=str(error))
        return found


def changed(
    defaults: Settings, given: dict[str, object], name: str, value: object | None
) -> dict[str, object]:
    """What is stored once a setting has a value (None = its default again). AvgShedder comes and
    goes as both strategies. Raises InvalidRequest."""
    after = {key: stored for key, stored in given.items() if key != name}
    if name in STRATEGIES:
        both = {**defaults.named(), **given}
        if any(is_average(both[key]) for key in STRATEGIES):
            after = {key: stored for key, stored in after.items() if key not in STRATEGIES}
    if value is not None:
        after |= {name: value} | companions(name, value)
    named = {name: value} if value is not None else {}
    Settings.read({**defaults.named(), **of_balance(after), **named})
    return after


def of_balance(given: Mapping[str, object]) -> dict[str, object]:
    """Those of load balancing; other settings of brokers stand beside them."""
    return {name: value for name, value in given.items() if name in FIELDS}
