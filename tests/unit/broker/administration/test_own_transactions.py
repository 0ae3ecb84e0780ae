"""Who is shown a transaction: super users, and the role that began it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.administration.site import Site
from magnetar.broker.administration.transactions import TransactionFacts
from magnetar.errors import NotAuthorized, NotAuthorizedByRole, TransactionNotFound
from magnetar.security.authorization import Principal
from magnetar.transactions.ids import TxnId

BEGUN, ABSENT = TxnId(0, 1), TxnId(0, 2)


class Inspection:
    """A coordinator with one transaction."""

    async def transaction(self, most: int, least: int) -> dict[str, Any]:
        if (most, least) != BEGUN:
            raise TransactionNotFound("Transaction not found")
        return {"owner": "mine", "txn": str(BEGUN)}


class Guard:
    """Knows one super user."""

    async def require(self, principal: Principal, *_others: object) -> None:
        if principal.role != "root":
            raise NotAuthorized("no")


class Claims:
    """A metadata store in which the coordinator has its claim."""

    async def get(self, _key: str) -> object:
        return object()


async def inspection() -> Inspection:
    return Inspection()


FACTS = TransactionFacts(
    cast(
        "Site",
        SimpleNamespace(
            broker=SimpleNamespace(guard=Guard(), context=SimpleNamespace(store=Claims())),
            process=SimpleNamespace(coordinator=SimpleNamespace(inspection=inspection)),
        ),
    )
)


@pytest.mark.parametrize("role", ["root", "mine", None])
async def test_super_users_its_role_and_servers_without_security_see_it(role: str | None) -> None:
    principal = Principal(role) if role is not None else None
    assert (await FACTS.transaction_for(BEGUN, principal))["owner"] == "mine"


@pytest.mark.parametrize("txn", [BEGUN, ABSENT])
async def test_other_roles_learn_nothing_not_even_whether_it_is_there(txn: TxnId) -> None:
    with pytest.raises(NotAuthorizedByRole):
        await FACTS.transaction_for(txn, Principal("other"))


async def test_behind_a_proxy_the_role_of_the_client_counts() -> None:
    behind = Principal("proxy", original="mine")
    assert (await FACTS.transaction_for(BEGUN, behind))["owner"] == "mine"
    with pytest.raises(NotAuthorizedByRole):
        await FACTS.transaction_for(BEGUN, Principal("mine", original="other"))


async def test_who_may_see_all_learns_that_it_is_not_there() -> None:
    with pytest.raises(TransactionNotFound):
        await FACTS.transaction_for(ABSENT, Principal("root"))
