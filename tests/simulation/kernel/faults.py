"""What goes wrong in a world, and how often.

Owns: `Faults`, every rate and range of injected trouble in one place. Imports: dataclasses.
Ranges are (low, high) in seconds, drawn uniformly; probabilities are per operation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """Environment of a world. The defaults are a healthy cluster; `Faults.all()` is a bad day."""

    # network
    latency_s: Range = (0.0001, 0.001)
    latency_spike_probability: float = 0.0
    latency_spike_s: Range = (0.05, 2.0)
    split_probability: float = 0.3
    """Chance that a read delivers less than what has arrived, cut at any byte."""
    merge_probability: float = 0.5
    """Chance that a write joins the packet of the write before it in the same instant."""
    crash_noticed_s: Range = (0.0001, 0.05)
    """When peers learn that a crashed process' connections are gone."""
    half_open_s: Range = (5.0, 60.0)
    """When an end of a connection whose bytes were dropped gives up."""

    # disk
    disk_step_s: Range = (0.00001, 0.0002)
    """Between the write, the flush, the look at the claim and the return of an append."""
    flush_s: Range = (0.0002, 0.002)
    slow_flush_probability: float = 0.0
    slow_flush_s: Range = (0.1, 5.0)
    write_error_probability: float = 0.0
    flush_error_probability: float = 0.0
    lookup_error_probability: float = 0.0
    read_error_probability: float = 0.0
    """Of no mix but those that ask for it."""
    partial_write_probability: float = 0.05
    """Chance that a write happens in two parts, between which the process may be paused or
    killed."""
    append_crash_probability: float = 0.0
    """Chance that an append to a log is its process' last deed, in any of its steps: before the
    write, or between what follows it."""

    reserve_bytes: int = 0
    """What the volume keeps for when the disk is full; 0: there is no reserve, and the disk must
    never be full."""
    short_write_probability: float = 0.0
    """Chance that an append to a log on a full disk ends half-way, though its space was
    promised."""

    # objects
    object_latency_s: Range = (0.001, 0.02)
    object_lost_request_probability: float = 0.0
    object_lost_reply_probability: float = 0.0
    object_late_probability: float = 0.0
    """Chance that a request is carried out after its caller has given up, by up to
    `object_late_s`."""
    object_conflict_probability: float = 0.0
    object_slow_probability: float = 0.0
    object_slow_s: Range = (0.5, 4.0)
    """How long a slow request is on its way before it is carried out; its caller waits for it."""
    object_timeout_s: float = 0.5
    object_late_s: Range = (0.0, 8.0)

    # store
    store_latency_s: Range = (0.0005, 0.003)
    lost_request_probability: float = 0.0
    lost_reply_probability: float = 0.0
    store_timeout_s: float = 2.0
    """How long a client waits before a lost request or reply becomes StoreUnavailable."""
    watch_disconnect_probability: float = 0.0
    """Per batch: the stream is cut and resumed from the next revision."""
    compact_probability: float = 0.0
    """Per change: the store forgets its history up to now."""

    # clocks
    wall_skew_max_s: float = 0.0
    drift_max: float = 0.0

    # what the nemesis does; None = never. Each is the mean time between two such events.
    crash_every_s: float | None = None
    pause_every_s: float | None = None
    partition_every_s: float | None = None
    store_partition_every_s: float | None = None
    store_outage_every_s: float | None = None
    lease_loss_every_s: float | None = None
    reset_every_s: float | None = None
    power_loss_every_s: float | None = None
    wall_jump_every_s: float | None = None
    disk_full_every_s: float | None = None
    disk_hang_every_s: float | None = None
    down_s: Range = (0.1, 8.0)
    pause_s: Range = (0.1, 12.0)
    partition_s: Range = (0.1, 15.0)
    outage_s: Range = (0.1, 10.0)
    wall_jump_s: Range = (-60.0, 60.0)
    disk_full_s: Range = (0.5, 6.0)
    disk_full_slack_bytes: int = 0
    """Up to so much is left free on a disk that is full."""
    disk_hang_s: Range = (0.5, 4.0)

    @staticmethod
    def none() -> Faults:
        """A healthy cluster: latency and random interleaving only."""
        return Faults()

    @staticmethod
    def all() -> Faults:
        """Everything at once, each often enough to meet the others within some virtual minutes."""
        return Faults(
            latency_spike_probability=0.001,
            slow_flush_probability=0.005,
            write_error_probability=0.0002,
            flush_error_probability=0.0002,
            lookup_error_probability=0.0002,
            object_lost_request_probability=0.003,
            object_lost_reply_probability=0.005,
            object_late_probability=0.003,
            object_conflict_probability=0.005,
            object_slow_probability=0.003,
            lost_request_probability=0.005,
            lost_reply_probability=0.005,
            watch_disconnect_probability=0.02,
            compact_probability=0.005,
            wall_skew_max_s=5.0,
            drift_max=0.0001,
            crash_every_s=20.0,
            pause_every_s=20.0,
            partition_every_s=30.0,
            store_partition_every_s=40.0,
            store_outage_every_s=60.0,
            lease_loss_every_s=60.0,
            reset_every_s=15.0,
            power_loss_every_s=120.0,
            wall_jump_every_s=60.0,
        )

    def but(self, **changes: object) -> Faults:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def calm(self) -> Faults:
        """The same latencies with every probability of failure at zero: the world after the
        nemesis has stopped."""
        kept = ("split_probability", "merge_probability", "partial_write_probability")
        zero = {
            field.name: 0.0
            for field in dataclasses.fields(self)
            if field.name.endswith("_probability") and field.name not in kept
        }
        return dataclasses.replace(self, **zero)  # type: ignore[arg-type]
