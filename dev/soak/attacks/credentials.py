"""Credentials that are wrong, and none.

Owns: attacks by forged tokens, tokens of the cluster's own processes, and requests of unknown
peers. Imports: magnetar.wire, raw. Invariants: whatever gets in by them is a note; bounded in
number (the constants).
"""

from __future__ import annotations

import asyncio
import http.client
from contextlib import suppress

from dev.server_process import HOST
from dev.soak.attacks.raw import Gone, RawConnection, Target, http_answer
from magnetar.wire import commands, requests

ROUNDS = 20
BODY_BYTES = 5 << 20
FRAMES = 3000
ROUTES = (
    ("GET", "/magnetar/v1/status", b""),
    ("GET", "/admin/v2/tenants", b""),
    ("GET", "/admin/v2/persistent/public/ordinary/exclusive/stats", b""),
    (
        "PUT",
        "/admin/v2/tenants/hostile",
        b'{"adminRoles": ["hostile"], "allowedClusters": ["standalone"]}',
    ),
    ("POST", "/admin/v2/namespaces/public/ordinary/permissions/hostile", b'["produce", "consume"]'),
    ("DELETE", "/admin/v2/namespaces/public/ordinary?force=true", b""),
    ("POST", "/internal/v1/store/range", b'{"prefix": ""}'),
    ("POST", "/internal/v1/store/get", bytes(BODY_BYTES)),
    ("POST", "/admin/v2/clusters/x", b"[" * BODY_BYTES),
)
REFUSED = (401, 403)


def _listeners(target: Target) -> list[tuple[int, bool]]:
    """Ports of the binary protocol, and whether they speak TLS."""
    access = target.secured
    return [(access.tls, True), *([(access.plain, False)] if access.plain else [])]


async def _get_in(target: Target, method: str, shown: str, name: str) -> None:
    """CONNECT on every port, and every route; a note for each that is let in."""
    access = target.secured
    for port, secure in _listeners(target):
        with suppress(Gone):
            raw = await RawConnection.open((HOST, port), access.context() if secure else None)
            try:
                await raw.shake_hands(method, shown)
                target.notes.append(f"{name} connects to port {port}")
            finally:
                raw.close()
    scheme = "Bearer" if method == "token" else method
    headers = {"x-magnetar-internal": "1", "Content-Type": "application/json"} | (
        {"Authorization": f"{scheme} {shown}"} if method else {}
    )
    urls = [
        (f"https://{HOST}:{access.https}", access.context()),
        *([(f"http://{HOST}:{access.http}", None)] if access.http else []),
    ]
    for url, context in urls:
        for verb, path, body in ROUTES:
            # one that is refused may not have its body read
            with suppress(OSError, http.client.HTTPException):
                answer = await asyncio.to_thread(
                    http_answer, url, verb, path, body or None, headers, tls=context
                )
                if answer.status not in REFUSED:
                    target.notes.append(
                        f"{name}: {verb} {path} at {url} is answered {answer.status}"
                    )


async def forged_credentials(target: Target) -> str:
    """Tokens by other keys, without a signature, expired, for roles of the cluster, and internal
    ones that no process would make."""
    for name, (method, shown) in target.secured.wrong.items():
        await _get_in(target, method, shown, name)
    return "refused"


async def no_credentials(target: Target) -> str:
    """Nothing is shown: to every route, in CONNECT, and thousands of commands without any
    CONNECT."""
    await _get_in(target, "", "", "no credentials")
    access = target.secured
    frames = b"".join(requests.new_txn(number, 0, 60_000) for number in range(FRAMES))
    for _ in range(ROUNDS):
        for port, secure in _listeners(target):
            with suppress(Gone):
                raw = await RawConnection.open((HOST, port), access.context() if secure else None)
                try:
                    await raw.send(target.chance.choice((frames, commands.PING * FRAMES + frames)))
                    answer = await raw.receive()
                    target.notes.append(
                        f"a command without CONNECT is answered on port {port}: {answer}"[:200]
                    )
                finally:
                    raw.close()
    return "refused"


ATTACKS = (forged_credentials, no_credentials)
