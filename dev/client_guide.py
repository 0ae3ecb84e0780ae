"""The blocks of docs/client.md, as programs.

Owns: reading and running them. Imports: magnetar.client. Invariant: a block that needs transaction
coordinators says so behind its ```python.
"""

from __future__ import annotations

import ast
import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from magnetar.client import Client

GUIDE = Path(__file__).parent.parent / "docs" / "client.md"
SERVICE_URL = "pulsar://127.0.0.1:6650"
BLOCK_TIMEOUT_S = 90.0
_FENCE = re.compile(r"^```python *(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block: whether it needs coordinators, and its text."""

    coordinators: bool
    text: str


def blocks(coordinators: bool) -> list[Block]:
    """Those that need coordinators, or those that do not."""
    found = [
        Block(need == "coordinators", text) for need, text in _FENCE.findall(GUIDE.read_text())
    ]
    assert found, "the guide has blocks"
    return [block for block in found if block.coordinators is coordinators]


def run(block: Block, service_url: str) -> None:
    """Run a block as the body of a coroutine that has a client. Raises whatever it raises."""
    text = block.text.replace(SERVICE_URL, service_url)
    tree = ast.parse(f"async def program(client):\n{textwrap.indent(text, '    ')}")
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(tree, str(GUIDE), "exec", dont_inherit=True), space)

    async def body() -> None:
        async with asyncio.timeout(BLOCK_TIMEOUT_S), Client(service_url) as client:
            await space["program"](client)

    asyncio.run(body())
