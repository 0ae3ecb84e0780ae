"""What the producers of a partition wrote with.

Owns: `WriterSchemas`, which asks the broker once for each version. Imports: messages, schemas,
backoff, clock, wire, asyncio. Source: Pulsar's binary protocol: `schema_version` in a message's
metadata, GET_SCHEMA. Invariants: a message waits until its version is known, and those behind it
with it; what the broker does not know is read by the consumer's own schema; a question that is lost
is asked again while a message waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from magnetar.client.backoff import Backoff
from magnetar.client.messages import Message
from magnetar.client.schemas import Schema
from magnetar.clock import Clock
from magnetar.errors import MagnetarError, Retry
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests

VERSIONS_MAX = 1_000

_log = logging.getLogger(__name__)


class WriterSchemas:
    """By version, the consumer's schema as it reads what a producer with that version wrote."""

    def __init__(
        self,
        topic: str,
        schema: Schema[Any],
        request: Callable[[Callable[[int], bytes]], Awaitable[api.BaseCommand]],
        on_known: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`request` as `Attachment.request`; `on_known`: a message that waited may go on."""
        self._topic, self._schema = topic, schema
        self._request, self._on_known = request, on_known
        self._clock = clock
        self._known: dict[bytes, Schema[Any]] = {}
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    def applied(self, message: Message[Any]) -> Message[Any] | None:
        """The message under its writer's schema; None while that is asked for."""
        version = message.schema_version
        if not version or not self._schema.has_versions:
            return message
        found = self._known.get(version)
        if found is not None:
            return message if found is message.schema else replace(message, schema=found)
        if version not in self._asking:
            self._asking[version] = asyncio.create_task(
                self._learn(version), name=f"schema {version.hex()} of {message.topic}"
            )
        return None

    async def close(self) -> None:
        """Ask no more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _learn(self, version: bytes) -> None:
        backoff = Backoff(self._clock)
        while True:
            try:
                answer = await self._request(partial(requests.get_schema, self._topic, version))
                definition = answer.get_schema_response.schema.schema_data
                found = self._schema.written_as(definition)
                break
            except MagnetarError as failure:
                _log.warning("schema version %s is not known: %s", version.hex(), failure)
                if failure.retry is Retry.NEVER:
                    found = self._schema
                    break
            await asyncio.sleep(backoff.next())
        if len(self._known) >= VERSIONS_MAX:
            self._known.clear()
        self._known[version] = found
        del self._asking[version]
        self._on_known()
