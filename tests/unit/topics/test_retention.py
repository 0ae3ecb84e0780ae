"""Retention: nothing is dropped that a cursor, a limit or the grace keeps, whatever was appended
when; ages and sizes against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics.retention import MARKS_MAX, MEBIBYTE, Ages, trim_point

MINUTE_MS = 60_000
BATCHES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 400_000), st.integers(1, 3 * MEBIBYTE)),
    max_size=40,
)


class Plain:
    """Every entry with its time and size; the marks beside it are reported batch by batch, as the
    broker reports them."""

    def __init__(self, batches: list[tuple[int, int, int]]) -> None:
        self.ages = Ages()
        self.times: list[int] = []
        self.sizes: list[int] = []
        now = 0
        for count, pause_ms, size in batches:
            now += pause_ms
            self.times += [now] * count
            self.sizes += [size] * count
            self.ages.total += count * size
            self.ages.observe(len(self.times), now)
        self.now = now

    @property
    def end(self) -> int:
        return len(self.times)

    def bytes_from(self, ordinal: int) -> int:
        return sum(self.sizes[ordinal:])


@given(BATCHES, st.integers(0, 20_000_000))
def test_nothing_is_called_older_than_it_is(
    batches: list[tuple[int, int, int]], cutoff: int
) -> None:
    """Entries below `older_than` are that old, entries behind the marks `around` are not."""
    plain = Plain(batches)
    assert all(time <= cutoff for time in plain.times[: plain.ages.older_than(cutoff)])
    if (around := plain.ages.around(cutoff)) is not None:
        before, after = around
        assert before.end == plain.ages.older_than(cutoff)
        assert all(
            before.elapsed_ms <= time <= after.elapsed_ms
            for time in plain.times[before.end : after.end]
        )
        assert all(time > cutoff for time in plain.times[after.end :])
    for ordinal, time in enumerate(plain.times):
        assert plain.ages.appended_by(ordinal, plain.now) >= time


@given(BATCHES, st.integers(0, 2000))
def test_sizes_are_exact_at_the_ends_and_monotone_between(
    batches: list[tuple[int, int, int]], ordinal: int
) -> None:
    plain = Plain(batches)
    end = plain.end
    assert plain.ages.bytes_from(0, end) == plain.bytes_from(0)
    assert plain.ages.bytes_from(end, end) == 0
    ordinal = min(ordinal, end)
    found = [
        plain.ages.bytes_from(number, end)
        for number in range(max(0, ordinal - 3), min(end, ordinal + 3) + 1)
    ]
    assert found == sorted(found, reverse=True)
    for mark in plain.ages.marks:
        assert plain.ages.bytes_from(mark.end, end) == plain.bytes_from(mark.end)


@given(
    BATCHES,
    st.integers(0, 2000),
    st.integers(-1, 60),
    st.integers(-1, 40),
    st.integers(0, 10 * MINUTE_MS),
    st.integers(0, 60 * MINUTE_MS),
)
def test_what_is_dropped_is_needed_by_nobody(
    batches: list[tuple[int, int, int]],
    needed_from: int,
    minutes: int,
    megabytes: int,
    grace_ms: int,
    later_ms: int,
) -> None:
    """Acknowledged by all, beyond the grace, and beyond one of the limits there are (size: but
    for the estimate between two marks)."""
    plain = Plain(batches)
    now, needed_from = plain.now + later_ms, min(needed_from, plain.end)
    point = trim_point(
        plain.ages,
        needed_from=needed_from,
        end=plain.end,
        now_ms=now,
        retention_minutes=minutes,
        retention_mb=megabytes,
        grace_ms=grace_ms,
    )
    assert 0 <= point <= needed_from
    dropped = plain.times[:point]
    assert all(now - time >= grace_ms for time in dropped)
    if minutes < 0 and megabytes < 0:
        assert not dropped
    if megabytes < 0 <= minutes:
        assert all(now - time >= minutes * MINUTE_MS for time in dropped)
    if minutes < 0 <= megabytes:
        assert (
            plain.ages.bytes_from(point, plain.end) >= megabytes * MEBIBYTE
            or not dropped
            or megabytes == 0
        )
    if minutes < 0 < megabytes and dropped:
        ends = {mark.end for mark in plain.ages.marks} | {plain.end}
        assert (
            plain.bytes_from(max((end for end in ends if end <= point), default=0))
            >= megabytes * MEBIBYTE
        )


@given(BATCHES, st.integers(0, 100 * MEBIBYTE))
def test_ordinals_by_size_are_the_tightest(batches: list[tuple[int, int, int]], size: int) -> None:
    """`ordinal_leaving` leaves at most the size and `ordinal_keeping` keeps at least it; one
    entry less would not."""
    ages, end = Plain(batches).ages, Plain(batches).end
    leaving, keeping = ages.ordinal_leaving(size, end), ages.ordinal_keeping(size, end)
    assert ages.bytes_from(leaving, end) <= size
    assert leaving == 0 or ages.bytes_from(leaving - 1, end) > size
    assert keeping == 0 or ages.bytes_from(keeping, end) >= size
    assert keeping == end or ages.bytes_from(keeping + 1, end) < size


@given(BATCHES, st.integers(0, 2000))
def test_dropping_forgets_only_what_is_gone(
    batches: list[tuple[int, int, int]], ordinal: int
) -> None:
    """After a drop, and after a way through a checkpoint's values, the rest has the same ages
    and sizes at every mark."""
    plain = Plain(batches)
    ordinal = min(ordinal, plain.end)
    kept = [mark for mark in plain.ages.marks if mark.end > ordinal]
    at = plain.ages.bytes_from(ordinal, plain.end)
    plain.ages.drop_before(ordinal)
    again = Ages(
        (ordinal, plain.ages.bytes_before(ordinal, plain.end)), plain.ages.marks, plain.ages.total
    )
    for ages in (plain.ages, again):
        assert list(ages.marks) == kept
        assert abs(ages.bytes_from(ordinal, plain.end) - at) <= 1
        assert all(
            ages.bytes_from(mark.end, plain.end) == plain.bytes_from(mark.end) for mark in kept
        )


def test_a_long_life_needs_few_marks_and_knows_ages_to_a_fifth() -> None:
    """Three days of one entry every two seconds, in bounded memory."""
    ages = Ages()
    life_s = 3 * 86_400
    for second in range(0, life_s, 2):
        ages.observe(second + 1, second * 1000)
        assert len(ages.marks) <= MARKS_MAX
    for age_s in (60, 3600, 86_400, 5 * 43_200):
        exact = life_s - age_s
        assert exact - age_s // 5 <= ages.older_than(exact * 1000) <= exact + 1
