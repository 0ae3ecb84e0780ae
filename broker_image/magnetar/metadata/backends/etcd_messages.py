"""Our value types as etcd's messages, and back.

Owns: the translation, nothing else: no connection, no clock. Imports: aetcd's generated messages,
errors, core (what holds), store. Invariant: a key is its UTF-8 bytes, so etcd's byte order is our
key order and no prefix ends in 0xff.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

from aetcd import rpc

from magnetar.metadata.store import Compare, Event, KeyValue, Operation, Put, WatchBatch

WHOLE_STORE = b"\0"
_RESULTS = {
    "=": rpc.Compare.EQUAL,
    "!=": rpc.Compare.NOT_EQUAL,
    "<": rpc.Compare.LESS,
    ">": rpc.Compare.GREATER,
}
_TARGETS = {
    "mod": (rpc.Compare.MOD, "mod_revision"),
    "create": (rpc.Compare.CREATE, "create_revision"),
    "version": (rpc.Compare.VERSION, "version"),
    "value": (rpc.Compare.VALUE, "value"),
}


def prefix_span(prefix: str) -> tuple[bytes, bytes]:
    """`key` and `range_end` of all keys that start with `prefix`."""
    if not prefix:
        return WHOLE_STORE, WHOLE_STORE
    key = prefix.encode()
    return key, key[:-1] + bytes((key[-1] + 1,))


def key_value(message: Any) -> KeyValue:
    """A KeyValue message."""
    return KeyValue(
        message.key.decode(),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def transaction(
    compares: Sequence[Compare], operations: Sequence[Operation], missing: Collection[str]
) -> Any:
    """A TxnRequest that answers a refusal with the compared keys.

    etcd calls every compare with the *value* of a missing key false; this store reads b"". Keys in
    `missing` are therefore expected not to exist: their value compares become "create revision is
    0".
    """
    keys = dict.fromkeys(compare.key for compare in compares)
    return rpc.TxnRequest(
        compare=[_compare(compare, compare.key in missing) for compare in compares],
        success=[_operation(operation) for operation in operations],
        failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode())) for key in keys],
    )


def _compare(compare: Compare, missing: bool) -> Any:
    if missing and compare.target == "value":
        compare = Compare(compare.key, "create", "=", 0)
    target, field = _TARGETS[compare.target]
    return rpc.Compare(
        key=compare.key.encode(),
        target=target,
        result=_RESULTS[compare.operator],
        **{field: compare.operand},
    )


def _operation(operation: Operation) -> Any:
    if isinstance(operation, Put):
        put = rpc.PutRequest(
            key=operation.key.encode(), value=operation.value, lease=operation.lease
        )
        return rpc.RequestOp(request_put=put)
    key, end = prefix_span(operation.key) if operation.prefix else (operation.key.encode(), b"")
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))


def refused_items(response: Any) -> tuple[KeyValue, ...]:
    """The compared keys of a TxnResponse that did not succeed."""
    return tuple(
        key_value(item) for answer in response.responses for item in answer.response_range.kvs
    )


def batches(events: Iterable[Any]) -> list[WatchBatch]:
    """Events of complete revisions, in order, one batch per revision."""
    return [
        WatchBatch(revision, tuple(_event(message) for message in group))
        for revision, group in groupby(events, key=lambda message: int(message.kv.mod_revision))
    ]


def _event(message: Any) -> Event:
    item = message.kv
    value = None if message.type == rpc.Event.DELETE else item.value
    return Event(item.key.decode(), value, item.mod_revision, item.create_revision)
