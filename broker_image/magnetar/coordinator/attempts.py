"""One attempt to have a participant carry out a decision.

Owns: `Order`, what one participant has to do, and `Attempts`, which makes one attempt at a time.
Imports: the core, participants, names. Invariants: a participant that no longer exists, or
contradicts the decision, is not asked again; participants are asked by full names, whatever the
client wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.participants import Participants
from magnetar.errors import InvalidTxnStatus, MagnetarError, SubscriptionNotFound, TopicNotFound
from magnetar.names import TopicName
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Order:
    """The notification of one participant, and how often it has failed."""

    txn: TxnId
    action: Action
    name: Participant
    failures: int = 0


class Attempts:
    """Asks participants to carry decisions out."""

    def __init__(
        self, core: CoordinatorCore, participants: Participants, metrics: CoordinatorMetrics
    ) -> None:
        self._core, self._participants, self._metrics = core, participants, metrics

    async def make(self, order: Order) -> bool:
        """Whether the participant has carried the decision out, or never will."""
        txn, action, name = order.txn, order.action, order.name
        try:
            await self._inform(txn, action, name)
        except (TopicNotFound, SubscriptionNotFound) as error:
            log.info(
                "transaction.participant_gone", txn=str(txn), topic=name.topic, error=str(error)
            )
        except InvalidTxnStatus as error:  # and it would say so each time
            log.error(
                "transaction.participant_contradicts",
                txn=str(txn),
                action=action.name,
                error=str(error),
                **name._asdict(),
            )
        except MagnetarError as error:
            order.failures += 1
            self._metrics.participant_failures.inc()
            if order.failures & (order.failures - 1) == 0:  # the first, second, fourth...
                log.warning(
                    "transaction.participant_unavailable",
                    txn=str(txn),
                    topic=name.topic,
                    subscription=name.subscription,
                    failures=order.failures,
                    error=str(error),
                )
            return False
        return True

    async def _inform(self, txn: TxnId, action: Action, name: Participant) -> None:
        topic, low_watermark = str(TopicName.parse(name.topic)), self._core.low_watermark
        if name.subscription:
            await self._participants.end_on_subscription(
                topic, name.subscription, txn, action, low_watermark
            )
        else:
            await self._participants.end_on_partition(topic, txn, action, low_watermark)
