"""`magnetar metadata backup|restore|rebuild`.

Owns: their options, where store and volume are, and what is printed. Imports: metadata, storage;
etcd lazily. Invariants: results go to standard output, everything else to standard error, so that
`backup -` can be piped; a store that is not there is never created by looking at it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar.cli.session import group
from magnetar.errors import InvalidRequest

ETCD_SCHEME = "etcd://"
STANDARD = "-"

metadata = group("Copy the metadata store; bring back a lost one.")

Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MAGNETAR_STORE",
        help="etcd://host:port[,host:port...]; of a standalone server: leave out.",
    ),
]
StoreTls = Annotated[
    str,
    typer.Option(
        "--store-tls",
        envvar="MAGNETAR_STORE_TLS",
        help="Directory with ca.crt, tls.crt and tls.key for etcd.",
    ),
]
Storage = Annotated[
    str,
    typer.Option(
        "--volume",
        envvar="MAGNETAR_VOLUME",
        help="The brokers' storage: a directory, link:///path or s3://bucket/prefix.",
    ),
]
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", help="Data directory of a standalone server, which must be stopped."
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Go on although brokers are registered, the store is not empty, or files are missing.",
    ),
]


@dataclass(frozen=True, slots=True)
class Place:
    """Which store and storage a command is about, as its options say."""

    store: str
    store_tls: str
    volume: str
    data_dir: Path


@metadata.command("backup")
def backup_command(
    file: Annotated[str, typer.Argument(help="Where to write the copy; - is standard output.")],
    store: Store = "",
    store_tls: StoreTls = "",
    data_dir: DataDir = Path("data"),
) -> None:
    """Copy everything durable in the store, as of one moment. Brokers may run."""
    _run(_backup(file, Place(store, store_tls, volume="", data_dir=data_dir)))


@metadata.command("restore")
def restore_command(
    file: Annotated[
        str,
        typer.Argument(
            help="A copy made by `backup`, or by a broker (backups/ in the volume); - is standard "
            "input."
        ),
    ] = "",
    store: Store = "",
    store_tls: StoreTls = "",
    volume: Storage = "",
    data_dir: DataDir = Path("data"),
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="The store was restored by other means (an etcd snapshot): bring it in line with "
            "storage.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Fill a lost store from a copy, and from storage what happened since. Brokers may run over
    an empty store: they are fenced, and go on by themselves. With --in-place they must be
    stopped."""
    if bool(file) == in_place:
        raise InvalidRequest(
            "restore: name a FILE, or use --in-place for a store that was restored already"
        )
    _run(_restore(file, Place(store, store_tls, volume, data_dir), in_place, force))


@metadata.command("rebuild")
def rebuild_command(
    store: Store = "",
    store_tls: StoreTls = "",
    volume: Storage = "",
    data_dir: DataDir = Path("data"),
    without_copy: Annotated[
        bool,
        typer.Option(
            "--without-copy", help="Do not use the copies that brokers keep in the volume."
        ),
    ] = False,
    copy: Annotated[
        str,
        typer.Option(
            "--copy", help="Use this copy in the volume (backups/...) instead of the newest."
        ),
    ] = "",
    request: Annotated[
        str,
        typer.Option(
            "--request",
            help="A word for this restore: one that was done for the same word is not done again.",
        ),
    ] = "",
    force: Force = False,
) -> None:
    """Fill a lost store from storage alone: the newest copy that brokers keep there, and what
    happened since. Brokers may run over an empty store: they are fenced, and go on by
    themselves."""
    if copy and without_copy:
        raise InvalidRequest("rebuild: name a copy with --copy, or use none with --without-copy")
    _run(_rebuild(Place(store, store_tls, volume, data_dir), without_copy, copy, request, force))


def _run(work: Coroutine[Any, Any, None]) -> None:
    import asyncio

    from magnetar.hosting.logs import configure_logs

    configure_logs("warning")
    asyncio.run(work)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- the commands ---------------------------------------------------------------------------------


async def _backup(file: str, place: Place) -> None:
    from magnetar.clock import SystemClock
    from magnetar.metadata.backup import encode_backup, read_backup

    async with _open_store(place, create=False) as opened:
        backup = await read_backup(opened, SystemClock().wall_ms())
    data = encode_backup(backup)
    if file == STANDARD:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        _write_file(Path(file), data)
    _say(
        f"{len(backup.items)} keys of revision {backup.revision}, restore number {backup.restore}, "
        f"storage {backup.storage_id}"
    )


def _write_file(path: Path, data: bytes) -> None:
    """Durably, and whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        with draft.open("wb") as output:
            output.write(data)
            output.flush()
            os.fsync(output.fileno())
        draft.replace(path)
    except OSError as error:
        raise InvalidRequest(
            f"{path}: the backup cannot be written: {error.strerror}; choose another place"
        ) from error


async def _restore(file: str, place: Place, in_place: bool, force: bool) -> None:
    from magnetar.metadata.backup import decode_backup
    from magnetar.storage.restore.restoring import restore_store

    backup = None
    if file:
        try:
            data = sys.stdin.buffer.read() if file == STANDARD else Path(file).read_bytes()
        except OSError as error:
            raise InvalidRequest(
                f"{file}: cannot be read: {error.strerror}; name a file that `magnetar metadata "
                "backup` wrote"
            ) from error
        backup = decode_backup(data, file)
    async with _open_both(place) as (opened, storage, clock):
        source = file or "what the store holds"
        _print(
            await restore_store(
                opened,
                storage,
                clock,
                backup=backup,
                source=source,
                in_place=in_place,
                force=force,
                say=_say,
            )
        )


async def _rebuild(place: Place, without_copy: bool, copy: str, request: str, force: bool) -> None:
    from magnetar.storage.restore.restoring import is_restored_for, restore_store

    async with _open_both(place) as (opened, storage, clock):
        if request and await is_restored_for(opened, request):
            print(
                f"The store was restored for request {request} already. Start brokers that do not "
                "run."
            )
            return
        found = None if without_copy else await _copy_in(storage, copy)
        backup, source = found if found is not None else (None, "storage alone")
        _say(
            "namespaces, policies and whatever else is not in logs: "
            f"{source if backup is not None else 'no copy of the store is used'}"
        )
        restored = await restore_store(
            opened,
            storage,
            clock,
            backup=backup,
            source=source,
            force=force,
            request=request,
            say=_say,
        )
        _print(restored)


async def _copy_in(storage: Any, name: str) -> tuple[Any, str] | None:
    """The copy `name` in the volume and its name, or ("" = no name) the newest that is whole."""
    from magnetar.storage.restore.backups import list_backups, load_backup
    from magnetar.storage.restore.restoring import newest_backup

    if not name:
        return await newest_backup(storage, _say)
    try:
        return await load_backup(storage, name), name
    except FileNotFoundError as error:
        there = ", ".join(await list_backups(storage)) or "none"
        raise InvalidRequest(
            f"--copy {name}: the volume has no such copy; there are: {there}"
        ) from error


def _print(restored: Any) -> None:
    """What was done, bundle by bundle; what to look at, last."""
    for bundle, done in sorted(restored.store.bundles.items()):
        print(f"{bundle}  {done}")
    for problem in restored.store.problems:
        print(f"PROBLEM {problem}")
    for warning in restored.store.warnings:
        print(f"WARNING {warning}")
    print(
        f"Restored from {restored.source}: {len(restored.store.items)} keys, "
        f"{len(restored.store.bundles)} bundles, restore number "
        f"{restored.number}. Start brokers that do not run."
    )


# --- store and volume -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _open_both(place: Place) -> AsyncIterator[tuple[Any, Any, Any]]:
    """The store, the volume and a clock."""
    from magnetar.clock import SystemClock
    from magnetar.storage.volumes.opening import is_directory, open_volume

    if place.store and not place.volume:
        raise InvalidRequest(
            "--volume (MAGNETAR_VOLUME): name the storage that the brokers share; the log in it "
            "knows what the store has lost"
        )
    location = place.volume or str(place.data_dir / "storage")
    if is_directory(location) and not Path(location).is_dir():
        raise InvalidRequest(
            f"{location} is not a directory: name the brokers' with --volume, or a standalone "
            "server's with --data-dir"
        )
    opened_volume = await open_volume(location, SystemClock())
    try:
        async with _open_store(place, create=True) as opened:
            yield opened, opened_volume, SystemClock()
    finally:
        await opened_volume.close()


@contextlib.asynccontextmanager
async def _open_store(place: Place, *, create: bool) -> AsyncIterator[Any]:
    from magnetar.clock import SystemClock

    opened: Any
    if not place.store:
        from magnetar.metadata.backends.embedded import EmbeddedStore

        directory = place.data_dir / "metadata"
        if not create and not directory.is_dir():
            raise InvalidRequest(
                f"{directory} is not there: name a standalone server's --data-dir, or a cluster's "
                "--store"
            )
        opened = await EmbeddedStore.open(directory, SystemClock())
    elif place.store.startswith(ETCD_SCHEME):
        from magnetar.metadata.backends.etcd import EtcdStore

        opened = EtcdStore.at(place.store, place.store_tls, SystemClock())
    else:
        raise InvalidRequest(
            f"store: {place.store!r} is not known; use {ETCD_SCHEME}host:port, or leave it out for "
            "a standalone server"
        )
    try:
        yield opened
    finally:
        await opened.close()
