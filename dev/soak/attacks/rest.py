"""REST with bodies and paths that no client sends.

Owns: attacks on the admin API. Imports: the standard library, raw. Invariants: only topics and
namespaces of the attacker's own are named in what could change something; at most PARALLEL requests
at once.
"""

from __future__ import annotations

import asyncio
import json
import struct
from urllib.parse import urlsplit

from dev.soak.attacks.raw import SOURCE, Target, http_call

BODY_BYTES = 5 * 1024 * 1024
REQUESTS = 12
PARALLEL = 3
PATIENCE_S = 15.0
DEEP = 100_000
SLOW_S = 3.0


def bodies(target: Target) -> dict[str, bytes]:
    """Bodies by name."""
    many = {f"role-{number}": ["produce", "consume"] for number in range(60_000)}
    return {
        "zeros": bytes(BODY_BYTES),
        "deep": b"[" * DEEP + b"]" * DEEP,
        "deeper": b"[" * (BODY_BYTES // 2),
        "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "long text": json.dumps("x" * BODY_BYTES).encode(),
        "many keys": json.dumps(many).encode(),
        "many numbers": b"[" + b",".join([b"1"] * (BODY_BYTES // 2)) + b"]",
        "large number": b"9" * target.chance.choice((4000, 1_000_000)),
        "huge numbers": json.dumps([2**31, 2**63, -(2**63), 1e308, -1]).encode(),
        "one": json.dumps(
            target.chance.choice([2**31 - 1, 2**63, -1, 0, 1e300, "x", None, True, {}, []])
        ).encode(),
        "not text": b"\xff\xfe" * 1000,
        "empty": b"",
        "policies": json.dumps(
            {
                "messageTTL": 2**40,
                "retention_policies": {"retentionTimeInMinutes": 2**60},
                "x": "y" * 10**6,
            }
        ).encode(),
    }


def _places(target: Target) -> list[tuple[str, str]]:
    space, other = target.rest_namespace, target.fresh("hostile")
    topic = f"{space}/{target.chance.choice(('rest-0', 'rest-1', 'rest-2'))}"
    return [
        ("PUT", f"namespaces/public/{other}"),
        ("POST", f"namespaces/{space}/permissions/{other}"),
        ("POST", f"namespaces/{space}/messageTTL"),
        ("POST", f"namespaces/{space}/retention"),
        ("POST", f"namespaces/{space}/backlogQuota"),
        ("PUT", f"namespaces/{space}/properties"),
        ("PUT", f"tenants/{other}"),
        ("PUT", f"clusters/{other}"),
        ("PUT", f"persistent/{topic}"),
        ("PUT", f"persistent/{topic}-p/partitions"),
        ("POST", f"persistent/{topic}/partitions"),
        ("POST", f"persistent/{topic}/properties"),
        ("POST", f"persistent/{topic}/retention"),
        ("POST", f"persistent/{topic}/delayedDelivery"),
        ("PUT", f"persistent/{topic}/subscription/{other}"),
        ("POST", f"persistent/{topic}/subscription/{other}/resetcursor"),
        ("POST", f"persistent/{topic}/subscription/{other}/skip/{2**70}"),
        ("POST", f"persistent/{topic}/subscription/{other}/expireMessages/{2**70}"),
        ("GET", f"persistent/{topic}/subscription/{other}/position/{2**40}"),
        (
            "GET",
            f"persistent/{topic}/examinemessage?initialPosition=earliest&messagePosition={2**40}",
        ),
        ("GET", f"persistent/{topic}/ledger/{2**63}/entry/{2**63}"),
        ("GET", f"persistent/{topic}/messageid/{2**80}"),
        ("GET", f"persistent/{topic}/internalStats?metadata=true"),
        ("POST", f"schemas/{topic}/schema"),
        ("POST", f"schemas/{topic}/compatibility"),
        ("GET", f"persistent/{'x' * 60_000}"),
        ("GET", f"persistent/{topic}/{'a/' * 20_000}"),
        ("DELETE", f"persistent/{topic}-absent?force=true"),
    ]


async def large_bodies(target: Target) -> str:
    """Several requests with bodies of all kinds."""
    made, chance = bodies(target), target.chance
    room = asyncio.Semaphore(PARALLEL)

    async def one(method: str, path: str, name: str) -> str:
        async with room:
            headers = {
                "Content-Type": chance.choice(
                    (
                        "application/json",
                        "text/plain",
                        "application/vnd.partitioned-topic-metadata+json",
                    )
                )
            }
            body = None if method in ("GET", "DELETE") else made[name]
            status = await asyncio.to_thread(
                http_call,
                chance.choice(list(target.http_urls)),
                method,
                f"/admin/v2/{path}",
                body,
                headers,
                PATIENCE_S,
            )
            return f"{method} {path[:40]} {name}: {status}"

    chosen = [
        (method, path, chance.choice(list(made)))
        for method, path in chance.sample(_places(target), REQUESTS)
    ]
    return "; ".join(await asyncio.gather(*(one(*choice) for choice in chosen)))


async def broken_http(target: Target) -> str:
    """Requests that are not HTTP, promise more than they send, or have thousands of headers."""
    where = urlsplit(target.chance.choice(list(target.http_urls)))
    texts = (
        b"\x00" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
        b"POST /admin/v2/namespaces/public/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000000\r\n\r\n"
        + bytes(100_000),
        b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 100_000,
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
        struct.pack(">II", 100, 96) + bytes(96),
    )

    async def one(text: bytes) -> None:
        try:
            async with asyncio.timeout(SLOW_S):
                _reader, writer = await asyncio.open_connection(
                    where.hostname, where.port, local_addr=SOURCE
                )
                try:
                    writer.write(text)
                    await writer.drain()
                    await asyncio.sleep(1.0)
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            pass

    await asyncio.gather(*(one(text) for text in texts))
    return "sent"


ATTACKS = (large_bodies, broken_http)
