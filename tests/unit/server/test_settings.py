"""Settings: bounds are inclusive and both sides are refused, the environment is read by name, errors say what to do."""

from __future__ import annotations

import dataclasses

import pytest

from magnetar.errors import InvalidRequest
from magnetar.server.settings import ENVIRONMENT_PREFIX, BrokerSettings

DEFAULTS = BrokerSettings()
SETTINGS = dataclasses.fields(BrokerSettings)
NAMES = [setting.name for setting in SETTINGS]


def variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_defaults_lie_within_their_bounds_and_are_described(setting: dataclasses.Field[object]) -> None:
    """Every setting has bounds and a text, and its default could be given explicitly."""
    assert setting.metadata["low"] <= setting.default <= setting.metadata["high"]
    assert len(setting.metadata["what"]) > 10
    found = BrokerSettings.from_environment({variable(setting.name): str(setting.default)})
    assert getattr(found, setting.name) == setting.default
    assert type(getattr(found, setting.name)) is type(setting.default)


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_a_value_outside_its_bounds_is_refused_with_variable_value_and_bounds(setting: dataclasses.Field[object]) -> None:
    """Nothing is clamped: one step beyond either bound stops the start with a sentence that helps."""
    low, high = setting.metadata["low"], setting.metadata["high"]
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequest) as refused:
            BrokerSettings.from_environment({variable(setting.name): str(value)})
        text = str(refused.value)
        assert f"{variable(setting.name)}={value}" in text
        assert f"{low}..{high}" in text
        assert setting.metadata["what"] in text


@pytest.mark.parametrize("text", ["", "four", "1e", "0x10", "4.5"])
def test_what_is_not_a_number_is_refused(text: str) -> None:
    """An integer setting takes no fraction either."""
    with pytest.raises(InvalidRequest, match=r"MAGNETAR_PARTITIONS_MAX=.*not a number"):
        BrokerSettings.from_environment({"MAGNETAR_PARTITIONS_MAX": text})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_that_no_bound_can_hold_are_refused(text: str) -> None:
    """NaN compares false with everything and must not slip through."""
    with pytest.raises(InvalidRequest, match="MAGNETAR_LEASE_TTL_S"):
        BrokerSettings.from_environment({"MAGNETAR_LEASE_TTL_S": text})


def test_other_variables_are_left_alone() -> None:
    """The environment holds more than settings: what another part reads (MAGNETAR_STORE) is no error here."""
    assert BrokerSettings.from_environment({"MAGNETAR_STORE": "etcd://x", "PATH": "/"}) == DEFAULTS


def test_a_log_file_must_hold_some_messages() -> None:
    """The relation between two settings names the variable and the least value."""
    with pytest.raises(InvalidRequest, match=r"MAGNETAR_LOG_FILE_BYTES=1048576 .* use at least 20971520"):
        BrokerSettings(log_file_bytes=1 << 20)
    assert BrokerSettings(log_file_bytes=1 << 20, max_message_bytes=1 << 18).log_file_bytes == 1 << 20


@pytest.mark.parametrize("message_bytes", [1 << 10, 1 << 20, 5 << 20, 32 << 20])
def test_a_block_holds_whatever_one_producer_may_publish_at_once(message_bytes: int) -> None:
    """Derived sizes fit into each other for every allowed message size, with the smallest file that goes with it."""
    settings = BrokerSettings(max_message_bytes=message_bytes, log_file_bytes=max(1 << 20, 4 * message_bytes))
    assert message_bytes <= settings.publish_bytes_max < settings.block_bytes_max < settings.log_file_bytes
