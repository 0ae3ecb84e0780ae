"""Messages over REST: large ones are sent in parts, and those that peers do not read hold a
bounded amount of memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx

from magnetar.broker.administration.messages import FoundMessage
from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.messages import ANSWERS_BYTES_MAX, LOOKS_MAX, PART_BYTES
from magnetar.names import TopicName
from tests.support.resources import every_resource

PATH = "/admin/v2/persistent/public/default/t/examinemessage"


class LargeMessages:
    """The broker's side: a topic whose message is larger than half of the room."""

    def __init__(self) -> None:
        self.payload = bytes(ANSWERS_BYTES_MAX // 2 + 1)
        self.looking = self.most = 0
        self.application = create_application(every_resource(self))

    async def examine(self, _topic: TopicName, _origin: str, _number: int) -> FoundMessage:
        self.looking += 1
        self.most = max(self.most, self.looking)
        await asyncio.sleep(0)
        self.looking -= 1
        return FoundMessage({"X-Pulsar-Message-ID": "1:0"}, self.payload)

    async def ask(self) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(PATH, headers={"Accept-Encoding": "identity"})


class SlowPeer:
    """Reads the first part of an answer, and no more before `reads` is set."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.sent: list[int] = []
        self.began, self.reads = asyncio.Event(), asyncio.Event()

    async def ask(self) -> None:
        path, query = PATH, b""
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [],
        }
        await self._application(
            scope | {"scheme": "http", "server": ("test", 80), "client": ("x", 1)},
            self._receive,
            self._send,
        )

    async def _receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.sent.append(len(message["body"]))
            self.began.set()
            await self.reads.wait()


async def test_payloads_that_are_not_read_leave_no_room_for_more() -> None:
    """The next large one is refused for now; once the slow peer has read, or has gone, there is
    room again."""

    port = LargeMessages()
    for ends in ("reads", "goes"):
        slow = SlowPeer(port.application)
        asking = asyncio.create_task(slow.ask())
        await slow.began.wait()
        refused = await port.ask()
        assert (refused.status_code, list(refused.json())[:1]) == (429, ["reason"])
        large, port.payload = port.payload, b"small"
        assert (await port.ask()).content == b"small"
        port.payload = large
        if ends == "reads":
            slow.reads.set()
        else:
            asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        answered = await port.ask()
        assert (answered.status_code, len(answered.content)) == (200, len(port.payload))
        assert answered.headers["content-length"] == str(len(port.payload))
        assert max(slow.sent) <= PART_BYTES


async def test_few_messages_are_looked_at_at_a_time() -> None:
    port = LargeMessages()
    port.payload = b"x"
    answers = await asyncio.gather(*(port.ask() for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert port.most == LOOKS_MAX
