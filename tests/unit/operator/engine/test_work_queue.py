"""The work queue: no key is lost, doubled or in the way of another."""

from __future__ import annotations

import asyncio

from magnetar.clock import SystemClock
from magnetar_operator.engine.work_queue import BACKOFF_MAX_S, Key, WorkQueue
from magnetar_operator.metrics import OperatorMetrics

A, B = Key("BrokerCluster", "shop", "a"), Key("BrokerCluster", "shop", "b")


def queue() -> WorkQueue:
    return WorkQueue(SystemClock(), OperatorMetrics())


async def test_a_key_is_in_work_once_and_taken_again_if_it_was_added_in_between() -> None:
    work = queue()
    work.add(A)
    work.add(A)
    work.add(B)
    assert await work.take() == A
    work.add(A)
    work.add(A)
    assert await work.take() == B
    work.done(B)
    assert not work.idle
    work.done(A)
    assert await work.take() == A
    work.done(A)
    assert work.idle


async def test_the_earliest_appointment_stands_and_an_add_makes_it_void() -> None:
    work = queue()
    work.add_after(A, 0.01)
    work.add_after(A, 60)
    async with asyncio.timeout(120):
        assert await work.take() == A
    work.done(A)
    work.add_after(B, 60)
    work.add(B)
    assert await work.take() == B
    work.done(B)
    assert work.idle
    work.close()


async def test_a_periodic_look_cancels_no_appointment_of_a_pass_that_is_still_under_way() -> None:
    """A pass that has failed asks for another try before it ends; a resync between the two must
    not take that away."""

    work = queue()
    work.add(A)
    assert await work.take() == A
    work.add_failed(A)
    work.add_routine(A)
    work.done(A)
    async with asyncio.timeout(120):
        assert await work.take() == A
    work.done(A)
    work.add_after(B, 60)
    work.add_routine(B)
    assert await work.take() == B
    work.done(B)
    assert work.idle
    work.close()


async def test_failures_back_off_with_a_limit_and_success_forgets_them() -> None:
    work = queue()
    delays = [work.add_failed(A) for _ in range(30)]
    assert delays[0] < 0.3
    assert 0.5 * BACKOFF_MAX_S <= delays[-1] <= BACKOFF_MAX_S
    assert work.add_failed(A, at_least_s=500) == 500
    work.succeeded(A)
    assert work.add_failed(A) < 0.3
    work.close()
