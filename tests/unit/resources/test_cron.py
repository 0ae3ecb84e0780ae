"""Cron schedules against the definition: a minute is due when its local time matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import InvalidRequest
from magnetar.resources.cron import DESCRIPTORS, CronSchedule, time_zone

NEW_YORK = time_zone("America/New_York")


def wall_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def due_after(text: str, schedule: str, zone: str = "America/New_York") -> str:
    found = CronSchedule.parse(schedule).after(wall_ms(text), time_zone(zone))
    assert found is not None
    return datetime.fromtimestamp(found / 1000, time_zone(zone)).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("schedule", "moment", "expected"),
    [
        ("*/15 * * * *", "2026-07-09T14:45:59Z", "2026-07-09T15:00+00:00"),
        ("20-35/15 * * * *", "2026-07-09T14:21:00Z", "2026-07-09T14:35+00:00"),
        ("0 3 * * *", "2026-07-09T03:00:00Z", "2026-07-10T03:00+00:00"),
        ("0 0 1 */3 *", "2026-07-09T03:00:00Z", "2026-10-01T00:00+00:00"),
        ("0 0 * feb mon", "2026-07-09T03:00:00Z", "2027-02-01T00:00+00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00+00:00"),
        ("0 0 * * 7", "2026-07-09T03:00:00Z", "2026-07-12T00:00+00:00"),
        ("0 0 13 * 5", "2026-11-01T00:00:00Z", "2026-11-06T00:00+00:00"),
        ("0 0 */31 * 5", "2026-11-07T00:00:00Z", "2026-11-13T00:00+00:00"),
        ("5/20 9-17 ? * MON-FRI", "2026-11-27T17:46:00Z", "2026-11-30T09:05+00:00"),
        ("@weekly", "2026-11-27T17:46:00Z", "2026-11-29T00:00+00:00"),
    ],
)
def test_the_next_time(schedule: str, moment: str, expected: str) -> None:
    assert due_after(moment, schedule, "") == expected


@pytest.mark.parametrize(
    ("schedule", "moment", "expected"),
    [
        # Clocks go from 02:00 to 03:00 on 11 March 2012.
        ("30 2 11 3 *", "2012-03-11T00:00:00-05:00", "2013-03-11T02:30-04:00"),
        ("0 * * * *", "2012-03-11T01:00:00-05:00", "2012-03-11T03:00-04:00"),
        ("0 2 * * *", "2012-03-11T00:00:00-05:00", "2012-03-12T02:00-04:00"),
        # They go back from 02:00 to 01:00 on 4 November 2012.
        ("30 1 4 11 *", "2012-11-04T01:45:00-04:00", "2012-11-04T01:30-05:00"),
        ("0 * * * *", "2012-11-04T01:00:00-04:00", "2012-11-04T01:00-05:00"),
        ("0 1 * * *", "2012-11-04T01:00:00-04:00", "2012-11-04T01:00-05:00"),
        ("0 1 * * *", "2012-11-04T01:00:00-05:00", "2012-11-05T01:00-05:00"),
        ("0 2 * * *", "2012-11-04T00:00:00-04:00", "2012-11-04T02:00-05:00"),
    ],
)
def test_a_change_of_clocks_skips_and_repeats_as_for_a_cron_job(
    schedule: str, moment: str, expected: str
) -> None:
    """The cases of the library that Kubernetes' CronJob uses."""
    assert due_after(moment, schedule) == expected


fields = st.tuples(
    st.sampled_from(["*", "0", "30", "59", "*/17", "1,31,45-50"]),
    st.sampled_from(["*", "0", "1", "2", "3", "23", "1-3", "*/5"]),
    st.sampled_from(["*", "1", "*/9", "29,30,31", "?"]),
    st.sampled_from(["*", "*", "3,10,11", "1-4", "9-12"]),
    st.sampled_from(["*", "0", "7", "mon-fri", "*/3"]),
).map(" ".join)
zones = st.sampled_from(
    [
        "", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns",
        "America/Havana", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia",
    ]
)  # fmt: skip
moments = st.one_of(
    st.integers(wall_ms("2006-01-01T00:00:00Z"), wall_ms("2040-01-01T00:00:00Z")),
    # Around changes of clocks, and the day that Samoa left out.
    st.sampled_from(
        [
            "2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-03-08T07:00:00Z",
            "2026-11-01T06:00:00Z", "2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z",
            "2006-04-02T03:31:00Z", "2006-10-29T02:31:00Z", "2011-12-30T10:00:00Z",
        ]
    ).flatmap(
        lambda text: st.integers(-90, 90).map(lambda minutes: wall_ms(text) + minutes * 60_000)
    ),
)  # fmt: skip
MINUTES = 2 * 1440


@given(fields, zones, moments)
@settings(deadline=None)
def test_no_time_is_missed_and_none_is_invented(text: str, zone: str, moment: int) -> None:
    """Both directions against trying every minute of two days."""
    schedule, where = CronSchedule.parse(text), time_zone(zone)
    start = moment // 60_000

    def due(minute: int) -> bool:
        local = datetime.fromtimestamp(minute * 60, where)
        day, weekday = local.day in schedule.days, local.isoweekday() % 7 in schedule.weekdays
        either = not schedule.any_day and not schedule.any_weekday
        return (
            local.minute in schedule.minutes
            and local.hour in schedule.hours
            and local.month in schedule.months
            and ((day or weekday) if either else (day and weekday))
        )

    forward = next((m for m in range(start + 1, start + MINUTES) if due(m)), None)
    found = schedule.after(moment, where)
    assert found is not None
    assert found == forward * 60_000 if forward is not None else found >= moment + MINUTES - 1
    back = next((m for m in range(start, start - MINUTES, -1) if due(m)), None)
    earlier = schedule.before(moment, where)
    assert earlier is not None
    assert earlier == back * 60_000 if back is not None else earlier <= moment
    assert due(found // 60_000)
    assert due(earlier // 60_000)
    assert schedule.before(found, where) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write five fields"),
        ("* * * *", "write five fields"),
        ("@every 5m", "write five fields"),
        ("TZ=UTC 0 3 * * *", "write five fields"),
        ("60 * * * *", "minute '60' is not valid; use 0..59"),
        ("* 24 * * *", "hour '24' is not valid"),
        ("* * 0 * *", "day of month '0' is not valid; use 1..31"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day of week '8'"),
        ("*/0 * * * *", "write a step of 1 or more"),
        ("30-10 * * * *", "write the lower end of the range first"),
        ("1,,2 * * * *", "minute ''"),
        ("-1 * * * *", "minute '-1'"),
        ("1- * * * *", "minute '1-'"),
        ("٣ * * * *", "minute '٣'"),
        ("0 0 31 2,4 *", "is never due; its months have no day 31"),
    ],
)
def test_what_is_no_schedule_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=r"[a-z]") as caught:
        CronSchedule.parse(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "Europe", "/etc/localtime", "\0"])
def test_a_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a known time zone"):
        time_zone(name)


def test_descriptors_are_due() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for text in DESCRIPTORS:
        found = CronSchedule.parse(text).after(int(now.timestamp() * 1000), time_zone(""))
        assert found is not None
        assert now < datetime.fromtimestamp(found / 1000, UTC) <= now + timedelta(days=366)
