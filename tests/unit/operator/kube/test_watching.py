"""What kopf is asked to keep of the objects that it watches."""

from __future__ import annotations

import asyncio
from typing import Any

from magnetar_operator.kube.watching import _NoMemories


def test_kopf_keeps_nothing_of_the_objects_that_it_has_shown() -> None:
    """Its memories of ten thousand objects were megabytes that no handler of events reads."""

    async def scenario() -> None:
        memories = _NoMemories()
        body: Any = {"metadata": {"uid": "u-1", "name": "a"}}
        listed = await memories.recall(body, noticed_by_listing=True, memobase=None)
        assert listed.noticed_by_listing
        assert await memories.recall(body, memobase=None) is not listed
        assert not list(memories.iter_all_memories())
        await memories.forget(body)

    asyncio.run(scenario())
