"""Transactions that a test holds open, for tests of REST and the command line."""

from __future__ import annotations

from typing import Any

from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import Type, Wire

TOPIC = "persistent://public/default/held"


TIMEOUT_MS = 600_000


COMMIT, ABORT = api.COMMIT, api.ABORT


class Holder:
    """Transactions of one coordinator, by the bare protocol."""

    def __init__(self, port: int, tcid: int) -> None:
        self._wire, self._tcid = Wire(port), tcid
        self._wire.connect()

    def close(self) -> None:
        self._wire.close()

    def begin(self) -> TxnId:
        found = self._wire.ask(
            Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=TIMEOUT_MS, tc_id=self._tcid)
        )
        assert not found.HasField("error"), found
        return TxnId(found.txnid_most_bits, found.txnid_least_bits)

    def join(self, txn: TxnId) -> None:
        ids = {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}
        added = self._wire.ask(
            Type.ADD_PARTITION_TO_TXN, api.CommandAddPartitionToTxn(**ids, partitions=[TOPIC])
        )
        assert not added.HasField("error"), added
        subscription = api.Subscription(topic=TOPIC, subscription="s")
        body = api.CommandAddSubscriptionToTxn(**ids, subscription=[subscription])
        added = self._wire.ask(Type.ADD_SUBSCRIPTION_TO_TXN, body)
        assert not added.HasField("error"), added

    def end(self, txn: TxnId, action: int) -> Any:
        ids = {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}
        return self._wire.ask(Type.END_TXN, api.CommandEndTxn(**ids, txn_action=action))  # type: ignore[arg-type]
