"""Numbers with bounds, read from the environment.

Owns: `bounded`, the field of a dataclass of settings; how its value is read and checked. Imports:
errors. Invariants: a value out of bounds is refused with a sentence that names it; nothing is
clamped silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from magnetar.errors import InvalidRequest

ENVIRONMENT_PREFIX = "MAGNETAR_"


def bounded(default: Any, low: float, high: float, what: str, share: int = 0) -> Any:
    """A dataclass field with bounds and a description (both are shown in errors and in the
    docs). Where the process' memory is limited, the default is one part in `share` of the limit."""
    metadata = {"low": low, "high": high, "what": what, "share": share}
    return dataclasses.field(default=default, metadata=metadata)


def variable(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


def bounded_fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The settings of dataclass `kind` that are numbers with bounds."""
    return tuple(found for found in dataclasses.fields(kind) if found.metadata)


def environment_values(
    kind: Any, environment: Mapping[str, str], memory_limit_bytes: int | None
) -> dict[str, Any]:
    """The settings of dataclass `kind` that the environment or the memory limit gives; others have
    their defaults. Raises InvalidRequest naming variable and value."""
    values: dict[str, Any] = {}
    for setting in bounded_fields(kind):
        text = environment.get(variable(setting.name))
        if text is None:
            if memory_limit_bytes is not None and (share := setting.metadata["share"]):
                low, high = setting.metadata["low"], setting.metadata["high"]
                values[setting.name] = min(max(memory_limit_bytes // share, low), high)
            continue
        values[setting.name] = number_of(setting, text)
    return values


def number_of(setting: dataclasses.Field[Any], text: str) -> float:
    """The value of a setting as text; true and false are 1 and 0. Raises InvalidRequest naming
    variable and value."""
    convert = int if isinstance(setting.default, int) else float
    switches = {"true": "1", "false": "0"} if setting.metadata["high"] == 1 else {}
    try:
        return convert(switches.get(text.strip().lower(), text))
    except ValueError as error:
        raise InvalidRequest(
            f"{variable(setting.name)}={text!r} is not a number ({setting.metadata['what']})"
        ) from error


def check_bounds(settings: Any) -> None:
    """Raises InvalidRequest naming variable, value and bounds of a setting that is out of them."""
    for setting in bounded_fields(settings):
        value, bounds = getattr(settings, setting.name), setting.metadata
        if not bounds["low"] <= value <= bounds["high"]:
            raise InvalidRequest(
                f"{variable(setting.name)}={value} is out of range: use "
                f"{bounds['low']}..{bounds['high']} ({bounds['what']})"
            )
