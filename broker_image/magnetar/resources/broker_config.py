"""`spec.config`: the settings of a broker, or of a transaction coordinator, each with its own
bounds.

Owns: the fields, which are made from the list that the broker's own settings are written into
(`make crds`). Imports: resources.base, balance.settings, difflib. Invariants: a setting that is not given is absent,
never defaulted here, so that a newer broker's defaults hold; a name that no broker knows, or means
nothing to a coordinator, is refused with the nearest one that there is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, create_model, model_validator

from magnetar.balance.settings import AVERAGE, BALANCE, FIELDS, STRATEGIES, text_of
from magnetar.resources.base import Model, Rule

SETTINGS: tuple[dict[str, Any], ...] = tuple(
    json.loads(Path(__file__).with_name("broker_settings.json").read_text())
)
ELSEWHERE = {setting["name"]: setting["field"] for setting in SETTINGS if setting["field"]} | {
    "volume": "spec.storage",
    "store": "spec.etcd",
    "advertised_listeners": "spec.listeners",
}
LIVE = frozenset(setting["name"] for setting in SETTINGS if setting["live"])
"""Those that brokers follow while they run."""
_DEFAULTS = {setting["name"]: setting["default"] for setting in SETTINGS}
COORDINATOR_SETTINGS = (
    "connections_max",
    "keep_alive_s",
    "lease_ttl_s",
    "requests_per_connection_max",
    "slow_peer_s",
    "transaction_end_patience_s",
    "transaction_outcome_kept_s",
    "transaction_participant_timeout_s",
    "transaction_participants_max",
    "transaction_timeout_max_s",
    "transactions_enabled",
    "transactions_open_max",
    "transactions_open_per_address_max",
    "transactions_open_per_role_max",
    "write_buffer_bytes_max",
)
"""Those that mean something to a transaction coordinator."""
LOG_FILE_MESSAGES_MIN = 4
"""A log file holds so many messages of the largest size, or the broker does not start."""


def _given(name: str) -> str:
    return f"(has(self.{name}) ? self.{name} : {_DEFAULTS[name]})"


def _is_average(name: str) -> str:
    return f"(has(self.{name}) && self.{name} == '{AVERAGE}')"


class Settings(Model):
    """What all configurations share. `KIND` is the resource that has them, `PROCESS` what takes
    them."""

    KIND: ClassVar[str] = "brokercluster"
    PROCESS: ClassVar[str] = "broker"

    @model_validator(mode="before")
    @classmethod
    def _knows_all_names(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(cls._unknown(str(name)))
        return given

    def value(self, name: str) -> float:
        """What holds for a broker of this version."""
        found = getattr(self, name)
        return _DEFAULTS[name] if found is None else found  # type: ignore[no-any-return]

    def chosen(self) -> dict[str, Any]:
        """The settings that are given, by name."""
        return {
            name: value
            for name in sorted(type(self).model_fields)
            if (value := getattr(self, name)) is not None
        }

    @classmethod
    def _unknown(cls, name: str) -> str:
        if name in ELSEWHERE:
            return f"{name} comes from {ELSEWHERE[name]}; set it there"
        near = difflib.get_close_matches(name.lower(), cls.model_fields, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        return (
            f"{name} is not a setting of a {cls.PROCESS}; {meant}docs/settings.md and kubectl "
            f"explain {cls.KIND}.spec.config list them"
        )


class Config(Settings):
    """What holds among settings of a broker."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{_given('log_file_bytes')} >= {LOG_FILE_MESSAGES_MIN} * {_given('max_message_bytes')}",
            f"config: log_file_bytes must be at least {LOG_FILE_MESSAGES_MIN} times "
            "max_message_bytes; raise one or lower the other",
            lambda config: (
                config.value("log_file_bytes")
                >= LOG_FILE_MESSAGES_MIN * config.value("max_message_bytes")
            ),
        ),
        Rule(
            f"{_is_average(STRATEGIES[0])} == {_is_average(STRATEGIES[1])}",
            f"config: AvgShedder works only as both {' and '.join(STRATEGIES)}; set it for both, or "
            "for neither",
            lambda config: len({getattr(config, name) == AVERAGE for name in STRATEGIES}) == 1,
        ),
    )


class CoordinatorSettings(Settings):
    """Base of a coordinator's settings."""

    KIND: ClassVar[str] = "transactioncoordinator"
    PROCESS: ClassVar[str] = "transaction coordinator"


def _fields(names: Collection[str] = ()) -> dict[str, Any]:
    """Fields for the settings of these names, or for all."""
    fields: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting["field"] or (names and setting["name"] not in names):
            continue
        kind: Any = int | None if setting["type"] == "integer" else float | None
        text = (
            f"{setting['description'][:1].upper()}{setting['description'][1:]}. Default: "
            f"{setting['default']:.15g}."
        )
        if not names and setting["live"]:
            text += " A change restarts nothing."
        fields[setting["name"]] = (
            kind,
            Field(
                default=None,
                alias=setting["name"],
                ge=setting["minimum"],
                le=setting["maximum"],
                description=text,
                strict=True,
            ),
        )
    return fields


def _balance_fields() -> dict[str, Any]:
    """Fields for load balancing, by Pulsar's names."""
    fields: dict[str, Any] = {}
    defaults = BALANCE.named()
    for name, setting in FIELDS.items():
        bounds, kind = setting.metadata["bounds"], str(setting.type).split("[")[0]
        limits: dict[str, Any] = {} if kind == "str" else {"strict": True}
        if kind in ("int", "float"):
            limits |= {"ge": bounds[0], "le": bounds[1]}
        chosen: Any = {"int": int, "float": float, "bool": bool}.get(kind, str)
        fields[name] = (
            (Literal[bounds] if kind == "str" else chosen) | None,
            Field(
                default=None,
                alias=name,
                description=f"Load balancing, by Pulsar's name. Default: "
                f"{text_of(defaults[name]) or 'none'}.",
                **limits,
            ),
        )
    return fields


if TYPE_CHECKING:

    class BrokerConfig(Config):
        """Settings of a broker by their own names."""

    class CoordinatorConfig(CoordinatorSettings):
        """Settings of a transaction coordinator by their own names."""

else:
    BrokerConfig = create_model(
        "BrokerConfig",
        __base__=Config,
        __doc__="Settings of a broker by their own names.",
        **_fields(),
        **_balance_fields(),
    )
    CoordinatorConfig = create_model(
        "CoordinatorConfig",
        __base__=CoordinatorSettings,
        __doc__="Settings of a transaction coordinator by their own names.",
        **_fields(COORDINATOR_SETTINGS),
    )
