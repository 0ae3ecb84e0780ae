"""`magnetar txn` against a standalone server: open transactions are listed, shown and aborted by
id; docs/transactions.md is true about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from dev.server_process import ServerProcess
from magnetar.errors import WireCode
from tests.clients.program import ROOT, Program
from tests.support.cli_guide import commands
from tests.support.held_transactions import COMMIT, TIMEOUT_MS, TOPIC, Holder

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def holder(server: ServerProcess) -> Iterator[Holder]:
    found = Holder(server.broker_port, 0)
    yield found
    found.close()


def test_open_transactions_are_listed_shown_and_aborted(
    server: ServerProcess, holder: Holder
) -> None:
    """The guide's commands in their order, then what scripts read of them."""
    program = Program(server.http_url, server.service_url)
    first, second = holder.begin(), holder.begin()
    holder.join(second)
    listed = program.json("txn", "list")
    assert [row["txn"] for row in listed["transactions"]] == [str(first), str(second)]
    assert listed["unreachable"] == []
    assert program.json("txn", "slow", "--older", str(TIMEOUT_MS))["transactions"] == []
    shown = program.json("txn", "show", str(second))
    assert (shown["status"], shown["partitions"], shown["timeout_ms"]) == (
        "OPEN",
        [TOPIC],
        TIMEOUT_MS,
    )
    assert shown["subscriptions"] == [{"topic": TOPIC, "subscription": "s"}]
    lines = commands("transactions", ROOT / "docs/transactions.md")
    assert len(lines) == 4
    for line in lines:
        name, *arguments = shlex.split(line)
        assert name == "magnetar"
        program.ok(*arguments)
    assert program.json("txn", "show", "0:0")["status"] == "ABORTED", "the guide aborts it"
    assert int(holder.end(first, COMMIT).error) == int(WireCode.INVALID_TXN_STATUS)


def test_what_cannot_be_shown_or_aborted_is_refused_in_words(
    server: ServerProcess, holder: Holder
) -> None:
    """An id that is none, one that never was, and a transaction that was committed."""
    program = Program(server.http_url, server.service_url)
    committed = holder.begin()
    assert not holder.end(committed, COMMIT).HasField("error")
    for arguments, code, said in (
        (("show", "first"), 2, "0:3"),
        (("show", "0:1000"), 1, "is not known"),
        (("abort", f"{committed.most}:{committed.least}"), 1, "is COMMITTED"),
    ):
        refused = program.run("txn", *arguments)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused
