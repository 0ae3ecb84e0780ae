"""One fake for all resources of REST, for tests.

Owns: `every_resource`. Imports: the broker's administration.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from magnetar.broker.administration.administration import BrokerAdministration

NAMES = list(vars(BrokerAdministration(SimpleNamespace(broker=None))))


def every_resource(port: Any) -> Any:
    """An administration whose every part is `port`."""
    return SimpleNamespace(**dict.fromkeys(NAMES, port))
