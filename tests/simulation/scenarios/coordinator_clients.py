"""Clients that speak to coordinators request by request.

Owns: `CoordinatorClient` (one request at a time, looked up through brokers, asked again after
whatever went wrong) and what clients do with transactions in the coordinator scenario. Imports:
magnetar.client (pool), the ledger. Invariants: what is asked for is in the ledger before it is
sent, and what was answered when it was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.client.connection import Answer, Credentials
from magnetar.client.coordinators import ASSIGN_TOPIC
from magnetar.client.failures import ConnectionLost
from magnetar.client.pool import Address, Pool
from magnetar.errors import InvalidTxnStatus, MagnetarError, Retry
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant
from magnetar.wire import requests
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.coordinator_cluster import NUMBERS
from tests.simulation.scenarios.coordinator_ledger import Known, Ledger, PromiseBroken
from tests.simulation.scenarios.tracer_cluster import SERVICE_URL

REQUEST_TIMEOUT_S = 2.0
PATIENCE_S = 12.0
PAUSE_S = (0.02, 0.2)
SHORT_S = (0.5, 4.0)
LONG_S = 600.0
OTHER = {Action.COMMIT: Action.ABORT, Action.ABORT: Action.COMMIT}


class CoordinatorClient:
    """One client's connections, and its way to each number."""

    def __init__(self, environment: Environment, ledger: Ledger) -> None:
        self.clock, self.ledger = environment.clock, ledger
        self._pool = Pool(environment.network, SERVICE_URL, Credentials(), REQUEST_TIMEOUT_S, 3.0)
        self._places: dict[int, Address] = {}

    async def ask(
        self, tcid: int, build: Callable[[int], bytes], patience_s: float = PATIENCE_S
    ) -> Answer:
        """Ask until there is an answer. Raises the refusal, TimeoutError after `patience_s`."""
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    return await self._once(tcid, build)
                except MagnetarError as failure:
                    if failure.retry is Retry.NEVER:
                        raise
                await asyncio.sleep(self.clock.uniform(*PAUSE_S))

    async def _once(self, tcid: int, build: Callable[[int], bytes]) -> Answer:
        place = self._places.pop(tcid, None)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                place = place or await self._pool.locate(f"{ASSIGN_TOPIC}-partition-{tcid}")
                connection = await self._pool.get(place)
                number = self._pool.next_request_id()
                answer = await connection.request(number, build(number))
        except TimeoutError as timeout:
            raise ConnectionLost("no answer") from timeout
        self._places[tcid] = place
        return answer

    # --- requests ---------------------------------------------------------------------------------

    async def begin(self, tcid: int, timeout_s: float) -> Known:
        """A transaction of that number, or of another one if it retires. Asked for once: an
        answer that is lost leaves an orphan."""
        mark = self.ledger.mark()
        body = (
            await self._once(
                tcid, lambda number: requests.new_txn(number, tcid, int(timeout_s * 1000))
            )
        ).new_txn_response
        return self.ledger.given(
            TxnId(body.txnid_most_bits, body.txnid_least_bits), timeout_s, mark
        )

    async def join(self, known: Known, participant: Participant) -> None:
        """Add a participant. Raises the refusal, TimeoutError."""
        txn, (topic, subscription) = known.txn, participant
        over = self.ledger.joins(known, participant)

        def build(number: int) -> bytes:
            if subscription:
                return requests.add_subscription_to_txn(number, txn, topic, subscription)
            return requests.add_partitions_to_txn(number, txn, [topic])

        await self.ask(txn.most, build)
        self.ledger.joined(known, participant, over)

    async def end(self, known: Known, action: Action, patience_s: float = PATIENCE_S) -> Action:
        """Ask for an end; the outcome. Raises TimeoutError, and PromiseBroken when it is refused
        in any but the one way."""
        known.wish(action)
        try:
            await self.ask(
                known.txn.most,
                lambda number: requests.end_txn(number, known.txn, commit=action is Action.COMMIT),
                patience_s,
            )
        except InvalidTxnStatus as refusal:
            outcome = OTHER[action]
            if outcome.name[:5] not in str(refusal).split(" is ")[1]:
                raise PromiseBroken(
                    f"{action.name} of {known.txn} was refused by {refusal}"
                ) from refusal
        except MagnetarError as refusal:
            raise PromiseBroken(
                f"{action.name} of {known.txn} was refused by {refusal!r}"
            ) from refusal
        else:
            outcome = action
        self.ledger.answered(known, outcome)
        return outcome


async def transact(
    ledger: Ledger, participants: tuple[Participant, ...], environment: Environment
) -> None:
    """Begin transactions and end them in every way there is, permanently; now and then ask about an
    old one."""
    client, clock = CoordinatorClient(environment, ledger), environment.clock
    while True:
        try:
            await _one(client, participants)
            if clock.random_bits(1):
                await _ask_again(client)
        except (MagnetarError, TimeoutError):
            pass
        await asyncio.sleep(clock.uniform(*PAUSE_S))


async def _one(client: CoordinatorClient, participants: tuple[Participant, ...]) -> None:
    clock = client.clock
    short = clock.random_bits(2) == 0
    timeout_s = clock.uniform(*SHORT_S) if short else LONG_S
    known = await client.begin(clock.random_bits(8) % NUMBERS, timeout_s)
    names = [
        participants[clock.random_bits(16) % len(participants)] for _ in range(clock.random_bits(2))
    ]
    joined = await asyncio.gather(
        *(client.join(known, name) for name in names), return_exceptions=True
    )
    _raise_broken(joined)
    choice = clock.random_bits(3)
    if short and choice < 4:
        return  # left to its timeout
    action = Action.COMMIT if choice % 4 else Action.ABORT
    if choice == 7:  # two clients, or one that repeats itself with the other end
        _raise_broken(
            await asyncio.gather(
                *(client.end(known, wish) for wish in Action), return_exceptions=True
            )
        )
    elif choice == 6:  # a participant that comes while the end is on its way
        late = client.join(known, participants[clock.random_bits(16) % len(participants)])
        _raise_broken(await asyncio.gather(client.end(known, action), late, return_exceptions=True))
    else:
        await client.end(known, action)


async def _ask_again(client: CoordinatorClient) -> None:
    """An old one's outcome, by either end; and it takes nothing more."""
    ended = [known for known in client.ledger.known.values() if known.outcome is not None]
    if not ended:
        return
    known = ended[client.clock.random_bits(16) % len(ended)]
    await client.end(known, Action(client.clock.random_bits(1)))
    if client.clock.random_bits(2) == 0 and known.joined:
        await client.join(known, min(known.joined))


def _raise_broken(results: list[BaseException | None] | list[BaseException | Action]) -> None:
    for result in results:
        if isinstance(result, PromiseBroken):
            raise result


async def audit(ledger: Ledger, environment: Environment, within_s: float) -> None:
    """Ask for the outcome of everything that was ever begun. What was not ended by anybody, and
    may time out, has."""
    client = CoordinatorClient(environment, ledger)
    every = list(ledger.known.values())
    for start in range(0, len(every), 50):
        await asyncio.gather(
            *(_audit_one(client, known, within_s) for known in every[start : start + 50])
        )


async def _audit_one(client: CoordinatorClient, known: Known, within_s: float) -> None:
    abandoned = not known.wanted and known.timeout_s < LONG_S
    outcome = await client.end(known, Action.COMMIT, within_s)
    if abandoned and outcome is Action.COMMIT:
        raise PromiseBroken(
            f"transaction {known.txn} was left to its timeout of {known.timeout_s:.1f} s, and is "
            "still open"
        )
