"""Objects in an S3 bucket.

Owns: `S3Client`, one request each, through obstore. Imports: obstore (only here, and only when a
volume is on S3), errors, objects. Invariants: obstore itself repeats nothing, so that one call is
one request and `RetryingObjects` alone decides; credentials come from the environment or the pod's
identity and are never taken from a URL, kept or logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from magnetar.errors import StorageError
from magnetar.storage.volumes.objects import Listed, ObjectTaken, ObjectThrottled, ObjectUnclear
from magnetar.storage.volumes.volume import Buffer

REQUEST_TIMEOUT_S = 15
CONNECT_TIMEOUT_S = 5
LIST_CHUNK = 1000
SETTLE_S = 0.1
REASON_CHARACTERS_MAX = 200
MARK = "magnetar-mark"
BEHIND_THE_END = "416"
THROTTLED = ("429 Too Many Requests", "503 Service Unavailable", "SlowDown")
"""What obstore's text says where the service asks for fewer requests. It hands on neither the
status nor the header Retry-After."""
_IN_VAIN = (PermissionDeniedError, UnauthenticatedError, NotSupportedError, InvalidPathError)


class S3Client:
    """The `ObjectClient` of one prefix in one bucket. `endpoint` and `region` "" mean what the
    environment says, else AWS."""

    def __init__(self, bucket: str, prefix: str, *, endpoint: str = "", region: str = "") -> None:
        self._bucket = bucket
        config: dict[str, Any] = {}
        if endpoint:
            config["endpoint"] = endpoint
        if region:
            config["region"] = region
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "timeout": f"{REQUEST_TIMEOUT_S}s",
                "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 0},
            **config,
        )

    async def create(self, key: str, buffers: Sequence[Buffer], mark: str) -> None:
        with _translated("creation", key):
            try:
                await self._store.put_async(
                    key,
                    b"".join(buffers),
                    mode="create",
                    attributes={MARK: mark},
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError) as error:
                # 412, and 409 too: only a look at the object decides.
                raise ObjectTaken(key) from error
            except FileNotFoundError as error:
                raise StorageError(
                    f"there is no bucket {self._bucket} to create {key} in; make it, or name "
                    "another"
                ) from error

    async def mark_of(self, key: str) -> str:
        with _translated("look-up", key):
            found = await self._store.get_async(key, options={"head": True})
            return str(found.attributes.get(MARK, ""))

    async def get(self, key: str, offset: int, length: int | None) -> bytes:
        with _translated("read", key):
            if offset == 0 and length is None:
                return bytes(await (await self._store.get_async(key)).bytes_async())
            # S3 refuses a range that is empty or begins behind the end.
            size = (
                int((await self._store.head_async(key))["size"])
                if length is None or length == 0
                else None
            )
            if length == 0 or (size is not None and offset >= size):
                return b""
            end = size if length is None else offset + length
            assert end is not None
            try:
                found = await self._store.get_async(key, options={"range": (offset, end)})
                return bytes(await found.bytes_async())
            except FileNotFoundError:
                raise
            except BaseError as error:
                if BEHIND_THE_END in str(error) and offset >= int(
                    (await self._store.head_async(key))["size"]
                ):
                    return b""
                raise

    async def list(self, prefix: str) -> Listed:
        found: Listed = []
        with _translated("list", prefix):
            async for chunk in self._store.list(prefix.rstrip("/") or None, chunk_size=LIST_CHUNK):
                found += ((str(item["path"]), int(item["size"])) for item in chunk)
        return sorted(found)

    async def delete(self, key: str) -> None:
        with _translated("removal", key), contextlib.suppress(FileNotFoundError):
            await self._store.delete_async(key)

    async def close(self) -> None:
        """Let obstore's threads give back the objects of the last answers: the interpreter aborts
        if one wants it while it ends.

        Connections close with the process.
        """
        await asyncio.sleep(SETTLE_S)


@contextlib.contextmanager
def _translated(what: str, key: str) -> Iterator[None]:
    """obstore's errors become StorageError or ObjectUnclear; a missing object stays
    FileNotFoundError, without obstore's long text."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(key) from None
    except _IN_VAIN as error:
        raise StorageError(
            f"{what} of {key or 'the bucket'} was refused: {_reason(error)}; see to credentials "
            "and policy"
        ) from error
    except (BaseError, OSError, ValueError) as error:
        throttled = any(sign in str(error) for sign in THROTTLED)
        raise (ObjectThrottled if throttled else ObjectUnclear)(_reason(error)) from error


def _reason(error: Exception) -> str:
    """The first line: what follows may quote the request."""
    return (str(error).splitlines() or [type(error).__name__])[0][:REASON_CHARACTERS_MAX]
