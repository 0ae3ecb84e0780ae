"""Any course of events: every entry is delivered until it is acknowledged, to one consumer at a
time, within permits.

Each test is a long random course from one seed: a subscription runs beside a model of it (see
`Course`). Failures name the seed. Here is what each subscription type owes its consumers (see
`SharedCourse`).
"""

from __future__ import annotations

import pytest

from tests.support.subscription_course import (
    Course,
)
from tests.support.subscription_type_courses import (
    ExclusiveCourse,
    FailoverCourse,
    KeySharedCourse,
    SharedCourse,
)


@pytest.mark.parametrize(
    "course",
    [SharedCourse, ExclusiveCourse, FailoverCourse, KeySharedCourse],
    ids=lambda course: course.kind.name.lower(),
)
@pytest.mark.parametrize(
    # the thousands found chunks acknowledged one by one out of their key's order, the others chunks
    # that waited for the consumer that had a message before
    "seed",
    [*range(12), 3004, 3018, 3040, 20093, 20383, 20920],
)
def test_random_course(seed: int, course: type[Course]) -> None:
    """The subscription agrees with the model after every step, survives crashes, and delivers
    everything in the end."""
    running = course(seed)
    running.run()
    assert running.delivered > 50, "the course must really deliver, or it proves nothing"
