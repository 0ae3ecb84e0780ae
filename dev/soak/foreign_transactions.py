"""The official Java and Go clients as applications that consume, transform and produce in
transactions.

Owns: `ForeignMover`: one of them, in a thread. Imports: the drivers of the tests with foreign
clients, histories. Invariants: as `transaction_traffic`: questions are recorded before they are
asked; what the client says went wrong with a commit says nothing of its outcome, so it is asked for
in the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.histories.transactions import Fate, History, Input, TransactionHistory
from dev.testbed.foreign import Driver, ForeignError, Producer, Transaction
from dev.testbed.foreign_messages import Received
from magnetar.transactions.ids import TxnId

LANGUAGES = ("java", "go")
INPUTS_MAX = 8
RECEIVE_S, QUIET_S, RETRY_S = 0.5, 2.0, 0.2
TIMEOUT_S = 20.0
"""Within the patience of the last look: Go's client does not abort a transaction in which
something has failed, its coordinator does."""
ABORT_SHARE = 0.15
TROUBLE = (ForeignError, TimeoutError)


class ForeignMover(threading.Thread):
    """Moves messages of `source` to `targets` until it is `done`, then until nothing comes any
    more."""

    def __init__(
        self,
        language: str,
        history: History,
        source: str,
        subscription: str,
        targets: Sequence[str],
        seed: int,
    ) -> None:
        super().__init__(name=f"{language} mover", daemon=True)
        self.language = language
        self._history, self._source, self._subscription, self._targets = (
            history,
            source,
            subscription,
            targets,
        )
        self._chance = random.Random(f"{seed}/{language}")
        self.draining, self.ending = threading.Event(), threading.Event()
        self.ends: dict[str, int] = {}
        self.moved = 0
        self.trouble: list[str] = []
        self.unknown: list[tuple[TxnId, TransactionHistory]] = []
        self._sent = 0

    def connect(self, service_url: str, directory: Path) -> None:
        """Start the program and subscribe. Raises what it raises."""
        self._driver = Driver(self.language, directory)
        self._client = self._driver.client(service_url, transactions=True)
        self._session = self._history.subscribe(self._source, self._subscription)
        self._consumer = self._client.consumer(
            self._source, self._subscription, type="Shared", position="Earliest"
        )
        self._producers = {target: self._client.producer(target) for target in self._targets}

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                messages = self._consumer.receive_up_to(
                    self._chance.randint(1, INPUTS_MAX),
                    timeout_s=QUIET_S if self.draining.is_set() else RECEIVE_S,
                )
            except TROUBLE as error:
                self._note("receives", error)
                continue
            for message in messages:
                self._session.receive(
                    (message.id.ledger, message.id.entry, message.id.batch_index),
                    message.value.decode(),
                )
            fresh = list({message.value: message for message in messages}.values())
            if fresh:
                self._transact(fresh)
            elif self.draining.is_set():
                return

    def _transact(self, messages: Sequence[Received]) -> None:
        try:
            txn = self._client.transaction(TIMEOUT_S)
        except TROUBLE as error:
            self._note("begins", error)
            self._attempt("gives back", lambda: self._consumer.nack(*messages))
            time.sleep(RETRY_S)
            return
        record = self._history.begin(str(txn.id), self.language)
        if not self._fill(txn, record, messages):
            self._attempt("aborts", txn.abort)
            self._attempt("gives back", lambda: self._consumer.nack(*messages))
            self._end("failed")
        elif not self.draining.is_set() and self._chance.random() < ABORT_SHARE:
            self._attempt("aborts", txn.abort)
            self._end("aborted")
        else:
            self._commit(txn, record, len(messages))

    def _fill(
        self, txn: Transaction, record: TransactionHistory, messages: Sequence[Received]
    ) -> bool:
        """Publish and acknowledge; whether all of it worked."""
        try:
            for message in messages:
                source = Input(self._source, self._subscription, message.value.decode())
                for target, producer in self._chance.sample(
                    list(self._producers.items()), self._chance.randint(1, 2)
                ):
                    self._send(txn, record, target, producer, source)
            acknowledged = [
                record.acknowledge(self._source, self._subscription, message.value.decode())
                for message in messages
            ]
            self._consumer.ack(*messages, txn=txn)
        except TROUBLE as error:
            self._note(str(record), error)
            return False
        for one in acknowledged:
            one.confirm()
        return True

    def _send(
        self,
        txn: Transaction,
        record: TransactionHistory,
        target: str,
        producer: Producer,
        source: Input,
    ) -> None:
        self._sent += 1
        value = f"out-of-{self.language}-{self._sent}"
        sent = record.send(target, value, [source], producer.name)
        producer.send(value.encode(), txn)
        sent.confirm()

    def _commit(self, txn: Transaction, record: TransactionHistory, messages: int) -> None:
        record.ask_commit()
        try:
            txn.commit()
        except TROUBLE as error:
            self.unknown.append((txn.id, record))
            self._note(str(record), error)
            self._end("outcome unknown")
            return
        record.answer(Fate.COMMITTED)
        self.moved += messages
        self._end("committed")

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except TROUBLE as error:
            self._note(what, error)

    def _note(self, what: str, error: Exception) -> None:
        self.trouble.append(f"{self.language} {what}: {error!r}")

    def _end(self, how: str) -> None:
        how = f"{how} ({self.language})"
        self.ends[how] = self.ends.get(how, 0) + 1

    def leave(self) -> None:
        """Close the consumer: what it holds goes to others."""
        self._attempt("closes", self._consumer.close)

    def close(self) -> None:
        """End the program; idempotent, also if it never started."""
        self.ending.set()
        if hasattr(self, "_driver"):
            self._driver.close()
