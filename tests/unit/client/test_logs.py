"""The client is a library: it logs by `logging`, and is silent until the application wants to
hear it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
import magnetar.client as client
from magnetar.client import receiving

assert not any(name.split(".")[0] == "structlog" for name in sys.modules), "it configures nobody's logs"
CONFIGURE

async def main():
    listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with client.Client(f"pulsar://127.0.0.1:{port}", operation_timeout_s=2) as found:
        try:
            await found.subscribe("t-partition-0", "s")
        except client.ConnectionLost:
            receiving._log.error("topic t: entry (1, 2) is damaged")

asyncio.run(main())
"""


def said(configure: str) -> tuple[str, str]:
    """Standard output and error of a program whose client cannot attach."""
    program = PROGRAM.replace("CONFIGURE", configure)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_nothing_is_printed_by_default() -> None:
    assert said("") == ("", "")


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_an_application_that_logs_receives_it(level: str) -> None:
    """On its own handler, under the library's name."""
    out, error = said(f"import logging; logging.basicConfig(level='{level}')")
    assert out == ""
    assert (
        "INFO:magnetar.client.attachment:topic persistent://public/default/t-partition-0: "
        "attaching failed" in error
    )
    assert "ERROR:magnetar.client.receiving:topic t" in error
