"""Copies of the metadata store: golden bytes, there and back, damage noticed, durable keys only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.clock import SystemClock
from magnetar.errors import CorruptData, StoreError
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.backup import Backup, decode_backup, encode_backup, read_backup
from magnetar.metadata.records import RESTORE_STRIDE, ClusterRecord

GOLDEN = (
    b'{"created_ms":1700000000000,"format":"magnetar-metadata-backup","restore":2,"revision":77,"storage_id":"ab","version":1}\n'
    b'{"key":"cluster","value":"{}"}\n'
    b'{"key":"tenants/t\\u00e4","value":"{\\"a\\":1}"}\n'
    b'{"count":2,"crc32c":"99c4ab4e"}\n'
)
BACKUP = Backup("ab", 2, 77, 1_700_000_000_000, {"tenants/tä": b'{"a":1}', "cluster": b"{}"})
LEASE_BOUND = (keys.INCARNATIONS, keys.LOAD, keys.LEADER, keys.COORDINATOR_CLAIMS)
NEITHER = (keys.BACKUP_REPORT, keys.RESTORE_REQUEST, keys.COORDINATOR_PRESENCE)
"""What speaks of copies is in none, nor is the word that a store was filled for; what two kinds
are watched by together is no key."""


def test_golden_backup() -> None:
    """Version 1 never changes."""
    assert encode_backup(BACKUP) == GOLDEN
    assert decode_backup(GOLDEN, "b") == BACKUP
    assert BACKUP.epoch == 2 * RESTORE_STRIDE + 77


@given(
    st.dictionaries(st.text(max_size=10), st.text(max_size=30).map(str.encode), max_size=5),
    st.integers(0, 99),
    st.integers(0, 2**62),
)
def test_whatever_is_copied_comes_back(
    items: dict[str, bytes], restore: int, revision: int
) -> None:
    backup = Backup("id", restore, revision, 5, items)
    assert decode_backup(encode_backup(backup), "b") == backup


@pytest.mark.parametrize("length", range(len(GOLDEN)))
def test_a_copy_that_is_cut_short_is_refused(length: int) -> None:
    if GOLDEN[:length] + b"\n" != GOLDEN:  # without its last newline it is whole
        with pytest.raises(CorruptData, match="my-file"):
            decode_backup(GOLDEN[:length], "my-file")


@pytest.mark.parametrize("at", range(len(GOLDEN) - 1))
def test_a_copy_that_was_altered_is_refused(at: int) -> None:
    damaged = bytearray(GOLDEN)
    damaged[at] ^= 1
    with pytest.raises(CorruptData, match="my-file"):
        decode_backup(bytes(damaged), "my-file")


async def test_only_durable_keys_are_copied_as_of_one_revision() -> None:
    store = MemoryStore(SystemClock())
    with pytest.raises(StoreError, match="no cluster"):
        await read_backup(store, 0)
    await store.put(keys.CLUSTER, ClusterRecord("ab", 3, 1).encode())
    await store.put("tenants/a", b"{}")
    await store.put("something/else", b"{}")
    lease = await store.grant_lease(60)
    revision = await store.put("incarnations/broker-0.1", b"{}", lease)
    backup = await read_backup(store, 4)
    assert (backup.storage_id, backup.restore, backup.revision, backup.created_ms) == (
        "ab",
        3,
        revision,
        4,
    )
    assert set(backup.items) == {keys.CLUSTER, "tenants/a"}
    await store.close()


def test_every_key_is_either_durable_or_bound_to_a_lease() -> None:
    """A new kind of key must be put into a backup, or be known not to need it."""
    kinds = {
        value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)
    }
    assert kinds == {*keys.DURABLE, *LEASE_BOUND, *NEITHER}
    assert keys.is_durable("clusters/c")
    assert not keys.is_durable("clustersx")
