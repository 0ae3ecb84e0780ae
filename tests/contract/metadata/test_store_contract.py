"""What `metadata.store` promises about keys and transactions, proved on every backend."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import LeaseLost, StoreError, StoreUnavailable
from magnetar.metadata.backends.core import OPERATIONS_MAX, VALUE_BYTES_MAX
from magnetar.metadata.store import Compare, Delete, Event, KeyValue, Put
from tests.contract.metadata.backends import Backend, PatientStore


def test_a_key_carries_its_revisions_and_version(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        assert await store.get("k") is None
        first = await store.put("k", b"one")
        second = await store.put("k", b"two")
        assert second == first + 1
        assert await store.get("k") == KeyValue("k", b"two", first, second, 2)
        await store.delete("k")
        third = await store.put("k", b"three")
        assert await store.get("k") == KeyValue("k", b"three", third, third, 1)

    backend.run(scenario)


def test_any_bytes_and_any_text_are_kept(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        value = bytes(range(256)) * 4
        keys = ["ä/ö", "z/\U0001f680", "plain key: %$#", "a" * 1000]
        for key in keys:
            await store.put(key, value + key.encode())
        assert [item.key for item in (await store.range("")).items] == sorted(keys)
        assert all(
            item.value == value + item.key.encode() for item in (await store.range("")).items
        )

    backend.run(scenario)


def test_delete_says_whether_there_was_something(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("k", b"v")
        assert await store.delete("k") is True
        before = (await store.range("")).revision
        assert await store.delete("k") is False
        assert (await store.range("")).revision == before, (
            "nothing changed, so there is no revision"
        )

    backend.run(scenario)


def test_a_transaction_is_one_revision_or_nothing(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        base = await store.put("old", b"x")
        done = await store.transact(
            (Compare("old", "mod", "=", base),), (Put("a", b"1"), Put("b", b"2"), Delete("old"))
        )
        assert done.succeeded
        assert done.revision == base + 1
        found = await store.range("")
        assert [(item.key, item.mod_revision) for item in found.items] == [
            ("a", done.revision),
            ("b", done.revision),
        ]
        refused = await store.transact(
            (Compare("old", "mod", "=", base),), (Put("a", b"3"), Put("c", b"4"), Delete("b"))
        )
        assert not refused.succeeded
        assert await store.range("") == found

    backend.run(scenario)


PRESENT = {
    ("mod", "=", 0): True, ("mod", "=", 1): False, ("mod", "!=", 0): False, ("mod", "<", 0): False, ("mod", "<", 1): True,
    ("mod", ">", 0): False, ("mod", ">", -1): True,
    ("create", "=", -1): True, ("create", "!=", 0): True, ("create", "<", 0): True, ("create", ">", -1): False,
    ("version", "=", 2): True, ("version", "!=", 2): False, ("version", "<", 3): True, ("version", ">", 2): False,
    ("value", "=", b"m"): True, ("value", "=", b""): False, ("value", "!=", b"m"): False, ("value", "!=", b"x"): True,
    ("value", "<", b"n"): True, ("value", "<", b"m"): False, ("value", ">", b""): True, ("value", ">", b"m"): False,
}  # fmt: skip
"""Truth of compares on a key with value b"m", version 2; operands of mod and create count from
its mod_revision."""
MISSING = {
    ("mod", "=", 0): True, ("mod", "!=", 0): False, ("mod", "<", 1): True, ("mod", ">", 0): False,
    ("create", "=", 0): True, ("create", ">", 0): False, ("version", "=", 0): True, ("version", "<", 1): True,
    ("value", "=", b""): True, ("value", "=", b"v"): False, ("value", "!=", b""): False, ("value", "!=", b"v"): True,
    ("value", "<", b"v"): True, ("value", "<", b""): False, ("value", ">", b""): False,
}  # fmt: skip


def test_every_compare_means_the_same_everywhere(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("here", b"l")
        mod = await store.put("here", b"m")
        for (target, operator, operand), expected in PRESENT.items():
            shifted = (
                operand + mod
                if isinstance(operand, int) and target in ("mod", "create")
                else operand
            )
            compare = Compare("here", target, operator, shifted)  # type: ignore[arg-type]  # from the table above
            assert (await store.transact((compare,), ())).succeeded is expected, compare
        for (target, operator, operand), expected in MISSING.items():
            compare = Compare("missing", target, operator, operand)  # type: ignore[arg-type]
            assert (await store.transact((compare,), ())).succeeded is expected, compare
            both = (Compare("here", "value", "=", b"m"), compare)
            assert (await store.transact(both, ())).succeeded is expected, compare

    backend.run(scenario)


def test_a_refusal_shows_the_compared_keys_as_it_saw_them(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("a", b"1")
        await store.put("b", b"2")
        await store.put("unrelated", b"3")
        compares = (
            Compare("a", "version", "=", 1),
            Compare("b", "value", "=", b"?"),
            Compare("c", "mod", "=", 0),
        )
        result = await store.transact(compares, (Put("d", b"4"),))
        assert not result.succeeded
        assert {item.key: item.value for item in result.current} == {"a": b"1", "b": b"2"}
        assert result.revision == (await store.range("")).revision

    backend.run(scenario)


def test_range_is_exact_ordered_and_limited(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        keys = ["a", "a/", "a/1", "a/10", "a/2", "a0", "b/1"]
        for key in reversed(keys):
            await store.put(key, key.encode())
        assert [item.key for item in (await store.range("a/")).items] == [
            "a/",
            "a/1",
            "a/10",
            "a/2",
        ]
        assert [item.key for item in (await store.range("a/", limit=2)).items] == ["a/", "a/1"]
        assert [item.key for item in (await store.range("")).items] == sorted(keys)
        empty = await store.range("nothing")
        assert empty.items == ()
        assert empty.revision == (await store.get("a")).mod_revision  # type: ignore[union-attr]  # written last

    backend.run(scenario)


@pytest.mark.slow
def test_range_reads_thousands_of_keys_at_one_revision(backend: Backend) -> None:
    """A token moves between the first and the last of 1,200 keys; every range must see exactly
    one."""

    async def scenario(store: PatientStore) -> None:
        keys = [f"n/{number:04d}" for number in range(1200)]
        for start in range(0, len(keys), OPERATIONS_MAX):
            await store.transact(
                (), [Put(key, b"x") for key in keys[start : start + OPERATIONS_MAX]]
            )
        first, last = keys[0] + "-token", keys[-1] + "-token"
        await store.put(first, b"start")

        async def move() -> None:
            for turn in range(30):
                source, target = (first, last) if turn % 2 == 0 else (last, first)
                await store.transact((), (Delete(source), Put(target, b"%d" % turn)))

        mover = asyncio.create_task(move())
        while not mover.done():
            found = await store.range("n/")
            assert len(found.items) == len(keys) + 1
            assert sum(item.key.endswith("-token") for item in found.items) == 1
            assert max(item.mod_revision for item in found.items) == found.revision
        await mover

    backend.run(scenario)


def test_a_prefix_is_deleted_in_one_revision(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        for key in ("p/b", "p/a", "p", "q/a"):
            await store.put(key, key.encode())
        result = await store.transact((), (Put("p2", b"new"), Delete("p/", prefix=True)))
        assert [item.key for item in (await store.range("")).items] == ["p", "p2", "q/a"]
        batch = await anext(store.watch("", result.revision))
        assert batch.events == (
            Event("p2", b"new", result.revision, result.revision),
            Event("p/a", None, result.revision),
            Event("p/b", None, result.revision),
        )

    backend.run(scenario)


MALFORMED = {
    "too many operations": (
        (),
        tuple(Put(f"k{number}", b"") for number in range(OPERATIONS_MAX + 1)),
    ),
    "too many compares": (
        tuple(Compare(f"k{number}", "mod", "=", 0) for number in range(OPERATIONS_MAX + 1)),
        (),
    ),
    "put twice": ((), (Put("k", b"1"), Put("k", b"2"))),
    "put and delete": ((), (Put("k", b"1"), Delete("k"))),
    "delete twice": ((), (Delete("k"), Delete("k"))),
    "put below a deleted prefix": ((), (Put("p/k", b"1"), Delete("p/", prefix=True))),
    "delete below a deleted prefix": ((), (Delete("p/", prefix=True), Delete("p/k"))),
    "overlapping prefixes": ((), (Delete("p/", prefix=True), Delete("p/q", prefix=True))),
    "equal prefixes": ((), (Delete("p/", prefix=True), Delete("p/", prefix=True))),
    "no key": ((), (Put("", b"1"),)),
    "operand of the wrong type": ((Compare("k", "mod", "=", b"1"),), ()),
    "too many bytes": ((), (Put("k", bytes(VALUE_BYTES_MAX)),)),
}


def test_malformed_transactions_are_refused_and_change_nothing(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("p/k", b"before")
        before = await store.range("")
        for name, (compares, operations) in MALFORMED.items():
            with pytest.raises(StoreError) as caught:
                await store.transact(compares, operations)
            assert not isinstance(caught.value, StoreUnavailable), name
        assert await store.range("") == before

    backend.run(scenario)


def test_a_full_transaction_is_accepted(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        compares = [Compare(f"k{number}", "mod", "=", 0) for number in range(OPERATIONS_MAX)]
        puts = [
            Put(f"k{number}", bytes(VALUE_BYTES_MAX // OPERATIONS_MAX - 10))
            for number in range(OPERATIONS_MAX)
        ]
        assert (await store.transact(compares, puts)).succeeded
        found = await store.range("k")
        assert len(found.items) == OPERATIONS_MAX
        refused = await store.transact(compares, puts)
        assert len(refused.current) == OPERATIONS_MAX

    backend.run(scenario)


@pytest.mark.slow
def test_concurrent_compare_and_swap_has_exactly_one_winner(backend: Backend) -> None:
    """Eight tasks write a chain of versions; every version was written by exactly the one who
    thinks so."""

    async def scenario(store: PatientStore) -> None:
        await store.put("k", b"0")
        won: dict[int, bytes] = {}

        async def compete(name: str) -> None:
            for turn in range(10):
                item = await store.get("k")
                assert item is not None
                value = f"{name}-{turn}".encode()
                result = await store.transact(
                    (Compare("k", "mod", "=", item.mod_revision),), (Put("k", value),)
                )
                if result.succeeded:
                    assert result.revision not in won
                    won[result.revision] = value

        first = (await store.range("")).revision + 1
        await asyncio.gather(*(compete(f"task{number}") for number in range(8)))
        last = await store.get("k")
        assert last is not None
        written = {}
        async for batch in store.watch("k", first):
            written[batch.revision] = batch.events[0].value
            if batch.revision == last.mod_revision:
                break
        # Over a bad network a winner whose reply was lost, and who was overtaken before reading,
        # may not know; nobody is wrong.
        assert won.items() <= written.items()
        assert len(written) == last.version - 1
        assert list(written) == sorted(written)

    backend.run(scenario)


def test_a_lease_that_nobody_granted_is_refused_and_nothing_is_written(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("k", b"before")
        before = await store.range("")
        with pytest.raises(LeaseLost):
            await store.put("k", b"v", lease=12345)
        with pytest.raises(LeaseLost):
            await store.transact((), (Put("other", b"1"), Put("k", b"2", 12345)))
        refused = await store.transact((Compare("k", "mod", "=", 0),), (Put("k", b"3", 12345),))
        assert not refused.succeeded, "a refused transaction does not look at leases"
        assert await store.range("") == before

    backend.run(scenario)


def test_a_closed_store_answers_nothing(backend: Backend) -> None:
    async def scenario(store: PatientStore) -> None:
        await store.put("k", b"v")
        inner = store._inner
        await inner.close()
        for request in (
            inner.get("k"),
            inner.range(""),
            inner.put("k", b"w"),
            inner.delete("k"),
            inner.grant_lease(1),
        ):
            with pytest.raises(StoreUnavailable):
                await request

    backend.run(scenario)
