"""Asking coordinators about transactions that are open for long.

Owns: `Inquiries`. A transaction that its client never registered here, or whose registration lost
its answer, would never end here: its coordinator is asked. Imports: client (connections), metadata,
wire. The question is ADD_PARTITION_TO_TXN or ADD_SUBSCRIPTION_TO_TXN: an open transaction then has
the topic or subscription as a participant, which gets its end. Invariants: only "not found" ends a
transaction here. If it has begun it was aborted: a coordinator forgets it when all its participants
have ended it, and this one has not. If it has not begun its entries are void, and no fence stays,
for a transaction may yet begin under the id; later entries keep it for the next question. If it is
ending, or ended a short time ago, its end will arrive; what cannot be asked now is asked later. A
round is bounded, and shared fairly by topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.transactions.committing import abort_forgotten, abort_orphans, void_unbegun
from magnetar.broker.transactions.subscription_transactions import SubscriptionTransactions
from magnetar.client.connection import Credentials
from magnetar.client.pool import Pool
from magnetar.clock import elapsed_ms
from magnetar.coordinator.discovery import FIRST
from magnetar.errors import (
    InvalidTxnStatus,
    MagnetarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorClaimRecord
from magnetar.security.authorization import INTERNAL_METHOD
from magnetar.transactions.ids import TxnId
from magnetar.transactions.topic.buffer import TransactionBuffer
from magnetar.transactions.topic.pending_acks import PendingAcks
from magnetar.wire import requests

log = structlog.get_logger(__name__)


ASKED_PER_ROUND_MAX = 1_000
ASKED_AT_ONCE_MAX = 32
ROUND_S_MAX = 5.0
"""After it a round asks no further question."""


class _Question(NamedTuple):
    """About a transaction of the topic itself (subscription "") or of one of its subscriptions."""

    topic: TopicHost
    subscription: str
    txn: TxnId


class _Refused(MagnetarError):
    """The coordinator answers, but not this question: the transaction has too many participants,
    the subscription a name that it does not take."""


class Inquiries:
    """Looks at the topics served here."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership
        self._pool: Pool | None = None
        self._turn = 0

    async def close(self) -> None:
        """Close what connections there are."""
        if self._pool is not None:
            await self._pool.close()

    async def look(self) -> None:
        """Ask about what has become due, as far as one round goes."""
        questions = deque(self._due())
        if questions:
            await _Round(self._context, self._answer, questions).ask()

    def _due(self) -> Iterator[_Question]:
        """At most ASKED_PER_ROUND_MAX, shared evenly among topics and subscriptions; those without
        a turn are first next time."""
        parts = list(self._parts())
        now_ms, left = elapsed_ms(self._context.clock), ASKED_PER_ROUND_MAX
        start = self._turn % len(parts) if parts else 0
        parts = parts[start:] + parts[:start]
        self._turn = start + min(left, len(parts))
        while left and parts:
            share, more = max(1, left // len(parts)), []
            for topic, name, part in parts:
                due = part.to_inquire(now_ms, min(share, left))
                yield from (_Question(topic, name, txn) for txn in due)
                left -= len(due)
                if len(due) == share:
                    more.append((topic, name, part))
            parts = more

    def _parts(self) -> Iterator[tuple[TopicHost, str, TransactionBuffer | PendingAcks]]:
        for owned in self._ownership.owned.values():
            for topic in owned.topics.values():
                if (used := topic.transactions) is not None and not topic.frozen:
                    yield topic, "", used.buffer
                    yield from ((topic, name, pending) for name, pending in used.pending.items())

    async def _answer(self, question: _Question, holders: dict[int, CoordinatorClaimRecord]) -> str:
        """Ask, and carry out what follows; one of `_Round.outcomes`. Raises MagnetarError, OSError
        if there is no answer."""
        topic, subscription, txn = question
        try:
            async with asyncio.timeout(self._context.settings.transaction_participant_timeout_s):
                if txn.most not in holders:
                    holders[txn.most] = await self._holder(txn.most)
                await self._ask(holders[txn.most], str(topic.name), subscription, txn)
        except InvalidTxnStatus:
            return "ending"
        except _Refused as error:
            log.debug(
                "transaction.inquiry_refused",
                topic=str(topic.name),
                subscription=subscription,
                txn=str(txn),
                error=str(error),
            )
            return "refused"
        except TransactionNotFound as error:
            host = topic.subscriptions.get(subscription) if subscription else None
            if subscription and host is None:
                return "gone"
            if error.next_least is not None and txn.least >= error.next_least:
                voided = (
                    SubscriptionTransactions(host).void_unbegun(txn)
                    if host is not None
                    else void_unbegun(topic, txn)
                )
                return "unbegun" if voided else "open"
            if host is not None:
                SubscriptionTransactions(host).abort_forgotten(txn, error.floor)
                SubscriptionTransactions(host).abort_orphans()
            else:
                abort_forgotten(topic, txn, error.floor)
                abort_orphans(topic)
            return "forgotten"
        return "open"

    async def _ask(
        self, claim: CoordinatorClaimRecord, topic: str, subscription: str, txn: TxnId
    ) -> None:
        """Raises what its coordinator says of the transaction, _Refused, and MagnetarError,
        OSError if it cannot say anything now."""
        admission = self._context.tls
        url = (
            claim.service_url_tls
            if admission is not None and claim.service_url_tls
            else claim.service_url
        )
        pool = self._pool
        if pool is None:
            timeout_s = self._context.settings.transaction_participant_timeout_s
            pool = self._pool = Pool(self._context.network, url, self._credentials(), timeout_s)
        pool.begin_at(url, admission.to_peers() if admission is not None else None)
        connection, number = await pool.get(pool.assigned(url, False)), pool.next_request_id()
        if subscription:
            question = requests.add_subscription_to_txn(number, txn, topic, subscription)
        else:
            question = requests.add_partitions_to_txn(number, txn, [topic])
        try:
            await connection.request(number, question)
        except (
            InvalidTxnStatus,
            TransactionNotFound,
            TransactionCoordinatorNotFound,
            ServiceNotReady,
        ):
            raise
        except MagnetarError as error:
            raise _Refused(str(error)) from error

    async def _holder(self, tcid: int) -> CoordinatorClaimRecord:
        """Who answers for a number: its holder, or the first coordinator.

        Raises TransactionNotFound for a number that no coordinator has ever held: a client invented
        its transactions.
        """
        store = self._context.store
        item = await store.get(keys.coordinator_claim(tcid))
        if item is None:
            if await store.get(keys.coordinator(tcid)) is None:
                raise TransactionNotFound(
                    f"there has never been a transaction coordinator {tcid}", next_least=0
                )
            item = await store.get(keys.coordinator_claim(FIRST))
        if item is not None:
            return CoordinatorClaimRecord.decode(item.value)
        raise TransactionCoordinatorNotFound(
            f"transaction coordinator {tcid} is not there, nor the first one"
        )

    def _credentials(self) -> Credentials:
        security = self._context.security
        if security is None:
            return Credentials()
        return Credentials(INTERNAL_METHOD, lambda: security.internal_token().encode())


class _Round:
    """Asks ASKED_AT_ONCE_MAX questions at a time; a coordinator that does not answer is not asked
    again; one that refuses a question is."""

    outcomes = "open", "ending", "forgotten", "unbegun", "gone", "refused", "unanswered"

    def __init__(
        self,
        context: BrokerContext,
        answer: Callable[[_Question, dict[int, CoordinatorClaimRecord]], Awaitable[str]],
        questions: deque[_Question],
    ) -> None:
        self._clock, self._answer, self._questions = context.clock, answer, questions
        self._surprises = context.metrics.surprises
        self._until = context.clock.monotonic() + ROUND_S_MAX
        self._holders: dict[int, CoordinatorClaimRecord] = {}
        self._deaf: dict[int, str] = {}
        self._counts: dict[TopicHost, Counter[str]] = {}
        self._examples: dict[TopicHost, TxnId] = {}

    async def ask(self) -> None:
        """Until all are answered, or it is time to stop; one line of the log for each topic."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(ASKED_AT_ONCE_MAX, len(self._questions))):
                    group.create_task(self._work())
        finally:
            for topic, counts in self._counts.items():
                self._inform(topic, counts)

    async def _work(self) -> None:
        while self._questions:
            question = self._questions.popleft()
            most, outcome = question.txn.most, "unanswered"
            if most not in self._deaf and self._clock.monotonic() < self._until:
                try:
                    outcome = await self._answer(question, self._holders)
                except (MagnetarError, OSError) as error:
                    self._deaf[most] = repr(error)
                except Exception as error:
                    self._surprises.note(
                        "open transactions",
                        error,
                        topic=str(question.topic.name),
                        txn=str(question.txn),
                    )
            self._counts.setdefault(question.topic, Counter())[outcome] += 1
            if outcome in ("forgotten", "unbegun", "refused", "unanswered"):
                self._examples[question.topic] = question.txn

    def _inform(self, topic: TopicHost, counts: Counter[str]) -> None:
        example = self._examples.get(topic)
        about = {outcome: counts[outcome] for outcome in self.outcomes if counts[outcome]}
        if example is None:
            log.info("transaction.inquired", topic=str(topic.name), **about)
        else:
            error = self._deaf.get(example.most, "")
            log.warning(
                "transaction.inquired",
                topic=str(topic.name),
                **about,
                example=str(example),
                error=error,
            )
