"""Transactions where every port is TLS and every peer is asked who it is: a standalone server
reaches itself, and transactions have owners."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from dev.secured_server import token
from dev.testbed.cluster import wait_for
from magnetar.client import Client
from magnetar.client.failures import BrokerRefused
from magnetar.errors import NotAllowed
from magnetar.names import COORDINATOR_TOPIC
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.secured_clients import Secured

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/owned"
TIMEOUT_S = 120.0
DONE = -1


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A standalone server, and two roles that may use its topics."""
    found = Secured(tmp_path_factory.mktemp("secured"))
    with found.process:
        for role in ("ann", "eve"):
            found.permit(role, "produce", "consume")
        yield found


def _client(secured: Secured, role: str) -> Client:
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    return Client(secured.process.service_url_tls, token=token(role), tls=context)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, then wait until TLS has shut down: its sockets outlive the client that closed
    them."""
    async with asyncio.timeout(TIMEOUT_S):
        await work
        loop: Any = asyncio.get_running_loop()
        while len(loop._selector.get_map()) > 1:  # the loop's own
            await asyncio.sleep(0.01)


async def test_a_transaction_commits_and_belongs_to_its_role(secured: Secured) -> None:
    """The coordinator notifies the topic by an internal token over TLS; another role may not end
    the transaction, a super user may."""

    async def scenario() -> None:
        async with (
            _client(secured, "ann") as ann,
            _client(secured, "eve") as eve,
            _client(secured, "admin") as admin,
        ):
            producer, consumer = await ann.create_producer(TOPIC), await ann.subscribe(TOPIC, "s")
            async with ann.transaction() as txn:
                await producer.send(b"committed", txn=txn)
            message = await consumer.receive()
            assert message.value == b"committed"
            open_one = ann.transaction(timeout_s=600)
            await open_one.begin()
            with pytest.raises(NotAllowed, match="another role"):
                (await eve._coordinators.commit(open_one.id, TIMEOUT_S)).accepted()
            (await admin._coordinators.abort(open_one.id)).accepted()

    await _to_the_end(scenario())
    nothing = {"transactions": [], "more": False, "unreachable": []}
    wait_for(  # a commit may be answered before every topic has answered its coordinator
        "no transaction is left",
        lambda: secured.rest("GET", "/magnetar/v1/transactions") == nothing,
    )


async def test_a_client_cannot_tell_a_topic_how_a_transaction_ended(secured: Secured) -> None:
    """END_TXN_ON_PARTITION of a role that may publish there is refused; a super user's is
    carried out."""

    async def tell(role: str) -> api.CommandEndTxnOnPartitionResponse:
        async with _client(secured, role) as client:
            await client.create_producer(TOPIC)
            pool = client._session.pool
            connection, number = await pool.get(await pool.locate(TOPIC)), pool.next_request_id()
            frame = requests.end_txn_on_partition(
                number, TxnId(0, 1 << 20), TOPIC, commit=False, low_watermark=-1
            )
            return (await connection.request(number, frame)).end_txn_on_partition_response

    async def scenario() -> None:
        refused = await tell("ann")
        assert (refused.error, "its coordinator does" in refused.message) == (
            api.AuthorizationError,
            True,
        )
        assert not (await tell("admin")).HasField("error")

    await _to_the_end(scenario())


async def _asked(client: Client, ask: Callable[[int], bytes]) -> int:
    """The code that the coordinator of a standalone server refuses one request with; -1 if it
    does what it is asked."""
    pool = client._session.pool
    connection, number = (
        await pool.get(await pool.locate(f"{COORDINATOR_TOPIC}-partition-0")),
        pool.next_request_id(),
    )
    try:
        await connection.request(number, ask(number))
    except BrokerRefused as refused:
        return int(refused.code)
    except NotAllowed as refused:
        return int(refused.wire_code)
    return DONE


async def test_a_role_that_may_use_nothing_begins_no_transaction(secured: Secured) -> None:
    """It cannot use up what others need."""

    async def scenario() -> None:
        for role, code in (("nobody", api.AuthorizationError), ("ann", DONE), ("admin", DONE)):
            async with _client(secured, role) as client:
                assert (
                    await _asked(client, lambda number: requests.new_txn(number, 0, 1_000)) == code
                ), role

    await _to_the_end(scenario())


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (TOPIC, DONE),
        ("persistent://other/tenant/t", api.AuthorizationError),
        (f"{TOPIC}/_txnlog", api.NotAllowedError),
    ],
)
async def test_topics_of_a_transaction_are_those_that_its_role_may_use(
    secured: Secured, topic: str, code: int
) -> None:
    """By messages and by acknowledgements."""

    async def scenario() -> None:
        async with _client(secured, "ann") as ann:
            txn = ann.transaction()
            await txn.begin()
            published = await _asked(
                ann, lambda number: requests.add_partitions_to_txn(number, txn.id, (topic,))
            )
            acknowledged = await _asked(
                ann, lambda number: requests.add_subscription_to_txn(number, txn.id, topic, "s")
            )
            assert [published, acknowledged] == [code, code]
            await txn.abort()

    await _to_the_end(scenario())


async def test_an_administrator_ends_the_transactions_of_a_role(secured: Secured) -> None:
    """Those of others go on."""
    secured.rest("POST", "/magnetar/v1/transactions/abort?role=ann")  # what other tests have left

    async def scenario() -> None:
        async with _client(secured, "ann") as ann, _client(secured, "eve") as eve:
            for client in (ann, ann, eve):
                await client.transaction(timeout_s=600).begin()
            assert await asyncio.to_thread(
                secured.rest, "POST", "/magnetar/v1/transactions/abort?role=ann"
            ) == {
                "aborted": 2,
                "more": False,
            }
            left = await asyncio.to_thread(secured.rest, "GET", "/magnetar/v1/transactions")
            assert [row["owner"] for row in left["transactions"] if row["owner"] != "admin"] == [
                "eve"
            ]
            await asyncio.to_thread(
                secured.rest, "POST", "/magnetar/v1/transactions/abort?role=eve"
            )

    await _to_the_end(scenario())
