"""What arguments mean.

Owns: telling namespaces, bundles and topics apart, positions and times as people write them.
Imports: names, failures. Invariants: a short topic name is one of public/default, as everywhere;
what cannot be meant is wrong usage (exit 2) and says how to write it.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from magnetar.cli.failures import WrongUsage
from magnetar.clock import SystemClock, wall_ms_of
from magnetar.errors import InvalidTopicName
from magnetar.names import BundleName, NamespaceName, TopicName

Position: TypeAlias = tuple[int, int]
EARLIEST, LATEST = (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)
_BUNDLE = re.compile(r"/0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}\Z")
_ID = re.compile(r"(-?\d+):(-?\d+)(:-?\d+)*")
_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def topic_of(text: str) -> TopicName:
    """Raises WrongUsage."""
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise _usage(error) from error


def namespace_of(text: str) -> NamespaceName:
    """Raises WrongUsage."""
    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise _usage(error) from error


def target_of(text: str) -> NamespaceName | BundleName | TopicName:
    """tenant/namespace, tenant/namespace/0x..._0x..., or a topic. Raises WrongUsage."""
    try:
        if _BUNDLE.search(text) and "://" not in text:
            return BundleName.parse(_lowered(text))
        return (
            NamespaceName.parse(text)
            if "://" not in text and text.count("/") == 1
            else TopicName.parse(text)
        )
    except InvalidTopicName as error:
        raise _usage(error) from error


def _lowered(bundle: str) -> str:
    namespace, _, span = bundle.rpartition("/")
    return f"{namespace}/{span.lower()}"


def _usage(error: InvalidTopicName) -> WrongUsage:
    what, _, remedy = str(error).partition("; ")
    return WrongUsage(what, remedy)


def start_of(text: str) -> Position | int:
    """earliest, latest, a message id (ledger:entry), or a time in milliseconds: 15m (ago),
    2024-05-01T12:00:00, or a number.

    Raises WrongUsage.
    """
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if found := _ID.fullmatch(text):
        return int(found[1]), int(found[2])
    if found := _AGO.fullmatch(text):
        return SystemClock().wall_ms() - int(float(found[1]) * _SECONDS[found[2]] * 1000)
    if text.isdigit():
        return int(text)
    try:
        return wall_ms_of(text)
    except ValueError as error:
        raise WrongUsage(
            f"{text!r} is neither a message id nor a time",
            "write earliest, latest, ledger:entry, 15m (so long ago: s, m, h, d), "
            "2024-05-01T12:00:00, or milliseconds since 1970",
        ) from error


def pairs_of(texts: list[str] | None, option: str) -> dict[str, str]:
    """name=value, several times. Raises WrongUsage."""
    found = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise WrongUsage(
                f"{option}: {text!r} has no name or no value", f"write {option} name=value"
            )
        found[name] = value
    return found
