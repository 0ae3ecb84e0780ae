"""What the hostile client sends is what it means to send, and what the skewed server notes is
what happened."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from dev.soak.attacks.acks import ack_frame
from dev.soak.attacks.largest import ALL, largest_frame
from dev.soak.attacks.raw import Target
from dev.soak.clock_jumps import ClockJumps
from dev.soak.hostile_peer import ATTACKS, Plan, attack_of
from dev.soak.hostile_report import Phase, latency_table, logged_errors, measured
from dev.soak.paced import Sample
from dev.soak.skewed_main import LoopWatch, Skew
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import FIELD_OF_TYPE, decode_command
from magnetar.wire.frames import FRAME_OVERHEAD_BYTES_MAX, HEADER_BYTES

SMALL_BYTES = 20_000


def target(seed: int = 0) -> Target:
    return Target(
        [],
        [],
        "public/hostile",
        "public/hostile-rest",
        "persistent://public/hostile/t",
        [],
        random.Random(seed),
    )


@pytest.mark.parametrize(
    ("kind", "path"),
    ALL,
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_largest_frame_is_well_formed_and_large(kind: int, path: tuple[str, ...]) -> None:
    """The broker's own decoder takes it, and it fills what it may (a count of elements may end
    it earlier)."""
    frame = largest_frame(target(), kind, path, SMALL_BYTES)
    assert SMALL_BYTES / 4 < len(frame) <= SMALL_BYTES + FRAME_OVERHEAD_BYTES_MAX
    assert decode_command(frame, HEADER_BYTES).type == kind


def test_largest_frames_cover_every_command_with_room() -> None:
    """Only commands of numbers alone have no largest frame."""
    covered = {kind for kind, _ in ALL}
    left = {FIELD_OF_TYPE[kind] for kind in FIELD_OF_TYPE} - {
        FIELD_OF_TYPE[kind] for kind in covered
    }
    assert left == {
        *("ping", "pong", "flow", "unsubscribe", "consumer_stats", "get_last_message_id", "reached_end_of_topic"),
        *("active_consumer_change", "new_txn", "end_txn", "tc_client_connect_request", "watch_topic_list_close"),
        *("set_watermark", "watermark", "get_last_watermark", "get_last_watermark_response"),
    }  # fmt: skip


def test_an_acknowledgement_by_hand_is_that_of_the_library() -> None:
    """The ids that are encoded by hand come out as they went in."""
    ids = [(1, 0), (1, 2), (1 << 40, (1 << 64) - 1)]
    command = decode_command(ack_frame(ids, 1000, 7, TxnId(1, 2)), HEADER_BYTES)
    assert [(found.ledgerId, found.entryId) for found in command.ack.message_id] == ids
    assert (command.ack.request_id, command.ack.txnid_most_bits, command.ack.txnid_least_bits) == (
        7,
        1,
        2,
    )
    assert command.ack.ack_type == api.CommandAck.Individual


def test_a_seed_draws_the_same_attacks_and_every_one_of_them() -> None:
    plan = Plan("7", [], [], "a/b", "a/c", [], [], "", "", 0)
    drawn = [attack_of(plan, number) for number in range(2 * len(ATTACKS))]
    assert drawn == [attack_of(plan, number) for number in range(2 * len(ATTACKS))]
    assert {*drawn[: len(ATTACKS)]} == {*drawn[len(ATTACKS) :]} == {*ATTACKS}
    assert drawn[: len(ATTACKS)] != drawn[len(ATTACKS) :]


def test_clocks_jump_by_file_and_settle(tmp_path: Path) -> None:
    jumps = ClockJumps(tmp_path, ["broker-0", "broker-1"])
    jumps.set("broker-0", -31_536_000)
    skew = Skew(tmp_path / "broker-0.offset")
    assert (skew.offset_ms, jumps.described()) == (-31_536_000_000, "broker-0 -31536000 s")
    jumps.settle()
    skew.read()
    assert (skew.offset_ms, jumps.described()) == (0, "")


async def test_a_stop_of_the_loop_is_noted_with_what_it_did(tmp_path: Path) -> None:
    """By name of the function that kept the loop."""

    watch = LoopWatch(tmp_path / "stops")

    def keep_the_loop() -> None:
        """Until the other thread has looked, whenever the machine lets it."""
        until = time.thread_time() + 0.3
        while time.thread_time() < until or not any(map(named, watch._seen)):
            pass

    def named(frame: str) -> bool:
        return "keep_the_loop" in frame

    def noted() -> list[dict[str, Any]]:
        path = tmp_path / "stops"
        stops = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [stop for stop in stops if any(map(named, stop["where"]))]

    async def run() -> None:
        watching = asyncio.ensure_future(watch.tick())
        await asyncio.sleep(0.05)
        while not (found := noted()):  # a look that comes just behind it sees something else
            keep_the_loop()
            await asyncio.sleep(0.05)
        watching.cancel()
        [stop] = found
        assert stop["seconds"] >= 0.25
        assert stop["cpu_s"] >= 0.25

    await run()


def test_latencies_of_phases_stand_side_by_side() -> None:
    phases = [Phase(False, 0.0, 10.0), Phase(True, 10.0, 20.0)]
    samples = [Sample(float(at), 0.001 if at < 10 else 0.004) for at in range(20)]
    assert measured(samples, phases, True).count == 10
    assert measured(samples, phases, False).values["p99"] == 0.001
    assert "4.0" in latency_table({"receipt": samples}, phases)[1]


def test_errors_that_nobody_foresaw_are_counted(tmp_path: Path) -> None:
    """Level error and tracebacks, not refusals."""
    log = tmp_path / "broker.log"
    lines = [
        json.dumps({"event": "request.refused", "level": "info"}),
        json.dumps(
            {
                "event": "connection.request_failed",
                "level": "error",
                "exception": "Traceback\n  File\nKeyError: 1",
            }
        ),
        "Exception in thread",
    ]
    log.write_text("\n".join(lines))
    assert logged_errors(log) == {
        "connection.request_failed: KeyError: 1": 1,
        "Exception in thread": 1,
    }
