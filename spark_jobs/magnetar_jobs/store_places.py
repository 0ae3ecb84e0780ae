"""Where a job finds the metadata store.

Owns: `StorePlace`, three strings that travel with a job, and how each kind of store is opened.
Imports: errors, clock, metadata.store, remote_store; a backend when it is needed. Invariant: a
place names files with credentials, and never holds any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from magnetar.clock import Clock
from magnetar.errors import InvalidRequest
from magnetar.metadata.store import MetadataStore
from magnetar_jobs.remote_store import RemoteStore


@dataclass(frozen=True, slots=True)
class StorePlace:
    """`store`: etcd://host:port[,host:port] with `tls`, a directory with ca.crt, tls.crt and
    tls.key, or embedded://DIRECTORY. `broker_url`: http://host:port of a standalone server, which
    comes first."""

    store: str
    tls: str = ""
    broker_url: str = ""


@asynccontextmanager
async def open_store(
    place: StorePlace, clock: Clock, token_file: str = ""
) -> AsyncIterator[MetadataStore]:
    """The store there. `token_file`: a super user's token, for a server with authentication.
    Raises InvalidRequest, StoreError."""
    store: MetadataStore
    if place.broker_url:
        store = RemoteStore(place.broker_url, token_file)
    else:
        scheme, _, address = place.store.partition("://")
        if scheme == "etcd" and address:
            from magnetar.metadata.backends.etcd import EtcdStore

            store = EtcdStore.at(place.store, place.tls, clock)
        elif scheme == "embedded" and address:
            from magnetar.metadata.backends.embedded import EmbeddedStore

            store = await EmbeddedStore.open(Path(address), clock)
        else:
            raise InvalidRequest(
                f"store: {place.store!r} is not valid; write etcd://host:port or "
                "embedded://directory"
            )
    try:
        yield store
    finally:
        await store.close()
