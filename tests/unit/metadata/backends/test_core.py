"""StoreCore against a naive model, and the laws its journal rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import Compacted, LeaseLost, StoreError
from magnetar.metadata.backends.core import Change, StoreCore
from magnetar.metadata.store import Compare, Delete, Event, KeyValue, Operation, Put, WatchBatch

KEYS = ["a", "a/1", "a/2", "b", "b/1", "c"]
LEASES = [1, 2, 3]
keys = st.sampled_from(KEYS)
values = st.binary(max_size=3)


@dataclass
class Model:
    """The obvious implementation: copy everything at every revision."""

    now: float = 0.0
    revision: int = 1
    items: dict[str, KeyValue] = field(default_factory=dict)
    leases: dict[int, tuple[float, float]] = field(default_factory=dict)
    log: list[WatchBatch] = field(default_factory=list)

    def write(self, writes: Sequence[tuple[str, bytes | None, int]]) -> None:
        effective = [write for write in writes if write[1] is not None or write[0] in self.items]
        if not effective:
            return
        self.revision += 1
        events = []
        for key, value, lease in effective:
            old = self.items.pop(key, None)
            if value is None:
                events.append(Event(key, None, self.revision))
                continue
            created, version = (old.create_revision, old.version + 1) if old else (self.revision, 1)
            self.items[key] = KeyValue(key, value, created, self.revision, version, lease)
            events.append(Event(key, value, self.revision, created))
        self.log.append(WatchBatch(self.revision, tuple(events)))

    def end(self, lease: int) -> None:
        self.leases.pop(lease, None)
        self.write([(key, None, 0) for key in sorted(self.items) if self.items[key].lease == lease])

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for _, lease in sorted(
            (at, lease) for lease, (_, at) in self.leases.items() if at <= self.now
        ):
            self.end(lease)

    def holds(self, compare: Compare) -> bool:
        item = self.items.get(compare.key) or KeyValue(compare.key, b"", 0, 0, 0)
        left = {
            "mod": item.mod_revision,
            "create": item.create_revision,
            "version": item.version,
            "value": item.value,
        }[compare.target]
        right = compare.operand
        return {"=": left == right, "!=": left != right, "<": left < right, ">": left > right}[
            compare.operator
        ]  # type: ignore[operator]


TARGETS: tuple[Literal["mod", "create", "version", "value"], ...] = (
    "mod",
    "create",
    "version",
    "value",
)
OPERATORS: tuple[Literal["=", "!=", "<", ">"], ...] = ("=", "!=", "<", ">")
operands: dict[bool, st.SearchStrategy[int | bytes]] = {True: values, False: st.integers(0, 8)}


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[Compare], list[Operation]]:
    compares = [
        Compare(
            draw(keys),
            target,
            draw(st.sampled_from(OPERATORS)),
            draw(operands[target == "value"]),
        )
        for target in draw(st.lists(st.sampled_from(TARGETS), max_size=2))
    ]
    operations: list[Operation] = []
    for key in draw(st.lists(keys, max_size=4, unique=True)):
        kind = draw(st.sampled_from(["put", "bound", "delete", "prefix"]))
        if kind == "put":
            operations.append(Put(key, draw(values)))
        elif kind == "bound":
            operations.append(Put(key, draw(values), draw(st.sampled_from(LEASES))))
        else:
            operations.append(Delete(key, prefix=kind == "prefix"))
    return compares, operations


steps = st.one_of(
    st.tuples(st.just("transact"), transactions()),
    st.tuples(st.just("grant"), st.tuples(st.sampled_from(LEASES), st.integers(1, 5))),
    st.tuples(st.just("renew"), st.sampled_from(LEASES)),
    st.tuples(st.just("revoke"), st.sampled_from(LEASES)),
    st.tuples(st.just("tick"), st.integers(0, 3)),
)


def play(core: StoreCore, model: Model, name: str, argument: Any) -> list[Change]:
    """Do one step on both, comparing every answer; returns the changes of the core."""
    changes: list[Change | None] = []
    match name, argument:
        case "transact", (compares, operations):
            try:
                result, change = core.transact(compares, operations)
            except LeaseLost:
                assert any(
                    isinstance(op, Put) and op.lease and op.lease not in model.leases
                    for op in operations
                )
            except StoreError:
                assert any(isinstance(op, Delete) and op.prefix for op in operations), (
                    "only a prefix can cover another operation"
                )
            else:
                changes.append(change)
                assert result.succeeded is all(model.holds(compare) for compare in compares)
                if result.succeeded:
                    writes: list[tuple[str, bytes | None, int]] = []
                    for op in operations:
                        if isinstance(op, Put):
                            writes.append((op.key, op.value, op.lease))
                        else:
                            covered = [key for key in sorted(model.items) if key.startswith(op.key)]
                            writes.extend(
                                (key, None, 0) for key in (covered if op.prefix else [op.key])
                            )
                    model.write(writes)
                assert result.revision == model.revision
        case "grant", (lease, ttl):
            if lease not in model.leases:
                core.grant(lease, ttl, model.now)
                model.leases[lease] = (ttl, model.now + ttl)
        case "renew", lease:
            if lease in model.leases:
                ttl, _ = model.leases[lease]
                assert core.renew(lease, model.now) == ttl
                model.leases[lease] = (ttl, model.now + ttl)
            else:
                with pytest.raises(LeaseLost):
                    core.renew(lease, model.now)
        case "revoke", lease:
            changes.append(core.revoke(lease))
            model.end(lease)
        case "tick", seconds:
            model.tick(seconds)
            while change := core.expire(model.now):
                changes.append(change)
    return [change for change in changes if change]


@given(st.lists(steps, max_size=30))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_the_core_behaves_like_the_naive_model(script: list[tuple[str, object]]) -> None:
    core, model = StoreCore(), Model()
    journal: list[Change] = []
    for name, argument in script:
        journal += play(core, model, name, argument)
        assert core.revision == model.revision
        for prefix in ("", "a", "a/", "b"):
            expected = tuple(
                model.items[key] for key in sorted(model.items) if key.startswith(prefix)
            )
            assert core.range(prefix).items == expected
    assert core.batches("", 2, core.revision, limit=1000)[0] == model.log
    below_a = [
        WatchBatch(b.revision, kept)
        for b in model.log
        if (kept := tuple(e for e in b.events if e.key.startswith("a/")))
    ]
    assert core.batches("a/", 2, core.revision, limit=1000)[0] == below_a
    assert core.next_expiry() == min((at for _, at in model.leases.values()), default=None)

    replayed = StoreCore()
    for change in journal:
        replayed.apply(change)
    assert replayed.snapshot() == core.snapshot(), "the journal is the store"
    bound = {item.lease for item in core.range("").items if item.lease}
    assert replayed.orphaned_leases() == sorted(bound)

    restored = StoreCore()
    if core.revision > 1:
        restored.restore(core.snapshot())
    assert restored.snapshot() == core.snapshot()
    assert restored.orphaned_leases() == sorted(bound)


def test_history_is_bounded_by_revisions() -> None:
    core = StoreCore(history_revisions_max=8)
    for number in range(100):
        core.transact((), (Put("k", b"%d" % number),))
    kept = core.revision - core.compacted
    assert 8 <= kept <= 10
    with pytest.raises(Compacted):
        core.batches("", core.compacted, core.revision)
    assert core.batches("", core.compacted + 1, core.revision)[0][-1].revision == core.revision


def test_history_is_bounded_by_bytes_but_keeps_the_newest() -> None:
    core = StoreCore(history_bytes_max=10_000)
    for _ in range(100):
        core.transact((), (Put("k", bytes(900)),))
    assert 6 <= core.revision - core.compacted <= 11
    core.transact((), (Put("k", bytes(50_000)),))
    assert core.batches("", core.revision, core.revision)[0][0].events[0].value == bytes(50_000)


def test_batches_are_handed_out_in_portions_that_join() -> None:
    core = StoreCore()
    for number in range(10):
        core.transact((), (Put("k" if number % 2 else "other", b"%d" % number),))
    first, position = core.batches("k", 2, core.revision, limit=2)
    second, end = core.batches("k", position, core.revision, limit=100)
    assert [batch.events[0].value for batch in first + second] == [b"1", b"3", b"5", b"7", b"9"]
    assert end == core.revision + 1


def test_nothing_above_the_asked_revision_is_shown() -> None:
    core = StoreCore()
    for _ in range(5):
        core.transact((), (Put("k", b"v"),))
    found, position = core.batches("", 3, 4)
    assert [batch.revision for batch in found] == [3, 4]
    assert position == 5
    assert core.batches("", 50, core.revision) == ([], 50), "the future is empty, not an error"


def test_a_lease_that_is_over_cannot_be_renewed_before_expire_ran() -> None:
    core = StoreCore()
    core.grant(1, 5.0, now=0.0)
    assert core.renew(1, now=4.9) == 5.0
    with pytest.raises(LeaseLost):
        core.renew(1, now=9.9)


def test_each_expired_lease_ends_in_a_revision_of_its_own() -> None:
    core = StoreCore()
    for lease in (2, 1, 3):
        core.grant(lease, float(lease), now=0.0)
    core.transact((), (Put("x1", b"", 1), Put("x2", b"", 1), Put("y", b"", 2)))
    first, second = core.expire(10.0), core.expire(10.0)
    assert first is not None
    assert second is not None
    assert [write.key for write in first.writes] == ["x1", "x2"]
    assert [write.key for write in second.writes] == ["y"]
    assert core.expire(10.0) is None
    assert core.next_expiry() is None, "the lease without keys has ended too"
