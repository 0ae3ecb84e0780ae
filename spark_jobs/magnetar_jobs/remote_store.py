"""The metadata store of a standalone broker, reached through the broker.

Owns: a `MetadataStore` over `POST {broker}/internal/v1/store/{get,range,transact}` (served by
`magnetar.broker.routes.store_routes` on the loopback interface only, with the header
`x-magnetar-internal: 1`). Imports: errors, metadata.store, json_http.

JSON shapes (values, and operands of target `value`, are base64):
    item      {"key", "value", "create_revision", "mod_revision", "version", "lease"}
    get       {"key"} -> {"item": item | null}
    range     {"prefix", "limit"} -> {"revision", "items": [item]}
    transact  {"compares": [{"key", "target": mod|create|version|value, "operator": =|!=|<|>,
               "operand": number | base64}],
               "operations": [{"kind": "put", "key", "value", "lease"} |
               {"kind": "delete", "key", "prefix"}]} -> {"succeeded", "revision", "current": [item]}
    errors    status of the error class, {"reason"}

Invariants: no answer, and any answer of 5xx, is StoreUnavailable (the change may have happened); a
refusal of 4xx is StoreError (it did not). Watches and leases are not offered: a job needs neither.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from magnetar.errors import StoreError, StoreUnavailable
from magnetar.json_http import NoAnswer, exchange
from magnetar.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    TxnResult,
    WatchBatch,
)

TIMEOUT_S = 30.0
TOKEN_FILE = "MAGNETAR_TOKEN_FILE"
"""Variable with the file of a super user's token, for a broker that asks who comes."""


def bearer(token_file: str) -> dict[str, str]:
    """The header with the token in a file, read now ("" = none). Raises StoreError."""
    if not token_file:
        return {}
    try:
        return {"authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    except OSError as error:
        raise StoreError(
            f"{TOKEN_FILE}: {token_file} cannot be read: {error.strerror}; name a file with a token"
        ) from error


def _item(body: dict[str, Any]) -> KeyValue:
    value = base64.b64decode(body["value"])
    return KeyValue(
        body["key"],
        value,
        body["create_revision"],
        body["mod_revision"],
        body["version"],
        body["lease"],
    )


def _compare(compare: Compare) -> dict[str, Any]:
    operand = (
        base64.b64encode(compare.operand).decode()
        if isinstance(compare.operand, bytes)
        else compare.operand
    )
    return {
        "key": compare.key,
        "target": compare.target,
        "operator": compare.operator,
        "operand": operand,
    }


def _operation(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, Put):
        value = base64.b64encode(operation.value).decode()
        return {"kind": "put", "key": operation.key, "value": value, "lease": operation.lease}
    return {"kind": "delete", "key": operation.key, "prefix": operation.prefix}


class RemoteStore:
    """A MetadataStore behind a broker's HTTP listener, e.g.
    `RemoteStore("http://127.0.0.1:8080")`."""

    def __init__(self, broker_url: str, token_file: str = "") -> None:
        """`token_file`: the token of a super user, read for each request ("" = the brokers have
        no authentication)."""
        self._token_file = token_file
        self._base = f"{broker_url.rstrip('/')}/internal/v1/store"

    async def get(self, key: str) -> KeyValue | None:
        item = (await self._post("get", {"key": key}))["item"]
        return _item(item) if item is not None else None

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        body = await self._post("range", {"prefix": prefix, "limit": limit})
        return RangeResult(body["revision"], tuple(_item(item) for item in body["items"]))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        request = {
            "compares": [_compare(item) for item in compares],
            "operations": [_operation(item) for item in operations],
        }
        body = await self._post("transact", request)
        return TxnResult(
            body["succeeded"], body["revision"], tuple(_item(item) for item in body["current"])
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        return (await self.transact([Compare(key, "version", ">", 0)], [Delete(key)])).succeeded

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        raise StoreError(
            f"watch of {prefix!r} from revision {from_revision}: not offered over HTTP; use the "
            "broker's own store"
        )

    async def grant_lease(self, ttl_s: float) -> int:
        raise StoreError(f"lease of {ttl_s} s: not offered over HTTP; use the broker's own store")

    async def renew_lease(self, lease: int) -> float:
        raise StoreError(f"lease {lease}: not offered over HTTP; use the broker's own store")

    async def revoke_lease(self, lease: int) -> None:
        raise StoreError(f"lease {lease}: not offered over HTTP; use the broker's own store")

    async def close(self) -> None:
        """Nothing is kept open between calls."""

    async def _post(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self._post_now, verb, body)

    def _post_now(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._base}/{verb}"
        headers = {"x-magnetar-internal": "1"} | bearer(self._token_file)
        try:
            answer = exchange("POST", url, body, headers, timeout_s=TIMEOUT_S)
            if answer.status == 200:
                found: dict[str, Any] = json.loads(answer.body)
                return found
        except (NoAnswer, ValueError) as error:
            raise StoreUnavailable(f"{url}: {error}; is the standalone broker running?") from error
        refused = f"{url}: status {answer.status}: {answer.body[:4096].decode(errors='replace')}"
        if answer.status >= 500:
            raise StoreUnavailable(refused)
        raise StoreError(f"{refused}; is it a standalone broker of this version?")
