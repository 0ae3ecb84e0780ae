"""The metadata store in an etcd cluster (3.5.13 or later).

Owns: `EtcdStore`. Imports: asyncio, aetcd's stubs, structlog, clock, errors, core (checks),
etcd_channels, etcd_messages, etcd_tls, store. Invariants: every request has a deadline; a write is
sent at most once; a watch resumes at the revision after the last batch it delivered whatever member
it reaches, and never delivers part of a revision.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import structlog
from aetcd import rpc

from magnetar.clock import Clock
from magnetar.errors import Compacted, LeaseLost, StoreError, StoreUnavailable
from magnetar.metadata.backends import etcd_messages as messages
from magnetar.metadata.backends.core import check_transaction, holds
from magnetar.metadata.backends.etcd_channels import REQUIRE_LEADER, Channels, Member
from magnetar.metadata.backends.etcd_tls import TlsFiles, TlsMaterial
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

__all__ = ["EtcdStore", "TlsFiles", "TlsMaterial"]

SCHEME = "etcd://"
REQUEST_TIMEOUT_S = 3.0
RANGE_PAGE_KEYS = 1000
RANGE_RESTARTS_MAX = 3
MISSING_GUESSES_MAX = 8
"""Rounds of a transaction that compares values of keys which others keep creating and deleting
concurrently."""
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.05, 0.5
WATCH_SILENCE_S = 2.0
"""A watch that has received nothing for this long asks for its progress; as long again without an
answer, and it reconnects to another member."""

log = structlog.get_logger(__name__)


class EtcdStore:
    """A store in etcd. Connects when first used, and belongs to the event loop that runs then.

    `endpoints`: host:port, http://host:port or (with `tls`) https://host:port. Raises StoreError if
    they are malformed.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: TlsMaterial | None = None,
        *,
        clock: Clock,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._channels = Channels(endpoints, tls, clock, request_timeout_s)

    @classmethod
    def at(cls, location: str, tls_directory: str, clock: Clock) -> EtcdStore:
        """The store at etcd://host:port[,host:port...]; `tls_directory` holds ca.crt, tls.crt and
        tls.key ("" = no TLS).

        Raises StoreError if the location is malformed.
        """
        tls = TlsFiles.in_directory(Path(tls_directory)) if tls_directory else None
        return cls(location.removeprefix(SCHEME).split(","), tls, clock=clock)

    @property
    def channels(self) -> Channels:
        """The connections, for requests that are not about keys."""
        return self._channels

    # --- keys -------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        response = await self._ask_range(key=key.encode())
        return messages.key_value(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, *, limit: int = 0) -> RangeResult:
        for _ in range(RANGE_RESTARTS_MAX):
            try:
                return await self._pages(prefix, limit)
            except Compacted:
                # The revision of the first page was compacted while the others were read.
                log.info("range starts over", prefix=prefix)
        raise StoreUnavailable(
            f"range of {prefix!r} was compacted {RANGE_RESTARTS_MAX} times; try again"
        )

    async def _pages(self, prefix: str, limit: int) -> RangeResult:
        key, end = messages.prefix_span(prefix)
        items: list[KeyValue] = []
        revision = 0
        while True:
            page_keys = min(RANGE_PAGE_KEYS, limit - len(items)) if limit else RANGE_PAGE_KEYS
            response = await self._ask_range(
                key=key, range_end=end, limit=page_keys, revision=revision
            )
            revision = revision or response.header.revision
            items.extend(messages.key_value(item) for item in response.kvs)
            if not response.more or len(items) == limit:
                return RangeResult(revision, tuple(items))
            key = response.kvs[-1].key + b"\0"

    async def _ask_range(self, **request: Any) -> Any:
        return await self._ask("keys", "Range", rpc.RangeRequest(**request), repeatable=True)

    async def _ask(
        self, service: str, method: str, request: Any, *, repeatable: bool = False
    ) -> Any:
        def invoke(member: Member, patience_s: float) -> Any:
            call = getattr(getattr(member, service), method)
            return call(request, timeout=patience_s, metadata=REQUIRE_LEADER)

        return await self._channels.call(invoke, repeatable=repeatable)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TxnResult:
        check_transaction(compares, operations)
        missing: set[str] = set()
        for _ in range(MISSING_GUESSES_MAX):
            response = await self._ask(
                "keys", "Txn", messages.transaction(compares, operations, missing)
            )
            if response.succeeded:
                return TxnResult(True, response.header.revision)
            current = messages.refused_items(response)
            found = {item.key: item for item in current}
            if not all(holds(compare, found.get(compare.key)) for compare in compares):
                return TxnResult(False, response.header.revision, current)
            # Refused only for what was guessed about missing keys: guess what was seen.
            missing = {compare.key for compare in compares} - set(found)
        raise StoreUnavailable(
            f"transaction on {compares[0].key!r} met a change {MISSING_GUESSES_MAX} times; nothing "
            "was written"
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        check_transaction((), (Delete(key),))
        response = await self._ask("keys", "DeleteRange", rpc.DeleteRangeRequest(key=key.encode()))
        return bool(response.deleted)

    # --- leases -----------------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: float) -> int:
        """etcd counts whole seconds: the lease lasts `ttl_s` rounded up, or etcd's minimum (1.5
        election times) if that is more."""
        if not ttl_s > 0:
            raise StoreError(f"lease time {ttl_s} s is not valid; use more than 0")
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        response = await self._ask("leases", "LeaseGrant", request)
        return int(response.ID)

    async def renew_lease(self, lease: int) -> float:
        async def renew(member: Member, patience_s: float) -> Any:
            # One short stream per renewal: it has a deadline, and the next one may go to another
            # member.
            stream = member.leases.LeaseKeepAlive(timeout=patience_s, metadata=REQUIRE_LEADER)
            try:
                await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
                return await stream.read()
            finally:
                stream.cancel()

        response = await self._channels.call(renew, repeatable=False)
        if not response:
            raise StoreUnavailable("etcd ended the renewal without an answer")
        if response.TTL <= 0:
            raise LeaseLost(f"lease {lease:x} has expired or was revoked; grant a new one")
        return float(response.TTL)

    async def revoke_lease(self, lease: int) -> None:
        with suppress(LeaseLost):
            await self._ask("leases", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))

    # --- watches ----------------------------------------------------------------------------------

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if from_revision < 1:
            raise StoreError(f"from_revision {from_revision} is not valid; use 1 or more")
        position = from_revision
        while True:
            try:
                member = await self._channels.connected(
                    self._clock.monotonic() + self._request_timeout_s
                )
                async with aclosing(self._stream(member, prefix, position)) as stream:
                    async for batches, seen_revision in stream:
                        for batch in batches:
                            position = batch.revision + 1
                            yield batch
                        position = max(position, seen_revision + 1)
            except StoreUnavailable as error:
                if self._channels.closed:
                    raise
                log.info("watch resumes", prefix=prefix, revision=position, error=str(error))
                await asyncio.sleep(self._clock.uniform(RECONNECT_S_MIN, RECONNECT_S_MAX))

    async def _stream(
        self, member: Member, prefix: str, position: int
    ) -> AsyncGenerator[tuple[list[WatchBatch], int], None]:
        """What one connection delivers: complete batches, and a revision up to which nothing
        else is missing (0 = not known)."""
        key, end = messages.prefix_span(prefix)
        create = rpc.WatchCreateRequest(
            key=key, range_end=end, start_revision=position, fragment=True
        )
        call = member.watches.Watch(metadata=REQUIRE_LEADER)
        try:
            await self._channels.guarded(
                member, call.write(rpc.WatchRequest(create_request=create))
            )
            events: list[Any] = []
            async with aclosing(self._responses(member, call)) as responses:
                async for response in responses:
                    _check_watch(response, position)
                    events.extend(response.events)
                    if response.fragment or response.created:
                        continue
                    complete, events = messages.batches(events), []
                    yield complete, (0 if complete else response.header.revision)
        except StoreUnavailable:
            self._channels.avoid(member)
            raise
        finally:
            call.cancel()

    async def _responses(self, member: Member, call: Any) -> AsyncGenerator[Any, None]:
        """Messages of a watch. Raises StoreUnavailable when the member stays silent though asked
        for its progress.

        A connection that no side closes can be dead for long, and a quiet prefix would not show it.
        The answers also keep the position near the present, so that a watch of a quiet prefix is
        not compacted.
        """
        reading = asyncio.ensure_future(self._channels.guarded(member, call.read()))
        asked = False
        try:
            while True:
                done, _ = await asyncio.wait((reading,), timeout=WATCH_SILENCE_S)
                if done:
                    yield reading.result()
                    asked = False
                    reading = asyncio.ensure_future(self._channels.guarded(member, call.read()))
                elif asked:
                    raise StoreUnavailable(
                        f"etcd {member.address}: a watch has been silent for {2 * WATCH_SILENCE_S} "
                        "s"
                    )
                else:
                    asked = True
                    progress = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
                    await self._channels.guarded(member, call.write(progress))
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def close(self) -> None:
        await self._channels.close()


def _check_watch(response: Any, position: int) -> None:
    """Raise what a response says that ends the watch."""
    if not response:
        raise StoreUnavailable("etcd ended the watch")
    if response.compact_revision:
        raise Compacted(
            f"revision {position} is compacted (up to {response.compact_revision}); list again and "
            "watch from there"
        )
    if response.canceled:
        if "permission" in response.cancel_reason:
            raise StoreError(f"etcd refused the watch: {response.cancel_reason}")
        raise StoreUnavailable(f"etcd cancelled the watch: {response.cancel_reason}")
