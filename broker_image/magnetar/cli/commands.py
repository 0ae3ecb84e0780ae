"""Every subcommand and its options.

Owns: names, options and help texts; each command's work is in a module of its own, imported when it runs. Imports: typer.
Invariant: an option that a manifest or environment can also set has the same name there.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

application = typer.Typer(
    help="Pulsar-compatible messaging whose control plane is Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ServiceUrl = Annotated[str, typer.Option("--service-url", envvar="MAGNETAR_SERVICE_URL", help="Where clients connect.")]
HttpUrl = Annotated[str, typer.Option("--http-url", envvar="MAGNETAR_HTTP_URL", help="Where REST is served.")]
LogLevel = Annotated[str, typer.Option(envvar="MAGNETAR_LOG_LEVEL", help="debug, info, warning or error.")]
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_HTTP_URL = "http://127.0.0.1:8080"


class OutputFormat(enum.StrEnum):
    """How a command shows its result."""

    TABLE = "table"
    JSON = "json"


class SubscriptionType(enum.StrEnum):
    """Subscription types that `consume` offers."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@application.command()
def standalone(
    data_dir: Annotated[Path, typer.Option(help="Where messages and metadata are kept.")] = Path("data"),
    broker_port: Annotated[int, typer.Option(envvar="BROKER_PORT", help="Port for Pulsar clients.")] = 6650,
    http_port: Annotated[int, typer.Option(envvar="HTTP_PORT", help="Port for REST, health and metrics.")] = 8080,
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_address: Annotated[str, typer.Option(help="Address that clients are told.")] = "127.0.0.1",
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Publish and read one message, then print what to do next.")
    ] = False,
    log_level: LogLevel = "warning",
) -> None:
    """Run one server with everything in it: nothing else to install."""
    from magnetar.cli.serve import StandaloneOptions, run_standalone

    run_standalone(StandaloneOptions(data_dir, broker_port, http_port, bind, advertised_address, self_check, log_level))


@application.command()
def broker(
    store: Annotated[str, typer.Option(envvar="MAGNETAR_STORE", help="etcd://host:port[,host:port...]")],
    volume: Annotated[Path, typer.Option(envvar="MAGNETAR_VOLUME", help="Directory shared by all brokers of the cluster.")],
    name: Annotated[str, typer.Option(envvar="MAGNETAR_NAME", help="Name that survives restarts; default: the host's.")] = "",
    advertised_address: Annotated[
        str, typer.Option(envvar="MAGNETAR_ADVERTISED_ADDRESS", help="Address that clients are told.")
    ] = "127.0.0.1",
    bind: Annotated[str, typer.Option(envvar="MAGNETAR_BIND", help="Address to listen on.")] = "0.0.0.0",
    broker_port: Annotated[int, typer.Option(help="Port for Pulsar clients.")] = 6650,
    http_port: Annotated[int, typer.Option(help="Port for REST, health and metrics.")] = 8080,
    log_level: LogLevel = "info",
) -> None:
    """Run one broker of a cluster."""
    from magnetar.cli.serve import BrokerOptions, run_broker

    run_broker(BrokerOptions(store, volume, name, advertised_address, bind, broker_port, http_port, log_level))


@application.command()
def operator(
    log_level: LogLevel = "info",
    namespaces: Annotated[str, typer.Option(envvar="MAGNETAR_WATCH_NAMESPACES", help="Comma-separated; empty = all.")] = "",
) -> None:
    """Run the Kubernetes operator (in a pod, or with a kubeconfig)."""
    from magnetar.cli.serve import run_operator

    run_operator([part for part in namespaces.split(",") if part], log_level)


@application.command()
def produce(
    topic: Annotated[str, typer.Argument(help="Topic name; short names are in public/default.")],
    message: Annotated[
        list[str] | None, typer.Option("--message", "-m", help="One message; may be repeated. Default: lines of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Publish messages; returns when all are durable."""
    from magnetar.cli.messages import run_produce

    run_produce(service_url, topic, message, key)


@application.command()
def consume(
    topic: Annotated[str, typer.Argument(help="Topic name; short names are in public/default.")],
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Subscription name.")],
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Stop after so many messages; 0 = never.")] = 0,
    subscription_type: Annotated[SubscriptionType, typer.Option("--type", help="Subscription type.")] = SubscriptionType.EXCLUSIVE,
    earliest: Annotated[bool, typer.Option("--earliest", help="A new subscription starts at the first message.")] = False,
    output: Annotated[OutputFormat, typer.Option(help="table = one line each; json = one object each.")] = OutputFormat.TABLE,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Receive, print and acknowledge messages."""
    from magnetar.cli.messages import run_consume

    run_consume(service_url, topic, subscription, count, subscription_type.value, earliest, output is OutputFormat.JSON)


@application.command()
def status(
    output: Annotated[OutputFormat, typer.Option(help="table for people, json for scripts.")] = OutputFormat.TABLE,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Brokers, bundles and who owns them."""
    from magnetar.cli.inspect import run_status

    run_status(http_url, output is OutputFormat.JSON)


@application.command()
def apply(
    path: Annotated[Path, typer.Option("--filename", "-f", exists=True, help="A manifest, or a directory of them.")],
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Apply manifests to a standalone server: the same YAML and validation as on Kubernetes."""
    from magnetar.cli.manifests import run_apply

    run_apply(path, http_url)
