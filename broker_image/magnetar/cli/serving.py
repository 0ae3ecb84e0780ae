"""The commands that serve: `magnetar standalone|broker|coordinator|operator`.

Owns: their options. Imports: argparse; the servers themselves only when they run. Why not typer: it
would stay in the memory of every broker and make each of them start later. Invariant: an option
that a manifest or environment can also set has the same name there; command-line options win over
the environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.broker.process import ProcessOptions

SUMMARIES = {
    "standalone": "Run one server with everything in it.",
    "broker": "Run one broker of a cluster.",
    "coordinator": "Run one transaction coordinator of a cluster.",
    "operator": "Run the Kubernetes operator.",
}
VOLUMES = (
    "a directory, link:///path (a directory on NFS) or "
    "s3://bucket/prefix?endpoint=https://host&region=name"
)


def serve(arguments: Sequence[str]) -> None:
    """Run the serving command that `arguments` begin with. Exits with 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    run = {
        "standalone": _standalone,
        "broker": _broker,
        "coordinator": _coordinator,
        "operator": _operator,
    }[options.command]
    run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="magnetar")
    commands = parser.add_subparsers(dest="command", required=True)
    made = {
        name: commands.add_parser(name, description=summary, help=summary)
        for name, summary in SUMMARIES.items()
    }
    _add_standalone(made["standalone"])
    _add_broker(made["broker"])
    _add_broker(made["coordinator"])
    _option(
        made["operator"],
        "--log-level",
        "info",
        "debug, info, warning or error.",
        "MAGNETAR_LOG_LEVEL",
    )
    _option(
        made["operator"],
        "--namespaces",
        "",
        "Comma-separated; empty = all.",
        "MAGNETAR_WATCH_NAMESPACES",
    )
    return parser


def _option(
    parser: argparse.ArgumentParser,
    name: str,
    default: Any,
    what: str,
    variable: str = "",
    **more: Any,
) -> None:
    """An option, with the environment variable that sets it as well; default None makes it a
    must."""
    value = os.environ.get(variable, default) if variable else default
    shown = f"[env: {variable}] " if variable else ""
    text = f"{what} {shown}" + ("" if default in (None, "") else f"[default: {default}]")
    parser.add_argument(
        name, default=value, required=value is None, help=text.replace("%", "%%"), **more
    )


def _add_standalone(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--data-dir", Path("data"), "Where messages and metadata are kept.", type=Path)
    _option(parser, "--storage", "", f"Keep messages elsewhere: {VOLUMES}.", "MAGNETAR_STORAGE")
    _option(parser, "--broker-port", 6650, "Port for Pulsar clients.", "BROKER_PORT", type=int)
    _option(
        parser, "--http-port", 8080, "Port for REST, health and metrics.", "HTTP_PORT", type=int
    )
    _option(parser, "--bind", "127.0.0.1", "Address to listen on.")
    _option(parser, "--advertised-address", "127.0.0.1", "Address advertised to clients.")
    _add_listeners(parser)
    _add_access(parser)
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="Publish and read one message, then print what to do next.",
    )
    _option(
        parser, "--log-level", "warning", "debug, info, warning or error.", "MAGNETAR_LOG_LEVEL"
    )


def _add_broker(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--store", None, "etcd://host:port[,host:port...]", "MAGNETAR_STORE")
    _option(
        parser,
        "--store-tls",
        "",
        "Directory with ca.crt, tls.crt and tls.key for etcd; empty = no TLS.",
        "MAGNETAR_STORE_TLS",
    )
    _option(
        parser,
        "--volume",
        None,
        f"Shared by all brokers of the cluster: {VOLUMES}.",
        "MAGNETAR_VOLUME",
    )
    _option(
        parser, "--name", "", "Name that survives restarts; default: the host's.", "MAGNETAR_NAME"
    )
    _option(
        parser,
        "--advertised-address",
        "127.0.0.1",
        "Address advertised to clients.",
        "MAGNETAR_ADVERTISED_ADDRESS",
    )
    _add_listeners(parser)
    _add_access(parser)
    _option(parser, "--bind", "0.0.0.0", "Address to listen on.", "MAGNETAR_BIND")
    _option(parser, "--broker-port", 6650, "Port for Pulsar clients.", type=int)
    _option(parser, "--http-port", 8080, "Port for REST, health and metrics.", type=int)
    _option(parser, "--log-level", "info", "debug, info, warning or error.", "MAGNETAR_LOG_LEVEL")


def _add_listeners(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--advertised-listeners",
        "",
        "Addresses for clients that name a listener: name:pulsar://host:port[,...]; internal is "
        "the one of everybody else.",
        "MAGNETAR_ADVERTISED_LISTENERS",
    )
    _option(
        parser,
        "--bind-addresses",
        "",
        "Ports of listeners whose clients need not name them: name:pulsar://0.0.0.0:port[,...].",
        "MAGNETAR_BIND_ADDRESSES",
    )
    _option(
        parser,
        "--listeners-file",
        "",
        "File with --advertised-listeners, followed while the server runs.",
        "MAGNETAR_LISTENERS_FILE",
    )
    _option(
        parser,
        "--host-address",
        "",
        "What {host} means in advertised listeners.",
        "MAGNETAR_HOST_ADDRESS",
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    _option(
        parser,
        "--security",
        "",
        "File that says who clients are and what they may do (docs/security.md), followed while "
        "the server runs; empty = anybody, anything.",
        "MAGNETAR_SECURITY",
    )

    _option(
        parser,
        "--audit-log",
        "",
        "File that gets audit events as JSON lines, beside standard error; 64 MiB, and as much "
        "before (FILE.1); empty = none.",
        "MAGNETAR_AUDIT_LOG",
    )
    _option(
        parser,
        "--tls",
        "",
        "Directory with tls.crt, tls.key and perhaps ca.crt (of clients), followed while the "
        "server runs; empty = no TLS.",
        "MAGNETAR_TLS",
    )
    _option(
        parser, "--tls-port", 6651, "Port for Pulsar clients by TLS.", "MAGNETAR_TLS_PORT", type=int
    )
    _option(
        parser,
        "--https-port",
        8443,
        "Port for REST, health and metrics by TLS.",
        "MAGNETAR_HTTPS_PORT",
        type=int,
    )
    _option(
        parser,
        "--plain",
        "open",
        "What ports without TLS are for: open (anybody), internal (processes of the cluster, and "
        "probes), closed (there are none).",
        "MAGNETAR_PLAIN",
    )


def _standalone(options: argparse.Namespace) -> None:
    from magnetar.broker.process import EMBEDDED
    from magnetar.cli.serve import run_standalone

    process = _process(
        options, "standalone", options.storage, EMBEDDED, data_directory=options.data_dir
    )
    run_standalone(process, options.self_check)


def _broker(options: argparse.Namespace) -> None:
    from magnetar.cli.serve import run_broker

    run_broker(_of_cluster(options))


def _coordinator(options: argparse.Namespace) -> None:
    from magnetar.cli.serve import run_coordinator

    run_coordinator(_of_cluster(options))


def _of_cluster(options: argparse.Namespace) -> ProcessOptions:
    from magnetar.broker.process import default_name

    return _process(
        options,
        options.name or default_name(),
        options.volume,
        options.store,
        data_directory=Path(),
        store_tls=options.store_tls,
    )


def _process(
    options: argparse.Namespace, name: str, volume: str, store: str, **more: Any
) -> ProcessOptions:
    """Raises InvalidRequest."""
    from magnetar.broker.process import ProcessOptions
    from magnetar.hosting.access import AccessOptions
    from magnetar.hosting.advertised import options_of
    from magnetar.hosting.logs import configure_logs
    from magnetar.hosting.memory import limit_bytes
    from magnetar.hosting.settings import BrokerSettings

    configure_logs(options.log_level, options.audit_log)
    return ProcessOptions(
        name=name,
        volume=volume,
        store=store,
        bind_host=options.bind,
        advertised_host=options.advertised_address,
        broker_port=options.broker_port,
        http_port=options.http_port,
        settings=BrokerSettings.from_environment(os.environ, limit_bytes()),
        listeners=options_of(
            options.advertised_listeners,
            options.bind_addresses,
            options.listeners_file,
            options.host_address,
        ),
        access=AccessOptions(
            options.security, options.tls, options.tls_port, options.https_port, options.plain
        ),
        **more,
    )


def _operator(options: argparse.Namespace) -> None:
    # The operator's image has no packages that only brokers need.
    from magnetar.errors import InvalidRequest
    from magnetar.hosting.logs import configure_logs

    configure_logs(options.log_level)
    try:
        from magnetar_operator.main import run
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"the operator needs the package {error.name}; install magnetar[operator]"
        ) from error
    run(namespaces=[part for part in options.namespaces.split(",") if part])
