"""Settings: bounds are inclusive and both sides are refused, the environment is read by name,
errors say what to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest

from magnetar.broker.commands.sessions import ProducerSession
from magnetar.broker.connections.send_group import SendGroup
from magnetar.errors import InvalidRequest
from magnetar.hosting.bounded import ENVIRONMENT_PREFIX, bounded_fields
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata.records import LogPosition
from magnetar.names import NAME_LENGTH_MAX
from magnetar.storage.log.format import EntriesRecord, encode_entries
from magnetar.storage.log.framing import Encoded
from magnetar.storage.log.recovery import scan
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.logs import INCARNATION, open_writer, run_on_volume

DEFAULTS = BrokerSettings()
SETTINGS = bounded_fields(BrokerSettings)
NAMES = [setting.name for setting in SETTINGS]
BOUNDS = {setting.name: setting.metadata for setting in SETTINGS}
MESSAGE = BOUNDS["max_message_bytes"]


def run_of(entries: list[bytes], topic: bytes = b"", producer: bytes = b"") -> Encoded:
    """A record of one producer's entries."""
    once = [1] * len(entries)
    return encode_entries(
        epoch=1,
        ledger=3,
        first_entry=0,
        append_ms=1,
        topic=topic,
        producer=producer,
        message_counts=once,
        sequences=once,
        entries=entries,
    )


def variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_defaults_lie_within_their_bounds_and_are_described(
    setting: dataclasses.Field[object],
) -> None:
    """Every setting has bounds and a text, and its default could be given explicitly."""
    assert setting.metadata["low"] <= setting.default <= setting.metadata["high"]
    assert len(setting.metadata["what"]) > 10
    found = BrokerSettings.from_environment({variable(setting.name): str(setting.default)})
    assert getattr(found, setting.name) == setting.default
    assert type(getattr(found, setting.name)) is type(setting.default)


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_a_value_outside_its_bounds_is_refused_with_variable_value_and_bounds(
    setting: dataclasses.Field[object],
) -> None:
    """Nothing is clamped: one step beyond either bound stops the start with a sentence that
    helps."""
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
    """The environment holds more than settings: what another part reads (MAGNETAR_STORE) is no
    error here."""
    assert BrokerSettings.from_environment({"MAGNETAR_STORE": "etcd://x", "PATH": "/"}) == DEFAULTS


def test_a_log_file_must_hold_some_messages() -> None:
    """The relation between two settings names the variable and the least value."""
    with pytest.raises(
        InvalidRequest, match=r"MAGNETAR_LOG_FILE_BYTES=1048576 .* use at least 20971520"
    ):
        BrokerSettings(log_file_bytes=1 << 20)
    assert (
        BrokerSettings(log_file_bytes=1 << 20, max_message_bytes=1 << 18).log_file_bytes == 1 << 20
    )


@pytest.mark.parametrize(
    "message_bytes", [MESSAGE["low"], 1 << 20, 5 << 20, (8 << 20) - 1, 8 << 20, MESSAGE["high"]]
)
@pytest.mark.parametrize("file", ["smallest", "default"])
def test_the_largest_entry_that_is_allowed_fits_into_the_log(
    tmp_path: Path, message_bytes: int, file: str
) -> None:
    """Whatever size of messages is chosen: with names as long as they may be, also in the
    smallest file that goes with it; replay reads it."""
    smallest = max(1 << 20, 4 * message_bytes)
    settings = BrokerSettings(
        max_message_bytes=message_bytes,
        log_file_bytes=smallest if file == "smallest" else max(smallest, DEFAULTS.log_file_bytes),
        producer_name_bytes_max=BOUNDS["producer_name_bytes_max"]["high"],
    )
    assert (
        message_bytes
        <= settings.entry_bytes_max
        <= settings.publish_bytes_max
        < settings.block_bytes_max
        < settings.log_file_bytes
    )
    run = run_of(
        [bytes(settings.entry_bytes_max)],
        b"t" * 4 * NAME_LENGTH_MAX,
        b"p" * settings.producer_name_bytes_max,
    )

    async def script(volume: PosixVolume) -> None:
        block = settings.block_bytes_max
        async with open_writer(
            volume,
            file_bytes=settings.log_file_bytes,
            block_bytes_max=block,
            pending_bytes_max=block,
        ) as writer:
            writer.append(run.buffers, run.size, 1, None)
            await writer.barrier()
        [found] = [
            scanned.record async for scanned in scan(volume, INCARNATION, LogPosition(0, 0), None)
        ]
        assert isinstance(found, EntriesRecord)
        assert len(found.data) == settings.entry_bytes_max

    run_on_volume(tmp_path, script)


def test_what_one_read_brings_of_one_producer_is_cut_so_that_it_fits_into_the_log() -> None:
    """Empty entries, too: what the log has about each of them counts."""
    group = SendGroup(cast(ProducerSession, None))
    for sequence in range(1000):
        group.add(memoryview(b""), 1, sequence, 0)
    assert run_of([b""] * 1000).size - run_of([b""]).size <= group.bytes


def test_ack_sets_fit_into_a_part_of_a_block() -> None:
    """A cursor is written in pieces; what one ack set may have follows the size of blocks where
    that is less than the setting."""
    assert BrokerSettings().ack_words_max == 4096
    small = BrokerSettings(
        ack_set_words_max=1 << 20, log_file_bytes=1 << 20, max_message_bytes=256 << 10
    )
    assert 8 * small.ack_words_max <= small.block_bytes_max // 5


def test_caches_are_sized_by_the_memory_limit() -> None:
    """The default limit of a BrokerCluster gives what a broker without a limit has; what is set
    stays."""
    limit = 2 << 30
    assert BrokerSettings.from_environment({}, limit) == DEFAULTS
    small = BrokerSettings.from_environment({}, limit // 4)
    assert (small.tail_cache_bytes_max, small.log_pending_bytes_max) == (32 << 20, 16 << 20)
    assert (
        BrokerSettings.from_environment(
            {"MAGNETAR_TAIL_CACHE_BYTES_MAX": "1048576"}, limit
        ).tail_cache_bytes_max
        == 1 << 20
    )


def test_a_memory_limit_keeps_the_caches_within_their_bounds() -> None:
    assert BrokerSettings.from_environment({}, 1 << 10).tail_cache_bytes_max == 64 << 10
    assert BrokerSettings.from_environment({}, 1 << 40).log_pending_bytes_max == 4096 << 20
