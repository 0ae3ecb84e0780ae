"""Every command and its options.

Owns: the root of the command line: names, options and help texts; each command's work is in a
module of its own. Imports: typer, the groups. Invariants: commands use the words that Pulsar's
users know; an option that a manifest or environment can also set has the same name there.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.access import Access
from magnetar.cli.balance import balance
from magnetar.cli.bundles import bundles
from magnetar.cli.jobs import jobs
from magnetar.cli.kubernetes import Context, Kubernetes, Namespace
from magnetar.cli.metadata import metadata
from magnetar.cli.names import pairs_of, topic_of
from magnetar.cli.namespaces import namespaces
from magnetar.cli.screen import OutputFormat, Screen
from magnetar.cli.serving import SUMMARIES, serve
from magnetar.cli.session import (
    DEFAULT_SERVICE_URL,
    NoColor,
    Output,
    ServiceUrl,
    Session,
    admitted,
    connected,
)
from magnetar.cli.storage import storage
from magnetar.cli.subscriptions import subscriptions
from magnetar.cli.tokens import tokens
from magnetar.cli.topics import Topic, topics
from magnetar.cli.transactions import transactions

COMPLETION_VARIABLE = "_MAGNETAR_COMPLETE"
application = typer.Typer(
    help="Pulsar-compatible messaging whose control plane is Kubernetes.",
    epilog="Exit codes: 0 done, 1 refused or unhealthy, 2 wrong usage, 3 no answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class SubscriptionType(enum.StrEnum):
    """Subscription types, in Pulsar's words."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key_shared"


class InitialPosition(enum.StrEnum):
    """Where a new subscription begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class LoadOrder(enum.StrEnum):
    """What most of puts a topic first."""

    RATE = "rate"
    THROUGHPUT = "throughput"
    BACKLOG = "backlog"


class Shell(enum.StrEnum):
    """Shells that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@application.command()
@connected
def status(
    session: Session,
    bundles: Annotated[bool, typer.Option("--bundles", help="All bundles, however many.")] = False,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Brokers, bundles, conditions; exit 1 if any is wrong.

    Where your kubeconfig reaches the cluster's custom resources (--namespace and --context say where),
    their conditions are shown beside.
    """
    from magnetar.cli.status import run_status

    raise typer.Exit(run_status(session, bundles, namespace, context))


@application.command()
@connected
def top(
    session: Session,
    order: Annotated[
        LoadOrder, typer.Option("--by", help="Messages/s, bytes/s, or messages that wait.")
    ] = LoadOrder.RATE,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Bundles and topics shown; 0 = all.")
    ] = 10,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.5, help="Seconds between looks, with --watch.")
    ] = 2.0,
) -> None:
    """Brokers, bundles and topics with the most load."""
    from magnetar.cli.top import run_top

    run_top(session, order.value, count, interval_s if watch else 0.0)


@application.command()
@connected
def explain(
    session: Session,
    target: Annotated[
        str, typer.Argument(metavar="TOPIC|BUNDLE", help="What to explain; it need not exist.")
    ],
) -> None:
    """Who serves a topic, why, and from which files."""
    from magnetar.cli.explain import run_explain

    run_explain(session, target)


@application.command()
@connected
def unload(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="NAMESPACE|BUNDLE|TOPIC", help="What to move.")],
    destination: Annotated[
        str,
        typer.Option("--to", help="Broker that gets it, and keeps it; default: the least loaded."),
    ] = "",
) -> None:
    """Move bundles to other brokers; no send fails."""
    from magnetar.cli.moving import run_unload

    run_unload(session, target, destination)


@application.command()
@connected
def drain(
    session: Session,
    broker: Annotated[
        str, typer.Argument(help="Its name, as `magnetar status` shows it; with --replace its pod.")
    ],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="On Kubernetes: then delete its pod, which comes back."),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take bundles again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when it is empty, or at once.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Even if no other broker takes bundles now.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Kept with the cordon; `explain` shows it.")
    ] = "drained by magnetar drain",
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")] = 300.0,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Empty a broker and keep it empty, or replace its pod.

    --replace asks the operator with the rights of your kubeconfig; --namespace and --context are
    for it only.
    """
    if replace:
        from magnetar.cli.replacing import run_replace

        raise typer.Exit(
            run_replace(
                Kubernetes(namespace, context),
                session.screen,
                broker,
                undo=undo,
                dry_run=dry_run,
                wait=wait,
                force=force,
                timeout_s=timeout_s,
            )
        )
    from magnetar.cli.moving import run_drain

    code = run_drain(
        session,
        broker,
        undo=undo,
        dry_run=dry_run,
        wait=wait,
        force=force,
        reason=reason,
        timeout_s=timeout_s,
    )
    raise typer.Exit(code)


@application.command()
@admitted
def produce(
    access: Access,
    topic: Topic,
    message: Annotated[
        list[str] | None,
        typer.Option(
            "--message", "-m", help="One message; may be repeated. Default: lines of stdin."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="name=value of every message; may be repeated."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Publish all of it so many times.")
    ] = 1,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", "-r", min=0, help="At most so many messages a second; 0 = no limit."
        ),
    ] = 0.0,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Publish messages; returns when all are durable."""
    from magnetar.cli.messages import Publishing, run_produce

    publishing = Publishing(
        str(topic_of(topic)), message, key, pairs_of(properties, "--property"), count, rate
    )
    run_produce(access, service_url, Screen(output, no_color), publishing)


@application.command()
@admitted
def consume(
    access: Access,
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Subscription name.")],
    kind: Annotated[
        SubscriptionType, typer.Option("--type", "-t", help="Subscription type.")
    ] = SubscriptionType.EXCLUSIVE,
    initial: Annotated[
        InitialPosition, typer.Option("--initial", "-p", help="Where a new subscription begins.")
    ] = InitialPosition.LATEST,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after so many messages; 0 = never.")
    ] = 0,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, help="Stop when none comes for so many seconds; 0 = never."
        ),
    ] = 0.0,
    acknowledge: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Whether messages count as consumed.")
    ] = True,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Receive, print and acknowledge messages.

    One line each; with --output json one object a line.
    """
    from magnetar.cli.messages import Consuming, run_consume

    earliest = initial is InitialPosition.EARLIEST
    consuming = Consuming(
        str(topic_of(topic)), subscription, kind.value, earliest, count, timeout_s, acknowledge
    )
    run_consume(access, service_url, Screen(output, no_color), consuming)


@application.command()
@connected
def apply(
    session: Session,
    path: Annotated[
        Path, typer.Option("--filename", "-f", help="A manifest, or a directory of them.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, change nothing.")
    ] = False,
) -> None:
    """Apply the YAML that Kubernetes takes."""
    from magnetar.cli.manifests import run_apply

    run_apply(session, path, dry_run)


@application.command()
def plan(
    path: Annotated[
        Path, typer.Option("--filename", "-f", help="A manifest, or a directory of them.")
    ],
    namespace: Namespace = "",
    context: Context = "",
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """What kubectl apply of a file would do; changes nothing."""
    from magnetar.cli.planning import run_plan

    raise typer.Exit(run_plan(Kubernetes(namespace, context), Screen(output, no_color), path))


@application.command()
def report(
    path: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Where to write it; default: magnetar-report-TIME.tar.gz here."
        ),
    ] = None,
    namespace: Namespace = "",
    context: Context = "",
    operator_namespace: Annotated[
        str, typer.Option("--operator-namespace", help="Where the operator runs.")
    ] = "magnetar-system",
    log_lines: Annotated[
        int,
        typer.Option("--log-lines", min=1, max=100_000, help="Last lines of each container's log."),
    ] = 1000,
    output: Output = OutputFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Collect what helps to find a fault, without secrets."""
    from magnetar.cli.report import run_report

    raise typer.Exit(
        run_report(
            Kubernetes(namespace, context),
            Screen(output, no_color),
            path,
            operator_namespace,
            log_lines,
        )
    )


@application.command()
def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a completion script for a shell."""
    from typer import _completion_shared

    print(
        _completion_shared.get_completion_script(
            prog_name="magnetar", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )
    )


def offer_completion() -> None:
    """Answer the shell if it is asking what a word may become."""
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


GROUPS = {
    "topics": topics,
    "subscriptions": subscriptions,
    "namespaces": namespaces,
    "bundles": bundles,
    "balance": balance,
    "txn": transactions,
    "metadata": metadata,
    "storage": storage,
    "token": tokens,
    "job": jobs,
}
for _name, _group in GROUPS.items():
    application.add_typer(_group, name=_name)


def _list_server(name: str, summary: str) -> None:
    """Name a serving command in the help; `cli.main` has run it before it comes here."""

    def run(context: typer.Context) -> None:
        serve([name, *context.args])

    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    application.command(name, help=summary, context_settings=passed_on, rich_help_panel="Servers")(
        run
    )


for _name, _summary in SUMMARIES.items():
    _list_server(_name, _summary)
