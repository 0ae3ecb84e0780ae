"""Stores that keep whole objects under names.

Owns: the `ObjectStore` protocol, whose answers are certain; the `ObjectClient` protocol, single
requests whose outcome may stay unknown; and `RetryingObjects`, which implements the first by the
second. Imports: asyncio, clock, errors, outage, volume. Source: S3's conditional writes: 412 means
that another put was first, 409 that it was not decided, no answer means nothing at all. Invariants:
an object never changes once it is there; of many puts of one key exactly one returns True, whatever
was lost or repeated on the way: a put that finds the key taken checks, by a mark that no other put
carries, whether its own earlier attempt succeeded; a request is repeated for `OUTAGE_S_MAX`, at the
pace that all requests of the process share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from magnetar.clock import Clock, back_off_s
from magnetar.errors import StorageError
from magnetar.storage.volumes.outage import SharedBackOff
from magnetar.storage.volumes.volume import Buffer

T = TypeVar("T")

OUTAGE_S_MAX = 60.0
"""How long requests are repeated. An owner may wait as long as it likes, since a new owner's fence
takes the key that its put wants; but if it alone cannot reach the service, only its end lets
another broker serve its bundles."""
PAUSE_FIRST_S = 0.05
PAUSE_LAST_S = 1.0
MARK_BITS = 128
CHECKS = "probes"

Listed = list[tuple[str, int]]


class ObjectStore(Protocol):
    """Immutable objects. Every method raises StorageError if it cannot say what has happened."""

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> bool:
        """Create `key` with `buffers` back to back, durably; False if it is there already
        (then nothing changed).

        After a StorageError the object may be there, or come to be there at any later time.
        """
        ...

    async def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Up to `length` bytes (all if None) from `offset`; b"" from its end on. Raises
        FileNotFoundError."""
        ...

    async def exists(self, key: str) -> bool:
        """Whether the object is there now."""
        ...

    async def list(self, prefix: str) -> Listed:
        """(key, bytes) of all objects below the directory `prefix` ("" = all), in order."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete durably; False if nothing was there."""
        ...

    @property
    def lists_at_once(self) -> bool:
        """Whether `list` shows whatever any process created before it."""
        ...

    async def check(self) -> None:
        """What this kind of store needs beyond what its methods show. Raises StorageError saying
        what to do."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class ObjectTaken(Exception):
    """The service says that the key is taken, or that another request for it is under way."""


class ObjectUnclear(Exception):
    """No answer, or one that leaves open what has happened or will; the request may be repeated."""


class ObjectThrottled(ObjectUnclear):
    """The service asks for fewer requests."""


class ObjectClient(Protocol):
    """Single requests to a service. Each raises ObjectUnclear, or StorageError if repeating is
    in vain."""

    async def create(self, key: str, buffers: Sequence[Buffer], mark: str) -> None:
        """Create the object with `mark` beside it. Raises ObjectTaken."""
        ...

    async def mark_of(self, key: str) -> str:
        """The mark beside an object, "" if it has none. Raises FileNotFoundError."""
        ...

    async def get(self, key: str, offset: int, length: int | None) -> bytes:
        """As `ObjectStore.get`."""
        ...

    async def list(self, prefix: str) -> Listed:
        """As `ObjectStore.list`."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the object if it is there."""
        ...

    async def close(self) -> None:
        """As `ObjectStore.close`."""
        ...


class RetryingObjects:
    """The `ObjectStore` over a service that loses, repeats and delays requests."""

    lists_at_once = True

    def __init__(self, client: ObjectClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._back_off = SharedBackOff(clock)

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> bool:
        # One mark for all attempts of this put, and for no other: whichever attempt took effect,
        # however late, is recognised.
        mark = f"{self._clock.random_bits(MARK_BITS):032x}"

        async def attempt() -> bool:
            try:
                await self._client.create(key, buffers, mark)
            except ObjectTaken:
                return await self._is_ours(key, mark)
            return True

        return await self._tried(f"creation of {key}", attempt)

    async def _is_ours(self, key: str, mark: str) -> bool:
        """Whether this put has taken the key. Raises ObjectUnclear while none has: a conflict of
        two requests decides nothing."""
        try:
            return await self._client.mark_of(key) == mark
        except FileNotFoundError as error:
            raise ObjectUnclear(f"{key} was taken and is not there") from error

    async def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return await self._tried(f"read of {key}", lambda: self._client.get(key, offset, length))

    async def exists(self, key: str) -> bool:
        async def attempt() -> bool:
            try:
                await self._client.mark_of(key)
            except FileNotFoundError:
                return False
            return True

        return await self._tried(f"look-up of {key}", attempt)

    async def list(self, prefix: str) -> Listed:
        return await self._tried(
            f"list of {prefix or 'the volume'}", lambda: self._client.list(prefix)
        )

    async def delete(self, key: str) -> bool:
        there = await self.exists(key)
        # Also when it is absent: a put of it may be under way.
        await self._tried(f"removal of {key}", lambda: self._client.delete(key))
        return there

    async def check(self) -> None:
        """Refuse a service that does not keep the mark beside an object: after a lost
        answer the winner would be unknown."""
        key = f"{CHECKS}/{self._clock.random_bits(MARK_BITS):032x}"

        async def attempt() -> bool:
            try:
                await self._client.create(key, [b"check"], key)
            except ObjectTaken:  # by an attempt before this one, or by none
                return await self._is_ours(key, key)
            return await self._client.mark_of(key) == key

        try:
            kept = await self._tried(f"creation of {key}", attempt)
        finally:
            await self.delete(key)
        if not kept:
            raise StorageError(
                f"the store drops the metadata of objects (it did of {key}); use one that keeps "
                "it, such as S3"
            )

    async def close(self) -> None:
        await self._client.close()

    async def _tried(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat while it is unclear. Raises StorageError once this or the outage has lasted
        `OUTAGE_S_MAX`."""
        began, failures, shared = self._clock.monotonic(), 0, self._back_off
        while True:
            mark = await shared.turn()
            try:
                found = await attempt()
            except ObjectUnclear as error:
                failures += 1
                shared.failed(mark, error, throttled=isinstance(error, ObjectThrottled))
                tried_s = self._clock.monotonic() - min(began, shared.since_s or began)
                if tried_s >= OUTAGE_S_MAX:
                    raise StorageError(
                        f"{what} failed {failures} times within {tried_s:.0f} s, last: {error}; "
                        "see to the object store"
                    ) from error
            except FileNotFoundError:
                shared.succeeded()
                raise
            else:
                shared.succeeded()
                return found
            await asyncio.sleep(back_off_s(self._clock, failures - 1, PAUSE_FIRST_S, PAUSE_LAST_S))
