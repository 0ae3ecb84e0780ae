"""Consume, transform, produce: exactly once.

Owns: `exactly_once`: one transaction per batch of messages, tried again safely. Imports: client,
transactions, backoff. Invariants: what a batch published and its acknowledgements are one
transaction, so a message that is delivered again has not taken effect; after an abort, or an
unknown outcome, the batch is delivered again by the broker rather than sent again from
memory: it comes only if its transaction did not take place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from magnetar.client.backoff import Backoff
from magnetar.client.client import Client
from magnetar.client.consumer import Consumer
from magnetar.client.failures import TransactionAborted, TransactionOutcomeUnknown
from magnetar.client.messages import Message, MessageId
from magnetar.client.schemas import T
from magnetar.client.transactions import TRANSACTION_TIMEOUT_S, Transaction, TransactionState
from magnetar.errors import MagnetarError, Retry, TransactionConflict

BATCH_MESSAGES_MAX = 100
FAILURES_IN_A_ROW_MAX = 20
RETRY_LAST_S = 10.0
_log = logging.getLogger(__name__)

Work: TypeAlias = Callable[[Sequence[Message[T]], Transaction], Awaitable[None]]
"""Publishes what follows from messages, with `txn=`; acknowledging them is not its affair."""


async def exactly_once(
    client: Client,
    consumer: Consumer[T],
    work: Work[T],
    *,
    messages_max: int = BATCH_MESSAGES_MAX,
    idle_s: float | None = None,
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
) -> int:
    """Receive messages in batches, have `work` publish what follows from them, acknowledge them:
    each batch in a transaction of its own.

    Runs until cancelled, or until no message has come for `idle_s`. Returns the number of messages
    known to be committed; those of a transaction whose outcome is unknown are not counted (they
    come again if it did not take place, and count then).

    A transaction that is aborted (`work` may do so), lost or refused for a time is tried again with
    back-off after the broker has delivered its messages again. An exception of `work` aborts; its
    messages are refused (negative acknowledgement, so back-off and dead-letter policy apply) and it
    is raised, as is a refusal that will not change, and the last of 20 failures in a row.
    """
    backoff = Backoff(client.clock, last_s=RETRY_LAST_S)
    committed = failures = 0
    while received := await consumer.batch_receive(messages_max, idle_s):
        messages = list(
            {message.id: message for message in received}.values()
        )  # in one transaction, a second copy would count as well
        acknowledged: set[MessageId] = set()
        try:
            await _attempt(client, consumer, work, messages, acknowledged, transaction_timeout_s)
        except MagnetarError as failure:
            _have_redelivered(consumer, messages, acknowledged)
            failures += 1
            if not _worth_another(failure) or failures >= FAILURES_IN_A_ROW_MAX:
                raise
            _log.warning(
                "topic %s: trying %d messages again in a new transaction: %s",
                consumer.topic,
                len(messages),
                failure,
            )
            await asyncio.sleep(backoff.next())
        except Exception:
            for message in messages:
                consumer.negative_acknowledge(message)
            raise
        except asyncio.CancelledError:
            consumer.redeliver(messages)
            raise
        else:
            committed += len(messages)
            failures = 0
            backoff.reset()
    return committed


def _have_redelivered(
    consumer: Consumer[T], messages: Sequence[Message[T]], acknowledged: set[MessageId]
) -> None:
    """What the transaction acknowledged comes again with its abort; asked for as well, it would
    come twice.

    Where single messages are not redelivered, everything starts again, so that what waits here does
    not come twice.
    """
    consumer.redeliver(
        [
            message
            for message in messages
            if not consumer.one_by_one or message.id not in acknowledged
        ]
    )


async def _attempt(
    client: Client,
    consumer: Consumer[T],
    work: Work[T],
    messages: Sequence[Message[T]],
    acknowledged: set[MessageId],
    timeout_s: float,
) -> None:
    """One transaction; fills in what it acknowledged. Raises what went wrong."""
    async with client.transaction(timeout_s=timeout_s) as txn:
        await work(messages, txn)
        if txn.state is not TransactionState.OPEN:
            raise TransactionAborted(
                f"transaction {txn} was ended by the work itself: {txn.state.value}"
            )
        outcomes = await asyncio.gather(
            *(consumer.acknowledge(message, txn=txn) for message in messages),
            return_exceptions=True,
        )
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                acknowledged.add(message.id)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def _worth_another(failure: MagnetarError) -> bool:
    """A message that another transaction holds is free, or gone, when that one ends; an unknown
    outcome shows in the redelivery."""
    return failure.retry is not Retry.NEVER or isinstance(
        failure, TransactionAborted | TransactionConflict | TransactionOutcomeUnknown
    )
