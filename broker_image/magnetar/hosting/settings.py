"""Settings and limits of a broker.

Owns: every named limit and interval of the server, with its unit, default and bounds. Imports:
errors, storage.log_format. Invariants: a setting that is out of bounds stops the start with a
sentence that names it; nothing is clamped silently; the largest message that may be allowed fits
into a block of the log, whatever the names of its topic and producer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.storage.log.blocks import BLOCK_BODY_BYTES_MAX

ENVIRONMENT_PREFIX = "MAGNETAR_"
_KIB, _MIB = 1 << 10, 1 << 20
ENTRY_HEAD_BYTES_MAX = 8 * _KIB
"""A little less than what a frame may have beyond `max_message_bytes`: what is too large by less
is refused alone, the rest with its connection."""


def _bounded(default: Any, low: float, high: float, what: str, share: int = 0) -> Any:
    """A dataclass field with bounds and a description (both are shown in errors and in the
    docs). Where the process' memory is limited, the default is one part in `share` of the limit."""
    return field(default=default, metadata={"low": low, "high": high, "what": what, "share": share})


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Everything a broker may be told; each can be set by environment as MAGNETAR_<NAME>."""

    max_message_bytes: int = _bounded(
        5 * _MIB, 1 * _KIB, 15 * _MIB, "largest message a client may send; announced in CONNECTED"
    )
    keep_alive_s: float = _bounded(
        30.0, 1, 3600, "interval of PING; a peer silent for longer than this after a PING is closed"
    )
    liveness_check_s: float = _bounded(
        5.0,
        0.05,
        600,
        "how long the holder of a name, or of exclusive access, may take to answer a PING when "
        "another wants it",
    )
    lease_ttl_s: float = _bounded(
        4.0, 1, 60, "time after which an unreachable broker counts as gone"
    )
    claim_check_s: float = _bounded(
        1.0, 0.05, 60, "interval at which an idle owner looks for its claim"
    )
    park_timeout_s: float = _bounded(
        20.0,
        0.1,
        120,
        "how long LOOKUP, PRODUCER and SUBSCRIBE wait for a bundle that changes hands",
    )
    drain_timeout_s: float = _bounded(
        120.0, 1, 3600, "how long a stopping broker tries to hand its bundles over"
    )
    drain_store_patience_s: float = _bounded(
        10.0,
        0.1,
        3600,
        "how long a stopping broker waits for a metadata store that is away before it leaves its "
        "bundles to a takeover",
    )
    log_file_bytes: int = _bounded(
        64 * _MIB, 1 * _MIB, 4096 * _MIB, "size at which a log file is rolled"
    )
    storage_reserve_bytes: int = _bounded(
        0,
        0,
        1 << 40,
        "bytes of the volume kept for cursors, trims, deletions and a start when it is full; "
        "shared by all brokers; 0 = as much as a log file",
    )
    log_pending_bytes_max: int = _bounded(
        64 * _MIB,
        64 * _KIB,
        4096 * _MIB,
        "bytes waiting for a flush above which connections are not read; without it 1/32 of the "
        "memory limit, if the broker has one",
        share=32,
    )
    checkpoint_files_max: int = _bounded(
        4, 1, 1000, "log files that a takeover may have to scan for one bundle"
    )
    checkpoint_records_max: int = _bounded(
        50_000,
        1000,
        100_000_000,
        "records of one bundle behind its last checkpoint at which it gets another: what a "
        "takeover replays",
    )
    tail_cache_bytes_max: int = _bounded(
        128 * _MIB,
        64 * _KIB,
        1 << 40,
        "recent entries kept in memory for dispatch; without it 1/16 of the memory limit, if the "
        "broker has one",
        share=16,
    )
    read_batch_bytes_max: int = _bounded(
        4 * _MIB, 64 * _KIB, 256 * _MIB, "bytes fetched at once for a reader that is behind"
    )
    read_batch_entries_max: int = _bounded(
        1000, 1, 100_000, "entries dispatched to one subscription before others get their turn"
    )
    ack_write_delay_s: float = _bounded(
        1.0, 0.0, 60, "an acknowledgement without request id is in the log at most this much later"
    )
    failover_delay_ms: int = _bounded(
        1000,
        0,
        600_000,
        "wait of a Failover consumer that takes over, for its predecessor's last acks",
    )
    key_shared_consistent_hashing: int = _bounded(
        1, 0, 1, "1: Key_Shared divides hashes by a ring of points, 0: by halving ranges"
    )
    look_ahead_per_consumer_entries_max: int = _bounded(
        2_000,
        1,
        1_000_000,
        "entries per consumer that Key_Shared reads past while they wait for theirs",
    )
    look_ahead_per_subscription_entries_max: int = _bounded(
        20_000, 1, 10_000_000, "the same, of a subscription as a whole"
    )
    connections_max: int = _bounded(
        20_000,
        1,
        1_000_000,
        "open client connections; fewer if the process may not open as many files",
    )
    connections_per_address_max: int = _bounded(
        10_000,
        1,
        1_000_000,
        "client connections from one IPv4 address or one /64 of IPv6 addresses",
    )
    connections_unauthenticated_max: int = _bounded(
        1_000,
        1,
        1_000_000,
        "connections that have not sent CONNECT yet; for one more the oldest is dropped",
    )
    connect_timeout_s: float = _bounded(5.0, 0.05, 60, "time a new connection has to send CONNECT")
    producers_per_connection_max: int = _bounded(
        10_000, 1, 1_000_000, "producers of one connection"
    )
    producer_name_bytes_max: int = _bounded(4096, 64, 60_000, "longest producer name, in UTF-8")
    deduplication_producers_max: int = _bounded(
        10_000,
        1,
        10_000_000,
        "producer names that deduplication remembers per topic, besides connected ones",
    )
    deduplication_inactive_s: float = _bounded(
        21_600.0, 1, 1 << 31, "time after which deduplication forgets a producer that has left"
    )
    consumers_per_connection_max: int = _bounded(
        10_000, 1, 1_000_000, "consumers of one connection"
    )
    non_persistent_in_flight_max: int = _bounded(
        1000,
        1,
        1_000_000,
        "non-persistent messages of one connection handled at once; more are dropped",
    )
    topic_watchers_per_connection_max: int = _bounded(
        100, 1, 100_000, "watchers of topic lists of one connection"
    )
    requests_per_connection_max: int = _bounded(
        5_000, 1, 1_000_000, "requests of one connection that wait for an answer"
    )
    write_buffer_bytes_max: int = _bounded(
        4 * _MIB,
        64 * _KIB,
        256 * _MIB,
        "bytes queued to one connection above which it gets no messages",
    )
    slow_peer_s: float = _bounded(
        60.0, 0.1, 3600, "time after which a connection whose peer does not read is dropped"
    )
    topics_per_namespace_max: int = _bounded(
        100_000, 1, 10_000_000, "topics that one namespace may have, partitions counted one by one"
    )
    partitions_max: int = _bounded(4096, 1, 100_000, "partitions of one topic")
    bundles_per_namespace_max: int = _bounded(
        128, 1, 4096, "bundles of one namespace above which none of them is split"
    )
    split_buffered_bytes_max: int = _bounded(
        16 * _MIB,
        0,
        1024 * _MIB,
        "bytes of messages that wait for the end of a bundle's split; producers of more are sent "
        "away",
    )
    moves_parallel_max: int = _bounded(16, 1, 1000, "bundles transferred at the same time")
    orphans_parallel_max: int = _bounded(
        64, 1, 10_000, "orphaned bundles that the leader assigns at the same time"
    )
    rebalance_bundles: int = _bounded(
        1,
        0,
        1,
        "1: the leader balances how many bundles brokers have, 0: bundles stay where they are "
        "while their broker lives",
    )
    move_pin_s: float = _bounded(
        86_400.0,
        0,
        1 << 31,
        "how long a bundle that was moved by hand to a named broker is left there by load "
        "balancing; 0: not at all",
    )
    stuck_state_s: float = _bounded(
        30.0,
        1,
        3600,
        "how long a bundle may be on its way between live brokers before the leader gives it to "
        "others",
    )
    inactive_topic_s: float = _bounded(
        60.0,
        0,
        1 << 31,
        "age at which a topic without subscriptions and producers is deleted unless a policy says "
        "otherwise; 0 = never",
    )
    topic_check_s: float = _bounded(
        5.0, 0.02, 3600, "interval at which topics are looked at for what has become due"
    )
    inactive_check_s: float = _bounded(
        60.0, 0.02, 86_400, "interval of looking for inactive topics"
    )
    expiry_check_s: float = _bounded(
        300.0, 0.02, 86_400, "interval of looking for messages beyond their time to live"
    )
    backlog_quota_check_s: float = _bounded(
        60.0, 0.02, 86_400, "interval of comparing backlogs with their quotas"
    )
    retention_check_s: float = _bounded(
        120.0, 0.02, 86_400, "interval of looking for messages that nobody needs any more"
    )
    trim_grace_s: float = _bounded(
        600.0,
        0,
        1 << 31,
        "age that a message reaches before it is dropped, even if nothing asks to retain it",
    )
    delayed_runs_max: int = _bounded(
        50_000, 10, 10_000_000, "runs of delayed entries a subscription remembers with their times"
    )
    chunked_messages_max: int = _bounded(
        10_000, 1, 10_000_000, "unfinished messages in chunks a subscription remembers"
    )
    ack_set_words_max: int = _bounded(
        4096, 1, 1 << 20, "64-bit words in the ack_set of one message id"
    )
    reader_return_s: float = _bounded(
        30.0, 0.1, 3600, "how long a reader's position is kept after its SEEK until it comes back"
    )
    recovery_retry_max_s: float = _bounded(
        60.0,
        0.1,
        3600,
        "longest wait between attempts to recover a bundle that cannot be recovered",
    )
    maintenance_s: float = _bounded(
        10.0, 0.05, 3600, "interval of checkpoints by age, of rewriting and of deleting files"
    )
    checkpoint_age_s: float = _bounded(
        60.0,
        0.05,
        86_400,
        "age at which a recovery chain that reaches into finished log files is ended by a "
        "checkpoint",
    )
    rewrite_age_s: float = _bounded(
        600.0,
        0,
        1 << 31,
        "age of a sealed log file at which what is alive in it is rewritten into segments",
    )
    rewrite_garbage_share: float = _bounded(
        0.5,
        0.01,
        1.0,
        "share of dead bytes of a bundle in a log file at which it is rewritten at once",
    )
    rewrite_bytes_per_s: int = _bounded(
        32 * _MIB, 64 * _KIB, 1 << 40, "bytes per second that rewriting may read"
    )
    log_spares_max: int = _bounded(
        2,
        0,
        64,
        "log files that nobody needs any more kept to be used again, for they flush faster than "
        "new ones",
    )
    replaced_kept_s: float = _bounded(
        60.0, 0, 1 << 31, "how long files that nobody needs any more are kept"
    )
    metadata_backup_interval_s: float = _bounded(
        600.0,
        0.05,
        86_400,
        "interval at which the leader copies the metadata store into storage, if anything durable "
        "has changed",
    )
    metadata_backups_kept: int = _bounded(
        3, 1, 1000, "copies of the metadata store that are kept in storage"
    )
    intent_age_max_s: float = _bounded(
        86_400.0,
        60,
        1 << 31,
        "age at which the intent of a job that nobody has learned of counts as orphaned",
    )
    listeners_check_s: float = _bounded(
        5.0,
        0.05,
        600,
        "interval of reading the addresses of advertised listeners again, where they come from a "
        "file",
    )
    transactions_enabled: int = _bounded(
        1,
        0,
        1,
        "1: transaction coordinators, and a standalone server, begin transactions; 0: they refuse "
        "as Pulsar does",
    )
    transactions_open_max: int = _bounded(
        100_000, 1, 10_000_000, "transactions of one coordinator that have not ended"
    )
    transactions_open_per_role_max: int = _bounded(
        20_000, 1, 10_000_000, "the same, of one authenticated role"
    )
    transactions_open_per_address_max: int = _bounded(
        20_000,
        1,
        10_000_000,
        "the same, begun since the coordinator's start from one IPv4 address or one /64 of IPv6 "
        "addresses",
    )
    transaction_participants_max: int = _bounded(
        10_000, 1, 1_000_000, "topics and subscriptions of one transaction"
    )
    transaction_timeout_max_s: float = _bounded(
        86_400.0, 1, 1 << 31, "longest timeout that a transaction may be given"
    )
    transaction_outcome_kept_s: float = _bounded(
        600.0,
        0,
        1 << 31,
        "how long the outcome of a transaction can be asked for after its end, if its timeout is "
        "not longer",
    )
    transaction_end_patience_s: float = _bounded(
        0.5,
        0,
        60,
        "how long the answer to a commit or abort that is decided waits for topics and "
        "subscriptions to carry it out",
    )
    transaction_participant_timeout_s: float = _bounded(
        10.0,
        0.1,
        600,
        "how long a topic or subscription may take to carry out a commit or abort before it is "
        "asked again",
    )
    txn_open_per_topic_max: int = _bounded(
        10_000,
        1,
        1_000_000,
        "open transactions with messages on one topic, or with acknowledgements on one subscription",
    )
    txn_open_entries_per_topic_max: int = _bounded(
        1_000_000,
        1,
        100_000_000,
        "entries of all open transactions on one topic; where each of them lies is kept in memory",
    )
    txn_entries_max: int = _bounded(
        100_000, 1, 10_000_000, "entries of one transaction on one topic"
    )
    txn_bytes_max: int = _bounded(
        1024 * _MIB, 1 * _KIB, 1 << 40, "bytes of one transaction's entries on one topic"
    )
    txn_inquire_s: float = _bounded(
        300.0,
        0.05,
        86_400,
        "age at which the coordinator of a transaction with messages or acknowledgements here is "
        "asked about it, again and again",
    )
    txn_held_acks_max: int = _bounded(
        200_000,
        1,
        200_000,
        "runs of entries and batches that transactions hold acknowledged on one subscription",
    )
    broker_entry_index: int = _bounded(
        0,
        0,
        1,
        "1: each message has an index, its number in its topic, as Pulsar's "
        "AppendIndexMetadataInterceptor gives it",
    )
    broker_entry_timestamp: int = _bounded(
        0,
        0,
        1,
        "1: each message has the time at which the broker took it, as Pulsar's "
        "AppendBrokerTimestampMetadataInterceptor gives it",
    )
    broker_entry_metadata_to_clients: int = _bounded(
        0,
        0,
        1,
        "1: clients that know of index and broker time get them, as with Pulsar's "
        "exposingBrokerEntryMetadataToClientEnabled",
    )
    txn_late_sends_as_ordinary: int = _bounded(
        0,
        0,
        1,
        "1: a message that names a committed transaction is published as an ordinary one, for "
        "batching Go producers; 0: it is refused",
    )
    load_report_s: float = _bounded(5.0, 0.1, 600, "interval of the load report")

    @staticmethod
    def from_environment(
        environment: Mapping[str, str], memory_limit_bytes: int | None = None
    ) -> BrokerSettings:
        """Read MAGNETAR_<NAME> for every setting; what is not there is sized by the memory
        limit, if there is one, or has its default. Raises InvalidRequest naming variable, value
        and bounds."""
        values: dict[str, Any] = {}
        for setting in dataclasses.fields(BrokerSettings):
            name = ENVIRONMENT_PREFIX + setting.name.upper()
            if name not in environment:
                if memory_limit_bytes is not None and (share := setting.metadata["share"]):
                    low, high = setting.metadata["low"], setting.metadata["high"]
                    values[setting.name] = min(max(memory_limit_bytes // share, low), high)
                continue
            convert = int if isinstance(setting.default, int) else float
            try:
                values[setting.name] = convert(environment[name])
            except ValueError as error:
                raise InvalidRequest(
                    f"{name}={environment[name]!r} is not a number ({setting.metadata['what']})"
                ) from error
        return BrokerSettings(**values)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            value, low, high = (
                getattr(self, setting.name),
                setting.metadata["low"],
                setting.metadata["high"],
            )
            if not low <= value <= high:
                raise InvalidRequest(
                    f"{ENVIRONMENT_PREFIX}{setting.name.upper()}={value} is out of range: use "
                    f"{low}..{high} ({setting.metadata['what']})"
                )

        if self.log_file_bytes < 4 * self.max_message_bytes:
            raise InvalidRequest(
                f"{ENVIRONMENT_PREFIX}LOG_FILE_BYTES={self.log_file_bytes} is too small for "
                f"messages of {self.max_message_bytes} bytes: "
                f"use at least {4 * self.max_message_bytes}"
            )

    @property
    def reserve_bytes(self) -> int:
        """What is kept of the volume when it is full."""
        return self.storage_reserve_bytes or self.log_file_bytes

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of one SEND behind its command. Clients hold payloads alone against
        `max_message_bytes`; their metadata comes on top."""
        return self.max_message_bytes + ENTRY_HEAD_BYTES_MAX

    @property
    def publish_bytes_max(self) -> int:
        """Bytes of one producer that go into one record of the log."""
        return max(self.entry_bytes_max, 512 * _KIB)

    @property
    def ack_words_max(self) -> int:
        """`ack_set_words_max`, as far as one mask fits into a fifth of a block: a cursor is
        written in pieces of such parts."""
        return min(self.ack_set_words_max, self.block_bytes_max // (5 * 8))

    @property
    def batch_messages_max(self) -> int:
        """Messages that one batch may announce: as many as an ack set can name."""
        return 64 * self.ack_words_max

    @property
    def block_bytes_max(self) -> int:
        """Bytes of one group commit."""
        return min(
            max(8 * _MIB, 2 * self.publish_bytes_max),
            BLOCK_BODY_BYTES_MAX,
            self.log_file_bytes - 8 * _KIB,
        )
