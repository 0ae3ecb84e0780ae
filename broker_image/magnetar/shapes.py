"""What JSON may be where a value of one kind is wanted.

Owns: shapes, which read a JSON value as Pulsar's mapper (Jackson) does and return it in one form.
Imports: errors. Pure. Source: Jackson's coercions in the version and configuration that Pulsar's
admin API has: numbers and booleans as strings, fractions cut off, numbers for booleans and for the
constants of enums, an empty string for what is absent, unknown fields ignored. Invariants: what a
shape returns, it reads as the same; None is what is absent; what cannot be meant is refused by
field, value and remedy, and so is the name of a constant that does not exist, of which Jackson
makes nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from magnetar.errors import InvalidRequest

SHOWN_CHARACTERS = 80
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


class Shape(Protocol):
    """One kind of value."""

    def read(self, field: str, value: Any) -> Any:
        """The value in its one form, None if it is absent. Raises InvalidRequest."""
        ...


def _refused(field: str, value: Any, kind: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {str(value)[:SHOWN_CHARACTERS]!r} is not {kind}", remedy)


class Flag:
    """A boolean."""

    def read(self, field: str, value: Any) -> bool | None:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return value != 0
        text = value.strip() if isinstance(value, str) else None
        if text == "":
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        raise _refused(field, value, "a boolean", "send true or false")


class Whole:
    """A whole number of a width; bounds that are narrower are its reader's."""

    def __init__(self, low: int = INT_MIN, high: int = INT_MAX) -> None:
        self._low, self._high = low, high

    def read(self, field: str, value: Any) -> int | None:
        found = _number(field, value, "a whole number")
        if found is None:
            return None
        if not math.isfinite(found) or not self._low <= int(found) <= self._high:
            raise InvalidRequest(
                f"{field}: {str(value)[:SHOWN_CHARACTERS]} is out of range",
                f"use {self._low}..{self._high}",
            )
        return int(found)


class Number:
    """A number with a fraction."""

    def read(self, field: str, value: Any) -> float | None:
        found = _number(field, value, "a number")
        if found is not None and not math.isfinite(found):
            raise _refused(field, value, "a number", "send one in digits")
        return float(found) if found is not None else None


def _number(field: str, value: Any, kind: str) -> int | float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else value
    if text is None or text == "":
        return None
    if isinstance(text, str) and len(text) <= SHOWN_CHARACTERS and text.isascii():
        for convert in (int, float):
            try:
                return convert(text.replace("_", "x"))  # Python's digits may hold underscores
            except ValueError:
                continue
    raise _refused(field, value, kind, "send one in digits")


class Text:
    """A string."""

    def read(self, field: str, value: Any) -> str | None:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        if value is None or isinstance(value, str):
            return value
        raise _refused(field, value, "a string", "send it in quotes")


class Choice:
    """A constant of an enum, by name or by number."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, field: str, value: Any) -> str | None:
        if value is None or value == "":
            return None
        if isinstance(value, str) and value in self.names:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(self.names):
            return self.names[value]
        raise _refused(field, value, "known", f"use one of {', '.join(self.names)}")


class Items:
    """A list, or a set: of each value once, in the order that they came."""

    def __init__(self, item: Shape) -> None:
        self._item = item

    def read(self, field: str, value: Any) -> list[Any] | None:
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _refused(field, value, "a list", "send one in brackets")
        found = (self._item.read(field, item) for item in value)
        return list(dict.fromkeys(item for item in found if item is not None))


class Named:
    """An object of any names whose values have one shape; one without a value is not there."""

    def __init__(self, value: Shape) -> None:
        self._value = value

    def read(self, field: str, value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise _refused(field, value, "an object", "send one in braces")
        found = {name: self._value.read(f"{field}.{name}", item) for name, item in value.items()}
        return {name: item for name, item in found.items() if item is not None}


class Bean:
    """An object of known fields, absent ones with their defaults, if they have any."""

    def __init__(
        self, fields: Mapping[str, Shape], defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.fields, self._defaults = fields, defaults or {}

    def read(self, field: str, value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        found = self.filled(field, value)
        return {name: item for name, item in found.items() if item is not None}

    def filled(self, field: str, value: Any) -> dict[str, Any]:
        """All fields of an object that is there, None for an absent one. Raises
        InvalidRequest."""
        if not isinstance(value, Mapping):
            raise _refused(field, value, "an object", "send one with the fields of Pulsar's JSON")
        found = {}
        for name, shape in self.fields.items():
            item = shape.read(f"{field}.{name}", value.get(name))
            found[name] = self._defaults.get(name) if item is None else item
        return found

    def unknown(self, value: Any) -> Iterator[str]:
        """Names of fields that are not read."""
        return (name for name in value if name not in self.fields)


class Anything:
    """What is kept as it came."""

    def read(self, field: str, value: Any) -> Any:
        del field
        return value


FLAG, TEXT, INT, LONG = Flag(), Text(), Whole(), Whole(LONG_MIN, LONG_MAX)
TEXTS, PROPERTIES = Items(TEXT), Named(TEXT)
