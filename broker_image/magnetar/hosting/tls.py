"""TLS of a process.

Owns: `TlsCertificates`, what this process shows and whom it believes, as they are now; `TlsPort`,
which accepts connections behind them. Imports: ssl, followed_files, errors. Source: the layout of a
mounted secret of type kubernetes.io/tls: tls.crt, tls.key, and ca.crt for clients' certificates if
there is one. Invariants: files are read again when they change, for the connections that come
after; a pair that is broken or does not match stops the start, later it changes nothing and counts;
a peer that does not finish its handshake is dropped, and their number is limited: for one more
the oldest of the address that has most of them goes; no key is ever logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from magnetar.errors import InvalidRequest
from magnetar.hosting.background import Surprises
from magnetar.hosting.descriptors import HANDSHAKES_MAX
from magnetar.hosting.followed_files import Follower
from magnetar.hosting.peer_budget import PeerBudget, peer_group
from magnetar.network import ACCEPT_RETRY_S, listening_socket

log = structlog.get_logger(__name__)

CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE = "tls.crt", "tls.key", "ca.crt"
FILE_BYTES_MAX = 1 << 20
HANDSHAKE_S = 10.0


class TlsCertificates:
    """The newest sound files of a directory."""

    def __init__(self, directory: Path) -> None:
        """Raises InvalidRequest naming the file."""
        self._directory = directory
        self._follower = Follower("tls", directory=str(directory))
        self._contents = self._read()
        self.context, self.expires_s = self._load(self._contents)

    @property
    def reloads_failed(self) -> int:
        return self._follower.failed

    async def follow(self) -> None:
        """Read again and again, until cancelled."""

        def changed() -> tuple[dict[str, bytes], tuple[ssl.SSLContext, float]] | None:
            found = self._read()
            return (found, self._load(found)) if found != self._contents else None

        def take(found: tuple[dict[str, bytes], tuple[ssl.SSLContext, float]] | None) -> None:
            if found is not None:
                self._contents, (self.context, self.expires_s) = found
                log.info("tls.changed", directory=str(self._directory), expires_s=self.expires_s)

        await self._follower.follow(changed, take)

    def _read(self) -> dict[str, bytes]:
        found = {}
        for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE):
            try:
                with (self._directory / name).open("rb") as file:
                    content = file.read(FILE_BYTES_MAX)
                # cert-manager leaves an empty one where the issuer has none
                if name != AUTHORITY_FILE or content.strip():
                    found[name] = content
            except FileNotFoundError as error:
                if name == AUTHORITY_FILE:
                    continue
                raise self._broken(name, "it is not there") from error
            except OSError as error:
                raise self._broken(name, error.strerror or type(error).__name__) from error
        return found

    def _load(self, contents: dict[str, bytes]) -> tuple[ssl.SSLContext, float]:
        """A context of its own, made whole or not at all; the end of the certificate in unix
        seconds."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with (
            _as_file(contents[CERTIFICATE_FILE]) as certificate,
            _as_file(contents[KEY_FILE]) as key,
        ):
            try:
                # one that needs a password is refused; no prompt
                context.load_cert_chain(certificate, key, password="")
            except (ssl.SSLError, OSError, ValueError) as error:
                why = getattr(error, "reason", None) or type(error).__name__
                raise self._broken(
                    CERTIFICATE_FILE, f"with {KEY_FILE} it is no pair in PEM ({why})"
                ) from None
        if AUTHORITY_FILE in contents:
            try:
                context.load_verify_locations(cadata=contents[AUTHORITY_FILE].decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise self._broken(AUTHORITY_FILE, "it holds no certificates in PEM") from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return context, _expires_s(contents[CERTIFICATE_FILE])

    def _broken(self, name: str, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"tls: {self._directory / name}: {why}; put tls.crt, its tls.key, and ca.crt if "
            "clients show certificates"
        )


@contextlib.contextmanager
def _as_file(content: bytes) -> Any:
    """A path to bytes in memory: what was read and looked at is what is loaded."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _expires_s(pem: bytes) -> float:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


class PeerCertificate(NamedTuple):
    """What a peer has shown: the common name of its verified certificate ("" = none), and its
    end in unix seconds (None = none)."""

    common_name: str = ""
    expires_s: float | None = None


def peer_certificate(transport: asyncio.BaseTransport) -> PeerCertificate:
    """The peer's verified certificate."""
    shown = transport.get_extra_info("peercert") or {}
    names = [
        value for part in shown.get("subject", ()) for name, value in part if name == "commonName"
    ]
    if len(names) != 1:
        return PeerCertificate()
    return PeerCertificate(names[0], ssl.cert_time_to_seconds(shown["notAfter"]))


def is_tls(transport: asyncio.BaseTransport) -> bool:
    """Whether what is said is encrypted."""
    return transport.get_extra_info("ssl_object") is not None


class TlsListener:
    """An open listening port."""

    def __init__(self, listening: socket.socket, accepting: asyncio.Task[None]) -> None:
        self._listening, self._accepting = listening, accepting

    @property
    def port(self) -> int:
        """The port actually bound."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        self._accepting.cancel()
        self._listening.close()


class TlsPort:
    """Accepts connections for protocols, which see them once the handshake is done."""

    def __init__(
        self,
        certificates: TlsCertificates,
        authority_file: Callable[[], str] = lambda: "",
        *,
        handshakes_max: int = HANDSHAKES_MAX,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """`authority_file`: the authority of the cluster's other processes ("" = those that the
        system trusts)."""
        self.certificates = certificates
        self._handshake_s = handshake_s
        self._unfinished: PeerBudget[socket.socket] = PeerBudget(
            "handshakes", most=handshakes_max, group_max=handshakes_max, unknown_max=handshakes_max
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.surprises = Surprises()
        self._authority_file = authority_file
        self._to_peers: tuple[bytes, ssl.SSLContext] | None = None
        self.failed = 0

    @property
    def dropped(self) -> int:
        """Handshakes that were ended for others."""
        return self._unfinished.dropped

    def to_peers(self) -> ssl.SSLContext:
        """For connections to other processes of the cluster: they must show a certificate of the
        configured authority. Raises OSError."""
        file = self._authority_file()
        content = Path(file).read_bytes() if file else b""
        if self._to_peers is None or self._to_peers[0] != content:
            self._to_peers = content, ssl.create_default_context(cafile=file or None)
        return self._to_peers[1]

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> TlsListener:
        """Accept on host:port (0 = any free port). Raises OSError."""
        listening = listening_socket(host, port)
        accepting = self.surprises.again_and_again("tls", partial(self._accept, listening, factory))
        return TlsListener(listening, asyncio.create_task(accepting, name=f"tls {port}"))

    async def _accept(
        self, listening: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # too many open files, or the peer has gone already
                log.warning("tls.not_accepted", error=str(error))
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            oldest = self._unfinished.admit(accepted, peer_group(address))
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its handshake fails by that, and closes it
            task = asyncio.create_task(self._shake_hands(accepted, factory, str(address)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake_hands(
        self, accepted: socket.socket, factory: Callable[[], asyncio.BaseProtocol], peer: str
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                factory,
                accepted,
                ssl=self.certificates.context,
                ssl_handshake_timeout=self._handshake_s,
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one
            self.failed += 1
            log.info(
                "tls.handshake_failed",
                peer=peer,
                error=getattr(error, "reason", None) or type(error).__name__,
            )
            accepted.close()
        finally:
            self._unfinished.forget(accepted)
