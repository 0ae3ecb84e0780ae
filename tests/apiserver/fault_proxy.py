"""An HTTP proxy before the API server that makes trouble by a seeded plan.

Owns: `FaultProxy`: refusals (409, 429, 500, 503), dropped connections before and after the effect,
late answers, watches that are cut or fall silent, lists from the past; the count of requests.
Imports: aiohttp. Invariants: the same seeds draw the same faults for the same sequence of requests;
requests about the Lease are only delayed, so that the operator under test goes on leading; after
`heal` every request passes, and watches that had fallen silent are cut.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from dev.ports import free_port
from dev.testbed.control_plane import ControlPlane

REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
HOP_BY_HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}
DELAY_MAX_S = 0.3
COMMON_FAULTS = ("429", "500", "503", "dropped", "late", "late")


class FaultProxy:
    """One proxy; `kubeconfig` leads to it."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self._plane, self.kubeconfig = plane, kubeconfig
        self._random = random.Random(0)
        self._share = 0.0
        self._decks: dict[bool, list[str]] = {True: [], False: []}
        self._refuse_all = 0
        self._past: dict[str, bytes] = {}
        self._watches: dict[int, web.Request] = {}
        self._silent: set[int] = set()
        self._numbers = itertools.count()
        self.port = free_port()
        self.requests = 0
        self.faults: Counter[str] = Counter()

    # --- trouble ----------------------------------------------------------------------------------

    def trouble(self, seed: int, share: float) -> None:
        """From now on that share of requests meets a fault drawn from `seed`."""
        self._random, self._share = random.Random(seed), share
        for number, request in list(self._watches.items()):
            if self._random.random() < 0.3:
                self._silent.add(number)
                self.faults["watch silent"] += 1
            elif self._random.random() < 0.5:
                self._abort(request)
                self.faults["watch cut"] += 1

    def refuse_all(self, status: int) -> None:
        """Answer everything but the Lease with this status; 0 = no more."""
        self._refuse_all = status

    def heal(self) -> None:
        """No more faults."""
        self._share, self._refuse_all = 0.0, 0
        for number in list(self._silent):
            self._abort(self._watches[number])

    def _abort(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()

    # --- serving ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FaultProxy]:
        document = yaml.safe_load(self._plane.operator_kubeconfig.read_text())
        document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        self.kubeconfig.write_text(yaml.safe_dump(document))
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            application = web.Application(client_max_size=2**24)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(session, request)

            application.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", self.port).start()
                yield self
            finally:
                for request in list(self._watches.values()):
                    self._abort(request)
                await runner.cleanup()

    async def _handle(
        self, session: aiohttp.ClientSession, request: web.Request
    ) -> web.StreamResponse:
        self.requests += 1
        body = await request.read()
        fault = self._draw(request)
        if fault:
            self.faults[fault] += 1
        if fault == "late":
            await asyncio.sleep(self._random.uniform(0.0, DELAY_MAX_S))
        elif fault == "dropped":
            return self._dropped(request)
        elif fault == "stale" and request.path_qs in self._past:
            return web.Response(body=self._past[request.path_qs], content_type="application/json")
        elif fault.isdigit():
            return _refusal(int(fault))
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        }
        async with session.request(
            request.method,
            f"{self._plane.url}{request.path_qs}",
            headers=headers,
            data=body or None,
        ) as answer:
            if request.query.get("watch"):
                return await self._stream(request, answer)
            content = await answer.read()
            if fault == "done, then dropped":
                return self._dropped(request)
            if request.method == "GET" and "limit" in request.query and answer.status == 200:
                self._past.setdefault(request.path_qs, content)
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            return web.Response(body=content, status=answer.status, headers=kept)

    def _draw(self, request: web.Request) -> str:
        """The fault of one request, "" = none. Faults are drawn as cards of a deck: each kind
        comes, however few requests a slow machine makes."""
        if "/leases" in request.path:
            return ""
        if self._refuse_all:
            return str(self._refuse_all)
        if self._random.random() >= self._share:
            return ""
        reads = request.method == "GET"
        deck = self._decks[reads]
        if not deck:
            deck += [*COMMON_FAULTS, *(("stale",) if reads else ("409", "done, then dropped"))]
            self._random.shuffle(deck)
        return deck.pop()

    def _dropped(self, request: web.Request) -> web.Response:
        self._abort(request)
        return web.Response(status=500)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        stream = web.StreamResponse(
            status=answer.status, headers={"Content-Type": "application/json"}
        )
        number = next(self._numbers)
        self._watches[number] = request
        try:
            await stream.prepare(request)
            async for chunk in answer.content.iter_any():
                if number not in self._silent:
                    await stream.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            self._abort(request)
        finally:
            self._watches.pop(number)
            self._silent.discard(number)
        return stream


def _refusal(status: int) -> web.Response:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": REASONS[status],
        "code": status,
        "message": "by plan",
    }
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(
        body=json.dumps(document).encode(),
        status=status,
        content_type="application/json",
        headers=headers,
    )
