"""The metadata store over HTTP, for jobs on the same machine.

Owns: `POST /internal/v1/store/{get,range,transact}`, the server side of
`magnetar_jobs.remote_store` (which documents the shapes). A standalone broker holds the lock of its
embedded store, so a job beside it commits through these routes; brokers over etcd do not mount
them. Imports: FastAPI, pydantic, answers, errors, metadata.store. Invariants: only the loopback
interface is answered, and only requests with the header `x-magnetar-internal` (which no foreign web
page can make a browser send); a body is read after its sender was admitted, and up to a limit;
values and binary operands travel as base64; the store's own errors leave as their declared status.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.errors import InvalidRequest, NotAllowed
from magnetar.metadata.backends.core import VALUE_BYTES_MAX
from magnetar.metadata.store import Compare, Delete, KeyValue, MetadataStore, Operation, Put
from magnetar.rest.answers import body_of

OPERATIONS_MAX = 128
BODY_BYTES_MAX = 4 * VALUE_BYTES_MAX
"""The values of one transaction and its operands, in base64."""


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Item(_Shape):
    """One key as of one revision."""

    key: str
    value: str
    create_revision: int
    mod_revision: int
    version: int
    lease: int

    @staticmethod
    def of(item: KeyValue) -> Item:
        value = base64.b64encode(item.value).decode()
        return Item(
            key=item.key,
            value=value,
            create_revision=item.create_revision,
            mod_revision=item.mod_revision,
            version=item.version,
            lease=item.lease,
        )


class GetRequest(_Shape):
    key: str


class GetResponse(_Shape):
    item: Item | None


class RangeRequest(_Shape):
    prefix: str
    limit: int = Field(default=0, ge=0)


class RangeResponse(_Shape):
    revision: int
    items: list[Item]


class CompareShape(_Shape):
    """`operand` is a number, or base64 when the target is `value`."""

    key: str
    target: Literal["mod", "create", "version", "value"]
    operator: Literal["=", "!=", "<", ">"]
    operand: int | str

    def compare(self) -> Compare:
        if (self.target == "value") != isinstance(self.operand, str):
            raise InvalidRequest(
                f"compare of {self.key!r}: operand {self.operand!r} does not fit target "
                f"{self.target!r}"
            )
        operand = _decode(self.operand) if isinstance(self.operand, str) else self.operand
        return Compare(self.key, self.target, self.operator, operand)


class OperationShape(_Shape):
    """A put (with `value`) or a delete (with `prefix`)."""

    kind: Literal["put", "delete"]
    key: str
    value: str = ""
    lease: int = 0
    prefix: bool = False

    def operation(self) -> Operation:
        return (
            Put(self.key, _decode(self.value), self.lease)
            if self.kind == "put"
            else Delete(self.key, self.prefix)
        )


class TransactRequest(_Shape):
    compares: list[CompareShape] = Field(max_length=OPERATIONS_MAX)
    operations: list[OperationShape] = Field(max_length=OPERATIONS_MAX)


class TransactResponse(_Shape):
    succeeded: bool
    revision: int
    current: list[Item]


Body = TypeVar("Body", bound=_Shape)


async def _shaped(shape: type[Body], request: Request) -> Body:
    """The body of a request. FastAPI would read one that it parses before it asks the gate.
    Raises InvalidRequest, BodyTooLarge."""
    try:
        return shape.model_validate(await body_of(request, BODY_BYTES_MAX))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("body", *first["loc"]))
        raise InvalidRequest(
            f"{place}: {first['msg']} (got {str(first.get('input'))[:80]!r})"
        ) from error


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"value {text[:40]!r} is not base64") from error


async def require_loopback(
    request: Request, x_magnetar_internal: Annotated[str, Header()] = ""
) -> None:
    """Refuse everybody but processes of this machine. Raises NotAllowed."""
    peer = request.client.host if request.client is not None else ""
    try:
        local = ipaddress.ip_address(peer).is_loopback
    except ValueError:
        local = False
    if not local or not x_magnetar_internal:
        raise NotAllowed(
            "the internal store routes answer processes on this machine only, not "
            f"{peer or 'an unknown peer'}"
        )


def store_router(store: MetadataStore) -> APIRouter:
    """The three routes over `store`."""
    router = APIRouter(
        prefix="/internal/v1/store",
        dependencies=[Depends(require_loopback)],
        include_in_schema=False,
    )

    @router.post("/get")
    async def get(request: Request) -> GetResponse:
        body = await _shaped(GetRequest, request)
        item = await store.get(body.key)
        return GetResponse(item=Item.of(item) if item is not None else None)

    @router.post("/range")
    async def range_(request: Request) -> RangeResponse:
        body = await _shaped(RangeRequest, request)
        found = await store.range(body.prefix, limit=body.limit)
        return RangeResponse(revision=found.revision, items=[Item.of(item) for item in found.items])

    @router.post("/transact")
    async def transact(request: Request) -> TransactResponse:
        body = await _shaped(TransactRequest, request)
        compares = [shape.compare() for shape in body.compares]
        result = await store.transact(compares, [shape.operation() for shape in body.operations])
        return TransactResponse(
            succeeded=result.succeeded,
            revision=result.revision,
            current=[Item.of(item) for item in result.current],
        )

    return router
