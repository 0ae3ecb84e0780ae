"""`magnetar standalone|broker|coordinator|operator`.

Owns: preflight, the event loop, the banner and the exit of server commands. Imports: broker,
coordinator, client (self-check); the operator lazily. Invariants: a port that is taken is reported
with its owner and the option that changes it before anything is touched; the banner is printed only
after a message has made the round trip.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from magnetar.broker.incarnation import Broker
from magnetar.broker.process import BrokerProcess, ProcessOptions
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.hosting.access import OPEN

if TYPE_CHECKING:
    import ssl

    from magnetar.client.connection import Credentials

_STARTED = time.monotonic()
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that could work waits for the one that does. The log's threads take the
interpreter several times per flush: at its own 5 ms each, one busy connection adds tens of
milliseconds to everybody's receipts."""
DEFAULT_BROKER_PORT, DEFAULT_HTTP_PORT = 6650, 8080
PORT_MAX = 65_535
SELF_CHECK_TOPIC = "persistent://pulsar/system/self-check"
STORED_MESSAGE_HINT = "messages are in {directory}; remove it to start over"


def run_standalone(options: ProcessOptions, self_check: bool) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    ports = [(options.broker_port, "BROKER_PORT"), (options.http_port, "HTTP_PORT")]
    if options.access.tls:
        ports += [
            (options.access.tls_port, "MAGNETAR_TLS_PORT"),
            (options.access.https_port, "MAGNETAR_HTTPS_PORT"),
        ]
    for port, option in ports:
        require_free_port(options.bind_host, port, option)
    checks: list[asyncio.Task[None]] = []

    def announce(broker: Broker) -> None:
        if not self_check:
            print(f"Ready in {_since_exec():.2f} s: {broker.service_url}", flush=True)
        elif not checks:
            checks.append(
                asyncio.create_task(_check_and_print(broker.service_url, options, process))
            )

    process = BrokerProcess(options, announce)
    _run(_run_with(process, checks))


async def _run_with(process: BrokerProcess, checks: list[asyncio.Task[None]]) -> None:
    await process.run()
    for check in checks:
        if check.done():
            check.result()  # a failed self-check ends the command with its error
        else:
            check.cancel()


async def _check_and_print(
    service_url: str, options: ProcessOptions, process: BrokerProcess
) -> None:
    """One message there and back; then what to paste next."""
    from magnetar.client import Client

    try:
        async with (
            asyncio.timeout(15),
            Client(service_url, credentials=_credentials(process), tls=_tls(process)) as client,
        ):
            consumer = await client.subscribe(SELF_CHECK_TOPIC, "self-check")
            producer = await client.create_producer(SELF_CHECK_TOPIC)
            await producer.send(b"self-check")
            message = await consumer.receive()
            await consumer.acknowledge(message)
            assert message.value == b"self-check"
            await consumer.unsubscribe()
    except (MagnetarError, TimeoutError) as error:
        process.stop()
        raise MagnetarError(
            f"the server started but a message did not make the round trip: {error!r}"
        ) from error
    assert process.broker is not None, "it is ready"
    http = process.broker.context.http_url
    if options.access.plain != OPEN:  # what is plain is not for clients
        service_url, http = process.broker.service_url_tls, process.broker.context.http_url_tls
    hint = STORED_MESSAGE_HINT.format(directory=options.volume or options.data_directory.resolve())
    to_clients = (
        ""
        if options.broker_port == DEFAULT_BROKER_PORT and options.access.plain == OPEN
        else f" --service-url {service_url}"
    )
    to_rest = (
        ""
        if options.http_port == DEFAULT_HTTP_PORT and options.access.plain == OPEN
        else f" --url {http}"
    )
    print(
        f"""
Ready in {_since_exec():.2f} s (a message was published, synced, read back and acknowledged).

  clients    {service_url}
  REST       {http}/docs        metrics {http}/metrics

Paste into a second terminal:
  {_command()} produce greetings -m hello{to_clients}
  {_command()} consume greetings -s me --initial earliest -n 1{to_clients}
  {_command()} status{to_rest}

Ctrl-C stops; {hint}.""",
        flush=True,
    )


def _tls(process: BrokerProcess) -> ssl.SSLContext | None:
    """How the self-check reaches a server without plain ports."""
    context = process.broker.context if process.broker is not None else None
    return context.tls.to_peers() if context is not None and context.tls is not None else None


def _credentials(process: BrokerProcess) -> Credentials | None:
    """What the self-check shows: it is a part of the server."""
    if process.security is None:
        return None
    from magnetar.client.connection import Credentials
    from magnetar.security.authorization import INTERNAL_METHOD

    return Credentials(INTERNAL_METHOD, process.security.internal_token().encode())


def run_broker(options: ProcessOptions) -> None:
    """Serve as one broker of a cluster until SIGTERM, then drain."""
    _run(BrokerProcess(options).run())


def run_coordinator(options: ProcessOptions) -> None:
    """Hold the number at the end of the name, as a transaction coordinator of a cluster, until
    SIGTERM."""
    from magnetar.coordinator.process import CoordinatorProcess

    _run(CoordinatorProcess(options).run())


def _run(work: Coroutine[Any, Any, None]) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(work)


def _since_exec() -> float:
    """Seconds since this process was executed, interpreter start included."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.monotonic() - _STARTED


def _command() -> str:
    """How the reader started us, so that what we print can be pasted."""
    beside = Path(sys.executable).with_name("magnetar")
    if not beside.exists():
        return "magnetar"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)


def require_free_port(host: str, port: int, variable: str) -> None:
    """Raises InvalidRequest naming the port's owner and the variable to set if another process listens
    there."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            owner, other = _listener_of(port), port + 1 if port < PORT_MAX else port - 1
            raise InvalidRequest(
                f"port {port} is in use by {owner} ({error.strerror}). Stop it, or choose another "
                f"port: make run {variable}={other}"
            ) from error


def _listener_of(port: int) -> str:
    """`name (pid n)` of the process that listens on a TCP port, from /proc; another user's
    processes cannot be seen."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # the process has ended, or belongs to another user
    return "a process that this user may not see"
