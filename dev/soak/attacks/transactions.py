"""Transactions nobody finishes, and participants nobody has.

Owns: attacks on transaction coordinators. Imports: magnetar.wire, raw.
Invariant: at most TRANSACTIONS are open at once per attack, and each ends by its own timeout.
"""

from __future__ import annotations

from dev.soak.attacks.raw import RawConnection, Target, Type
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.frames import encode_command

TRANSACTIONS = 1000
TIMEOUTS_MS = (1, 100, 3000, 10_000)
PARTICIPANTS = 50_000
ENDS = 2000


async def _coordinator(target: Target) -> RawConnection:
    raw = await RawConnection.open(target.chance.choice(target.coordinators))
    await raw.shake_hands()
    return raw


async def _begin(target: Target, raw: RawConnection, count: int) -> list[TxnId]:
    """Begin transactions at whichever coordinator this is."""
    for number in (0, 1):
        await raw.send(requests.coordinator_connect(raw.request_id(), number))
        if not (
            await raw.until(Type.TC_CLIENT_CONNECT_RESPONSE)
        ).tc_client_connect_response.HasField("error"):
            break
    timeouts = [target.chance.choice(TIMEOUTS_MS) for _ in range(count)]
    await raw.send(
        b"".join(requests.new_txn(raw.request_id(), number, timeout) for timeout in timeouts)
    )
    found = []
    for _ in range(count):
        answer = (await raw.until(Type.NEW_TXN_RESPONSE)).new_txn_response
        if not answer.HasField("error"):
            found.append(TxnId(answer.txnid_most_bits, answer.txnid_least_bits))
    return found


def _end(raw: RawConnection, txn: TxnId, action: int) -> bytes:
    body = api.CommandEndTxn(
        request_id=raw.request_id(), txnid_most_bits=txn.most, txnid_least_bits=txn.least
    )
    body.txn_action = action  # type: ignore[assignment]
    return encode_command(api.BaseCommand(type=Type.END_TXN, end_txn=body))


async def begin_and_leave(target: Target) -> str:
    """A storm of NEW_TXN, and the connection is gone."""
    raw = await _coordinator(target)
    try:
        return f"{len(await _begin(target, raw, TRANSACTIONS))} begun"
    finally:
        raw.close()


async def many_participants(target: Target) -> str:
    """Tens of thousands of topics and subscriptions in one transaction, most of which do not
    exist; then its end, again and again."""
    raw = await _coordinator(target)
    try:
        begun = await _begin(target, raw, 3)
        if not begun:
            return "none begun"
        txn, base = begun[0], target.fresh_topic()
        names = [
            f"{base}-{number}" for number in range(target.chance.choice((10, 1000, PARTICIPANTS)))
        ] + [target.topic] * 1000
        await raw.send(requests.add_partitions_to_txn(raw.request_id(), txn, names))
        body = api.CommandAddSubscriptionToTxn(
            request_id=raw.request_id(), txnid_most_bits=txn.most, txnid_least_bits=txn.least
        )
        body.subscription.extend(
            api.Subscription(topic=name, subscription="hostile") for name in names[:PARTICIPANTS]
        )
        await raw.send(
            encode_command(
                api.BaseCommand(type=Type.ADD_SUBSCRIPTION_TO_TXN, add_subscription_to_txn=body)
            )
        )
        said = await raw.answers(
            2, Type.ADD_PARTITION_TO_TXN_RESPONSE, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE
        )
        await raw.send(_end(raw, txn, target.chance.choice((0, 1))) * 20)
        return (
            f"{len(names)} participants {said}, end {await raw.answers(20, Type.END_TXN_RESPONSE)}"
        )
    finally:
        raw.close()


async def ends_of_others(target: Target) -> str:
    """Ends of transactions that do not exist, sent to a coordinator."""
    raw = await _coordinator(target)
    try:
        chance = target.chance
        frames = [
            _end(
                raw,
                TxnId(
                    chance.choice((0, 1, 2, (1 << 64) - 1)),
                    chance.getrandbits(chance.choice((8, 63, 64))),
                ),
                chance.randrange(2),
            )
            for _ in range(ENDS)
        ]
        await raw.send(b"".join(frames))
        return await raw.answers(ENDS, Type.END_TXN_RESPONSE)
    finally:
        raw.close()


ATTACKS = (begin_and_leave, many_participants, ends_of_others)
