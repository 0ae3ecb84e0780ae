"""Settings and limits of a broker.

Owns: every named limit and interval of the server, with its unit, default and bounds. Imports:
balance.settings, errors, bounded, connection_settings, storage.log.blocks. Invariant: the largest
message that may be allowed fits into a block of the log, whatever the names of its topic and
producer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.balance.settings import BALANCE, Settings
from magnetar.balance.settings import FIELDS as BALANCE_FIELDS
from magnetar.errors import InvalidRequest
from magnetar.hosting.bounded import bounded, check_bounds, environment_values, variable
from magnetar.hosting.connection_settings import ConnectionSettings
from magnetar.storage.log.blocks import BLOCK_BODY_BYTES_MAX

_KIB, _MIB = 1 << 10, 1 << 20
ENTRY_HEAD_BYTES_MAX = 8 * _KIB
"""A little less than what a frame may have beyond `max_message_bytes`: what is too large by less
is refused alone, the rest with its connection."""


@dataclass(frozen=True, slots=True)
class BrokerSettings(ConnectionSettings):
    """Each can be set by environment as MAGNETAR_<NAME>."""

    lease_ttl_s: float = bounded(
        4.0, 1, 60, "time after which an unreachable broker counts as gone"
    )
    claim_check_s: float = bounded(
        1.0, 0.05, 60, "interval at which an idle owner looks for its claim"
    )
    park_timeout_s: float = bounded(
        20.0, 0.1, 120, "how long LOOKUP, PRODUCER and SUBSCRIBE wait for a bundle in transfer"
    )
    drain_timeout_s: float = bounded(
        120.0, 1, 3600, "how long a stopping broker tries to transfer its bundles"
    )
    drain_store_patience_s: float = bounded(
        10.0,
        0.1,
        3600,
        "wait of a drain for the metadata store before bundles are left to takeover",
    )
    log_file_bytes: int = bounded(
        64 * _MIB, 1 * _MIB, 4096 * _MIB, "size at which a log file is rolled"
    )
    storage_reserve_bytes: int = bounded(
        0,
        0,
        1 << 40,
        "bytes of the volume kept for cursors, trims, deletions and a start when it is full; "
        "shared by all brokers; 0 = as much as a log file",
    )
    log_pending_bytes_max: int = bounded(
        64 * _MIB,
        64 * _KIB,
        4096 * _MIB,
        "bytes waiting for a flush above which connections are not read; without it 1/32 of "
        "the memory limit, if the broker has one",
        share=32,
    )
    checkpoint_files_max: int = bounded(
        4, 1, 1000, "log files that a takeover may have to scan for one bundle"
    )
    checkpoint_records_max: int = bounded(
        50_000,
        1000,
        100_000_000,
        "records of one bundle behind its last checkpoint at which it gets another: what a "
        "takeover replays",
    )
    tail_cache_bytes_max: int = bounded(
        128 * _MIB,
        64 * _KIB,
        1 << 40,
        "recent entries kept in memory for dispatch; without it 1/16 of the memory limit, if "
        "the broker has one",
        share=16,
    )
    read_batch_bytes_max: int = bounded(
        4 * _MIB, 64 * _KIB, 256 * _MIB, "bytes fetched at once for a reader that is behind"
    )
    read_batch_entries_max: int = bounded(
        1000, 1, 100_000, "entries dispatched to one subscription before others get their turn"
    )
    ack_write_delay_s: float = bounded(
        1.0, 0.0, 60, "an acknowledgement without request id is in the log at most this much later"
    )
    failover_delay_ms: int = bounded(
        1000, 0, 600_000, "wait of a new active Failover consumer for its predecessor's last acks"
    )
    key_shared_consistent_hashing: int = bounded(
        1, 0, 1, "1: Key_Shared divides hashes by a ring of points, 0: by halving ranges"
    )
    look_ahead_per_consumer_entries_max: int = bounded(
        2_000,
        1,
        1_000_000,
        "entries per consumer that Key_Shared reads past while they wait for theirs",
    )
    look_ahead_per_subscription_entries_max: int = bounded(
        20_000, 1, 10_000_000, "the same, of a subscription as a whole"
    )
    producer_name_bytes_max: int = bounded(4096, 64, 60_000, "longest producer name, in UTF-8")
    deduplication_producers_max: int = bounded(
        10_000, 1, 10_000_000, "disconnected producers that deduplication remembers per topic"
    )
    deduplication_inactive_s: float = bounded(
        21_600.0, 1, 1 << 31, "time after which deduplication forgets a producer that has left"
    )
    topics_per_namespace_max: int = bounded(
        100_000, 1, 10_000_000, "topics that one namespace may have, partitions counted one by one"
    )
    partitions_max: int = bounded(4096, 1, 100_000, "partitions of one topic")
    schema_bytes_max: int = bounded(
        64 * _KIB, 1 * _KIB, 512 * _KIB, "bytes of one schema, its properties included"
    )
    schema_versions_max: int = bounded(100, 1, 1000, "versions of a topic's schema, deletions too")
    bundles_per_namespace_max: int = bounded(
        128, 1, 4096, "bundles of one namespace above which none of them is split"
    )
    split_buffered_bytes_max: int = bounded(
        16 * _MIB,
        0,
        1024 * _MIB,
        "message bytes of a bundle that wait for the end of its split or merge; producers of more are "
        "disconnected",
    )
    moves_parallel_max: int = bounded(16, 1, 1000, "bundles transferred at the same time")
    orphans_parallel_max: int = bounded(
        64, 1, 10_000, "orphaned bundles that the leader assigns at the same time"
    )
    move_pin_s: float = bounded(
        86_400.0, 0, 1 << 31, "how long load balancing leaves a bundle moved by hand; 0: not at all"
    )
    stuck_state_s: float = bounded(
        30.0, 1, 3600, "time a bundle may be in transfer before the leader reassigns it"
    )
    inactive_topic_s: float = bounded(
        60.0,
        0,
        1 << 31,
        "age at which a topic without subscriptions and producers is deleted unless a policy "
        "says otherwise; 0 = never",
    )
    topic_check_s: float = bounded(
        5.0, 0.02, 3600, "interval of looking for work of topics that is due"
    )
    inactive_check_s: float = bounded(60.0, 0.02, 86_400, "interval of looking for inactive topics")
    expiry_check_s: float = bounded(
        300.0, 0.02, 86_400, "interval of looking for messages beyond their time to live"
    )
    backlog_quota_check_s: float = bounded(
        60.0, 0.02, 86_400, "interval of comparing backlogs with their quotas"
    )
    retention_check_s: float = bounded(
        120.0, 0.02, 86_400, "interval of looking for messages to trim"
    )
    trim_grace_s: float = bounded(
        600.0, 0, 1 << 31, "age below which no message is dropped, even if no policy retains it"
    )
    delayed_runs_max: int = bounded(
        50_000, 10, 10_000_000, "runs of delayed entries a subscription remembers with their times"
    )
    chunked_messages_max: int = bounded(
        10_000, 1, 10_000_000, "unfinished messages in chunks a subscription remembers"
    )
    ack_set_words_max: int = bounded(
        4096, 1, 1 << 20, "64-bit words in the ack_set of one message id"
    )
    reader_return_s: float = bounded(
        30.0, 0.1, 3600, "how long a reader's position is kept after its SEEK until it comes back"
    )
    recovery_retry_max_s: float = bounded(
        60.0, 0.1, 3600, "longest wait between attempts to recover a bundle"
    )
    maintenance_s: float = bounded(
        10.0, 0.05, 3600, "interval of checkpoints by age, segment compaction and deletion of files"
    )
    checkpoint_age_s: float = bounded(
        60.0, 0.05, 86_400, "age at which a checkpoint ends a chain that reaches finished log files"
    )
    rewrite_age_s: float = bounded(
        600.0, 0, 1 << 31, "age of a sealed log file at which segments take its live entries"
    )
    rewrite_garbage_share: float = bounded(
        0.5, 0.01, 1.0, "share of dead bytes of a bundle at which its log file is compacted at once"
    )
    rewrite_bytes_per_s: int = bounded(
        32 * _MIB, 64 * _KIB, 1 << 40, "bytes per second that segment compaction may read"
    )
    compaction_bytes_max: int = bounded(1 << 30, 1024, 1 << 40, "bytes of a topic to compact here")
    compaction_keys_bytes_max: int = bounded(64 * _MIB, 1024, 1 << 40, "memory for keys in that")
    log_spares_max: int = bounded(
        2, 0, 64, "dead log files kept to be used again, since they flush faster than new ones"
    )
    replaced_kept_s: float = bounded(60.0, 0, 1 << 31, "how long dead files are kept")
    metadata_backup_interval_s: float = bounded(
        600.0, 0.05, 86_400, "interval of the leader's copies of a metadata store that has changed"
    )
    metadata_backups_kept: int = bounded(3, 1, 1000, "copies of the metadata store that are kept")
    intent_age_max_s: float = bounded(
        86_400.0, 60, 1 << 31, "age at which the intent of an unknown job counts as orphaned"
    )
    listeners_check_s: float = bounded(
        5.0, 0.05, 600, "interval of reading advertised listeners again, if they come from a file"
    )
    transactions_enabled: int = bounded(
        1, 0, 1, "1: coordinators and standalone servers begin transactions, 0: they refuse"
    )
    transactions_open_max: int = bounded(
        100_000, 1, 10_000_000, "transactions of one coordinator that have not ended"
    )
    transactions_open_per_role_max: int = bounded(
        20_000, 1, 10_000_000, "the same, of one authenticated role"
    )
    transactions_open_per_address_max: int = bounded(
        20_000,
        1,
        10_000_000,
        "the same, begun since the start from one IPv4 address or one IPv6 /64",
    )
    transaction_participants_max: int = bounded(
        10_000, 1, 1_000_000, "topics and subscriptions of one transaction"
    )
    transaction_timeout_max_s: float = bounded(
        86_400.0, 1, 1 << 31, "longest timeout that a transaction may be given"
    )
    transaction_outcome_kept_s: float = bounded(
        600.0, 0, 1 << 31, "how long an outcome is kept after the end; the timeout, if longer"
    )
    transaction_end_patience_s: float = bounded(
        0.5, 0, 60, "how long the answer to a decided commit or abort waits for participants"
    )
    transaction_participant_timeout_s: float = bounded(
        10.0, 0.1, 600, "time a topic or subscription has to end a transaction before a retry"
    )
    txn_open_per_topic_max: int = bounded(
        10_000, 1, 1_000_000, "open transactions with messages on a topic or acks on a subscription"
    )
    txn_open_entries_per_topic_max: int = bounded(
        1_000_000,
        1,
        100_000_000,
        "entries of all open transactions on one topic, located in memory",
    )
    txn_entries_max: int = bounded(
        100_000, 1, 10_000_000, "entries of one transaction on one topic"
    )
    txn_bytes_max: int = bounded(
        1024 * _MIB, 1 * _KIB, 1 << 40, "bytes of one transaction's entries on one topic"
    )
    txn_inquire_s: float = bounded(
        300.0, 0.05, 86_400, "age of a transaction at which its coordinator is asked, repeatedly"
    )
    txn_held_acks_max: int = bounded(
        200_000, 1, 200_000, "runs and batches acknowledged by transactions on one subscription"
    )
    broker_entry_index: int = bounded(
        0, 0, 1, "1: messages carry their number in the topic (AppendIndexMetadataInterceptor)"
    )
    broker_entry_timestamp: int = bounded(
        0, 0, 1, "1: messages carry broker time (AppendBrokerTimestampMetadataInterceptor)"
    )
    broker_entry_metadata_to_clients: int = bounded(
        0, 0, 1, "1: clients get both (exposingBrokerEntryMetadataToClientEnabled)"
    )
    txn_late_sends_as_ordinary: int = bounded(
        0,
        0,
        1,
        "1: a message that names a committed transaction is published as an ordinary one, for "
        "batching Go producers; 0: it is refused",
    )
    load_report_s: float = bounded(
        5.0, 0.1, 600, "interval of looking at the load, which is reported if it has changed"
    )
    balance: Settings = BALANCE
    """Load balancing, by Pulsar's names: docs/load-balancing.md."""

    @staticmethod
    def from_environment(
        environment: Mapping[str, str], memory_limit_bytes: int | None = None
    ) -> BrokerSettings:
        """Read MAGNETAR_<NAME> for every setting; without it the memory limit sizes some, and the
        others have their defaults. Raises InvalidRequest naming variable, value and bounds."""
        values = environment_values(BrokerSettings, environment, memory_limit_bytes)
        return BrokerSettings(**values, balance=_balance_of(environment))

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_log_file(self.log_file_bytes, self.max_message_bytes)

    @property
    def balance_defaults(self) -> Settings:
        """`balance`, with `load_report_s` unless Pulsar's name for it is set."""
        return _looking_every(self.load_report_s, self.balance)

    @property
    def reserve_bytes(self) -> int:
        """What is kept of the volume when it is full."""
        return self.storage_reserve_bytes or self.log_file_bytes

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of one SEND behind its command: `max_message_bytes`, and metadata on top."""
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


def _check_log_file(log_file_bytes: int, message_bytes: int) -> None:
    """Raises InvalidRequest if a file of the log holds too few messages."""
    if log_file_bytes < 4 * message_bytes:
        raise InvalidRequest(
            f"{variable('log_file_bytes')}={log_file_bytes} is too small for "
            f"messages of {message_bytes} bytes: use at least {4 * message_bytes}"
        )


def _balance_of(environment: Mapping[str, str]) -> Settings:
    named = {
        name: environment[variable(name)]
        for name in BALANCE_FIELDS
        if variable(name) in environment
    }
    return Settings.read({**BALANCE.named(), **named})


def _looking_every(seconds: float, balance: Settings) -> Settings:
    if balance.look_ms != BALANCE.look_ms:
        return balance
    return dataclasses.replace(balance, look_ms=round(1000 * seconds))
