"""One fake for all resources of REST, for tests.

Owns: `every_resource`. Imports: the ports of REST.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from magnetar.rest.ports import Resources

NAMES = [name for name, value in vars(Resources).items() if isinstance(value, property)]


def every_resource(port: Any) -> Any:
    """Resources whose every port is `port`."""
    return SimpleNamespace(**dict.fromkeys(NAMES, port))
