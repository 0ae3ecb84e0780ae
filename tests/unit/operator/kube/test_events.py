"""Events that the API server does not take at once."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.resources.base import API_VERSION, CustomResource, Metadata
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.errors import (
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    KubernetesError,
    NotLeading,
)
from magnetar_operator.kube.events import ATTEMPTS, Events
from magnetar_operator.metrics import OperatorMetrics

LATE = ApiUnavailable("no answer in time")
ABOUT = CustomResource(
    api_version=API_VERSION,
    kind="DataJob",
    metadata=Metadata.model_validate({"name": "prices", "namespace": "team", "uid": "u"}),
)


class Answers(KubernetesApi):
    """Answers as the test says, and then takes everything; keeps what was sent."""

    def __init__(self, *answers: KubernetesError) -> None:
        self.answers, self.sent = list(answers), list[str]()

    async def post_event(self, manifest: Manifest) -> None:
        self.sent.append(manifest["metadata"]["name"])
        if self.answers:
            raise self.answers.pop(0)


def events_of(api: KubernetesApi) -> Events:
    return Events(api, SystemClock(), OperatorMetrics(), "operator")


@pytest.mark.parametrize("second", [[], [ApiConflict("it exists already")]], ids=["lost", "late"])
async def test_an_event_without_an_answer_is_sent_again_as_the_same_one(second: list[Any]) -> None:
    """What was done is not done again, so that nobody else would report it; written twice it is
    not, whether the first attempt arrived or did not."""
    api = Answers(LATE, *second)
    await events_of(api).normal(ABOUT, "Created", "it is made")
    assert len(api.sent) == 2
    assert len(set(api.sent)) == 1


@pytest.mark.parametrize("error", [LATE, NotLeading("another one leads")])
async def test_a_state_that_was_not_reported_is_reported_by_a_later_look(
    error: KubernetesError,
) -> None:
    """And then not again. A failure stops nothing."""
    api = Answers(*ATTEMPTS * [error])
    events = events_of(api)
    while api.answers:
        await events.once(ABOUT, "Warning", "Conflict", "another one owns it")
    before = len(api.sent)
    for _ in range(2):
        await events.once(ABOUT, "Warning", "Conflict", "another one owns it")
        assert len(api.sent) == before + 1


async def test_a_report_that_is_refused_is_not_sent_with_every_look() -> None:
    api = Answers(ApiRefused("events is forbidden", 403))
    events = events_of(api)
    for _ in range(3):
        await events.once(ABOUT, "Warning", "Conflict", "another one owns it")
    assert len(api.sent) == 1


async def test_a_problem_that_ends_and_comes_again_is_reported_again() -> None:
    """Once for each time that it begins, whatever else lasts beside it."""
    api = Answers()
    events = events_of(api)
    store = Problem(Reason.STORE_UNAVAILABLE, "no answer in time")
    topic = Problem(Reason.TOPIC_MISSING, "topic prices does not exist", "run-1")
    reported = []
    for problems in ([store], [store], [store, topic], [topic], [], [store, topic]):
        before = len(api.sent)
        await events.standing(ABOUT, problems)
        reported.append(len(api.sent) - before)
    assert reported == [1, 0, 1, 0, 0, 2]
