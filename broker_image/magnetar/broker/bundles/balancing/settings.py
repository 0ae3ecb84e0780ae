"""Settings of load balancing in force.

Owns: `BalanceSettings`: what this broker was started with, changed by what administrators have
written since. Imports: balance.settings, views, metadata keys. Invariant: a value that this version
refuses leaves the others in force.
"""

from __future__ import annotations

import structlog

from magnetar.balance.settings import AVERAGE, STRATEGIES, Settings
from magnetar.broker.context import BrokerContext
from magnetar.errors import InvalidRequest
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
            given = viewed.record.documents if viewed is not None else {}
            self._current, self._revision = self._read(given), revision
        return self._current

    def _read(self, given: dict[str, object]) -> Settings:
        values = self.defaults.named()
        try:
            return Settings.read({**values, **given})
        except InvalidRequest:
            pass
        for name, value in sorted(given.items()):
            try:
                Settings.read({name: value} | _companions(name, value))
            except InvalidRequest as error:
                log.error("balance.setting_refused", setting=name, error=str(error))
            else:
                values |= {name: value} | _companions(name, value)
        return Settings.read(values)


def _companions(name: str, value: object) -> dict[str, object]:
    """AvgShedder sheds and places, or does neither."""
    average = str(value).rpartition(".")[2] == AVERAGE
    return dict.fromkeys(STRATEGIES, value) if name in STRATEGIES and average else {}


def changed(
    defaults: Settings, given: dict[str, object], name: str, value: object | None
) -> dict[str, object]:
    """What is stored once a setting has a value (None = its default again). AvgShedder comes and
    goes as both strategies. Raises InvalidRequest."""
    after = {key: stored for key, stored in given.items() if key != name}
    if name in STRATEGIES:
        both = {**defaults.named(), **given}
        if AVERAGE in {str(both[key]).rpartition(".")[2] for key in STRATEGIES}:
            after = {key: stored for key, stored in after.items() if key not in STRATEGIES}
    if value is not None:
        after |= {name: value} | _companions(name, value)
    Settings.read({**defaults.named(), **after})
    return after
