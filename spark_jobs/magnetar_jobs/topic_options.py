"""Options of the data source `magnetar`.

Owns: `READ_OPTIONS`, from which docs/spark.md has its table, and `ReadOptions`, their values.
Imports: errors, names, cluster's spelling of positions, store_places. Invariants: an option that is
not known is refused, not ignored; an error names option, value and remedy; no option holds a
credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.names import NamespaceName, TopicName
from magnetar.storage.volumes.opening import check_location
from magnetar_jobs.inputs import BEFORE_ALL, GROUP_BYTES_MAX, UNBOUNDED, Position
from magnetar_jobs.store_places import StorePlace

NAME = "magnetar"
EARLIEST, LATEST = "earliest", "latest"
MESSAGES, ENTRIES = "messages", "entries"
BYTES, SCHEMA = "bytes", "schema"
FAIL, SKIP = "fail", "skip"
TOPICS_MAX = 1000
BYTES_MIN, BYTES_MAX = 1 << 10, 1 << 30


class Option(NamedTuple):
    """One line of the table."""

    name: str
    default: str
    meaning: str


READ_OPTIONS = (
    Option("topic", "", "topics, separated by commas; a partitioned topic stands for its partitions"),
    Option("namespace", "", "`tenant/namespace`: all its persistent topics, instead of `topic`"),
    Option("volume", "", "the cluster's storage, at the same place on driver and executors"),
    Option("store", "", "`etcd://host:port[,host:port]`, or `embedded://directory` without a broker on it"),
    Option("storeTls", "", "directory with `ca.crt`, `tls.crt` and `tls.key` for etcd"),
    Option("brokerUrl", "", "`http://127.0.0.1:8080` of a standalone server, instead of `store`"),
    Option("tokenFile", "", "file with a super user's token, where brokers have authentication; on the driver"),
    Option("roll", "true", "have brokers seal what they have acknowledged; `false` reads what is sealed"),
    Option("rows", MESSAGES, f"`{MESSAGES}`, or `{ENTRIES}` as brokers store them"),
    Option("value", BYTES, f"`{BYTES}`, or `{SCHEMA}`: columns of the topic's schema (Avro, JSON, primitive, KeyValue)"),
    Option("readCompacted", "false", "`true`: of what was compacted the latest message of each key, and all that came later; not for streams"),
    Option("columns", "all", "columns to read, separated by commas: fewer cost less"),
    Option("startingPosition", EARLIEST, "first entry that is read: `ledger:entry`, `earliest`, `latest`, or JSON by partition"),
    Option("endingPosition", LATEST, "last entry that is read: `ledger:entry`, `latest`, or JSON by partition; not for streams"),
    Option("startingTime", "", "least publish time: ISO 8601 (UTC unless it says otherwise), or milliseconds"),
    Option("endingTime", "", "first publish time that is not read any more"),
    Option("bytesPerTask", str(GROUP_BYTES_MAX), f"of input, {BYTES_MIN} to {BYTES_MAX}"),
    Option("pushdown", "false", "`true`: filters of the query skip what cannot match; for one query a DataFrame"),
    Option("undecodable", FAIL, "messages that cannot be opened (encrypted, damaged): `fail`, or `skip`"),
)  # fmt: skip

STREAM_OPTIONS = (
    Option("bytesPerTrigger", "0", "input of one micro-batch and partition, about; 0 = all there is"),
    Option("rollInterval", "10", "seconds between two requests to seal, at least"),
    Option("failOnDataLoss", "true", "`false` goes on where retention has dropped entries that were not read"),
    Option("watermarks", "false", "`true` adds the column `watermark`; for batch queries as well"),
)  # fmt: skip

_KNOWN = {option.name.lower(): option for option in (*READ_OPTIONS, *STREAM_OPTIONS)}


def refusal(option: str, value: str, remedy: str) -> InvalidRequest:
    """What is wrong with an option."""
    return InvalidRequest(f"{NAME}: option {option} is {value!r}; {remedy}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The values. `starting` and `ending` are by partition; "" stands for those that are not
    named. Times are milliseconds, the latter one not included."""

    topics: tuple[str, ...]
    namespace: str
    volume: str
    store: StorePlace
    token_file: str
    roll: bool
    rows: str
    by_schema: bool
    compacted: bool
    columns: tuple[str, ...]
    starting: Mapping[str, Position | str]
    ending: Mapping[str, Position | str]
    starting_ms: int | None
    ending_ms: int | None
    bytes_per_task: int
    pushdown: bool
    undecodable: str
    bytes_per_trigger: int
    roll_interval_s: float
    fail_on_data_loss: bool
    watermarks: bool

    @staticmethod
    def parse(given: Mapping[str, str]) -> ReadOptions:
        """Raises InvalidRequest naming option, value and remedy."""
        values = _known(given)
        rows = _choice("rows", values, (MESSAGES, ENTRIES))
        value = _choice("value", values, (BYTES, SCHEMA) if rows == MESSAGES else (BYTES,))
        return ReadOptions(
            topics=_topics(values["topic"], values["namespace"]),
            namespace=values["namespace"],
            volume=_volume(values["volume"]),
            store=_store(values),
            token_file=values["tokenfile"],
            roll=_choice("roll", values, ("true", "false")) == "true",
            rows=rows,
            by_schema=value == SCHEMA,
            compacted=_choice("readCompacted", values, ("true", "false")) == "true",
            columns=tuple(
                part.strip() for part in values["columns"].split(",") if part.strip() != "all"
            ),
            starting=_positions("startingPosition", values, (EARLIEST, LATEST)),
            ending=_positions("endingPosition", values, (LATEST,)),
            starting_ms=_time_ms("startingTime", values),
            ending_ms=_time_ms("endingTime", values),
            bytes_per_task=int(number_of("bytesPerTask", values, BYTES_MIN, BYTES_MAX)),
            pushdown=_choice("pushdown", values, ("true", "false")) == "true",
            undecodable=_choice("undecodable", values, (FAIL, SKIP)),
            bytes_per_trigger=int(number_of("bytesPerTrigger", values, 0, 1 << 50)),
            roll_interval_s=number_of("rollInterval", values, 0, 86_400),
            fail_on_data_loss=_choice("failOnDataLoss", values, ("true", "false")) == "true",
            watermarks=_choice("watermarks", values, ("true", "false")) == "true",
        )

    def after(self, partition: str) -> Position | str:
        """Behind which position a partition is read; or `latest`."""
        found = self.starting.get(partition, self.starting.get("", EARLIEST))
        if isinstance(found, str):
            return BEFORE_ALL if found == EARLIEST else LATEST
        return (found[0], found[1] - 1)

    def until(self, partition: str) -> Position:
        """Up to which position."""
        found = self.ending.get(partition, self.ending.get("", LATEST))
        return UNBOUNDED if isinstance(found, str) else found

    @property
    def has_ending(self) -> bool:
        """Whether a position says where to end."""
        return any(found != LATEST for found in self.ending.values())

    @property
    def same_everywhere(self) -> bool:
        """Whether no position is given without its partition."""
        return isinstance(self.starting.get("", ""), str) and isinstance(
            self.ending.get("", ""), str
        )

    def named_partitions(self) -> set[str]:
        """Those of which a position says where to begin or to end."""
        return {*self.starting, *self.ending} - {""}


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Values by lower-case name, with the defaults of those that are not given."""
    unknown = [name for name in given if name.lower() not in _KNOWN]
    if unknown:
        names = ", ".join(option.name for option in _KNOWN.values())
        raise InvalidRequest(f"{NAME}: option {unknown[0]!r} is not known; there are {names}")
    values = {name: option.default for name, option in _KNOWN.items()}
    return values | {name.lower(): value for name, value in given.items()}


def _choice(name: str, values: Mapping[str, str], offered: tuple[str, ...]) -> str:
    value = values[name.lower()].lower()
    if value not in offered:
        raise refusal(name, values[name.lower()], f"use {' or '.join(offered)}")
    return value


def number_of(name: str, values: Mapping[str, str], least: float, most: float) -> float:
    """A number option. Raises InvalidRequest."""
    value = values[name.lower()]
    try:
        found = float(value)
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise refusal(name, value, f"use {least:g} to {most:g}")
    return found


def _topics(topics: str, namespace: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in topics.split(",") if part.strip())
    if bool(names) == bool(namespace):
        raise refusal("topic", topics, "name topics, or a namespace, and not both")
    if len(names) > TOPICS_MAX:
        raise refusal("topic", f"{len(names)} names", f"name at most {TOPICS_MAX}, or a namespace")
    try:
        if namespace:
            NamespaceName.parse(namespace)
        parsed = [TopicName.parse(name) for name in names]
    except MagnetarError as error:
        raise refusal("topic" if names else "namespace", topics or namespace, str(error)) from error
    for name in parsed:
        if not name.persistent:
            raise refusal("topic", str(name), "name persistent topics: others are not stored")
    return tuple(dict.fromkeys(map(str, parsed)))


def _volume(location: str) -> str:
    if not location:
        raise refusal("volume", "", "give the storage of the cluster's brokers")
    check_location(location)
    return location


def _store(values: Mapping[str, str]) -> StorePlace:
    place = StorePlace(values["store"], values["storetls"], values["brokerurl"])
    if bool(place.store) == bool(place.broker_url):
        raise refusal("store", place.store, "give store or brokerUrl, and not both")
    for name, value in (("store", place.store), ("brokerUrl", place.broker_url)):
        if "@" in value:
            # Not quoted: what stands there may be a secret.
            raise refusal(name, "(not shown)", "it holds no credentials: use storeTls or tokenFile")
    return place


def _positions(
    name: str, values: Mapping[str, str], words: tuple[str, ...]
) -> dict[str, Position | str]:
    value = values[name.lower()].strip()
    if not value.startswith("{"):
        return {"": _position(name, value, words)}
    try:
        found = json.loads(value)
        items = [(str(TopicName.parse(topic)), str(place)) for topic, place in found.items()]
    except (ValueError, AttributeError, MagnetarError) as error:
        remedy = f'write {{"persistent://tenant/namespace/topic-partition-0": "17:4"}}: {error}'
        raise refusal(name, value, remedy) from error
    return {topic: _position(name, place, words) for topic, place in items}


def _position(name: str, text: str, words: tuple[str, ...]) -> Position | str:
    if text in words:
        return text
    ledger, separator, entry = text.partition(":")
    if not separator or not ledger.isdecimal() or not entry.isdecimal():
        raise refusal(name, text, f"write ledger:entry, or {' or '.join(words)}")
    return int(ledger), int(entry)


def _time_ms(name: str, values: Mapping[str, str]) -> int | None:
    value = values[name.lower()]
    if not value:
        return None
    if value.isdecimal():
        return int(value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise refusal(name, value, "write 2026-01-31T12:00:00+00:00, or milliseconds") from error
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
