"""Command line of the local Kubernetes: `python3 -m dev.kube <verb>`.

Owns: verbs, arguments, exit codes (0 done, 1 failed, 2 usage). May import: everything else in this
package. Invariant: a path or a table asked for goes to standard output alone; all other text goes
to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dev.kube import binaries, cluster, containers, existing, preflight, volumes
from dev.kube.binaries import UnknownProgram
from dev.kube.paths import Paths
from dev.kube.report import CommandFailed, exit_code, say
from dev.kube.versions import PROGRAMS

RECLAIM_INTERVAL_S = 2.0
Verb = Callable[[argparse.Namespace, Paths], int]


def up(arguments: argparse.Namespace, paths: Paths) -> int:
    if arguments.context:
        print(existing.describe(arguments.context, paths))
        return 0
    cluster.up(paths)
    return 0


def down(arguments: argparse.Namespace, paths: Paths) -> int:
    if arguments.context:
        say(f"context {arguments.context} is not ours to stop; nothing done")
        return 0
    cluster.down(paths, purge=arguments.purge)
    return 0


def check(_: argparse.Namespace, paths: Paths) -> int:
    found = preflight.rows(paths, node_is_up=cluster.is_running(paths))
    print(preflight.render(found))
    return 1 if preflight.blockers(found) else 0


def status(arguments: argparse.Namespace, paths: Paths) -> int:
    if arguments.context:
        print(existing.describe(arguments.context, paths))
        return 0
    ready, text = cluster.status(paths)
    print(text)
    return 0 if ready else 1


def kubeconfig(arguments: argparse.Namespace, paths: Paths) -> int:
    print(existing.kubeconfig() if arguments.context else paths.kubeconfig)
    return 0


def load(arguments: argparse.Namespace, paths: Paths) -> int:
    if arguments.context:
        say(
            f"context {arguments.context} has a loader or a registry of its own (kind load, "
            "minikube image load, push)"
        )
        return 2
    cluster.load(paths, arguments.archive)
    return 0


def images(_: argparse.Namespace, paths: Paths) -> int:
    print("\n".join(containers.images(paths)))
    return 0


def binary(arguments: argparse.Namespace, paths: Paths) -> int:
    print("\n".join(str(path) for path in binaries.ensure(arguments.names, paths).values()))
    return 0


def wipe_volumes(arguments: argparse.Namespace, paths: Paths) -> int:
    if arguments.context:
        say(f"context {arguments.context} is not ours to wipe; nothing done")
        return 2
    with cluster.exclusive(paths):
        bound = volumes.wipe(paths)
    if bound:
        say(f"left alone, because a claim holds them: {', '.join(bound)}")
    return 1 if bound else 0


def reclaim_volumes(_: argparse.Namespace, paths: Paths) -> int:
    while True:
        volumes.reclaim(paths)
        time.sleep(RECLAIM_INTERVAL_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.kube", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--context",
        default=os.environ.get("CONTEXT", ""),
        help="an existing cluster of your KUBECONFIG; then nothing is started here (also: "
        "CONTEXT=name)",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")

    def add(name: str, run: Verb, text: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(run=run)
        # The same option after the verb; it must not reset what was given before it.
        verb.add_argument("--context", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return verb

    add("up", up, "start the node, or repair what is dead; does nothing on a healthy one")
    add("check", check, "print what the machine offers and lacks, and change nothing")
    stop = add("down", down, "stop the node; objects and volumes are kept")
    stop.add_argument(
        "--purge", action="store_true", help="remove objects, volumes, images and logs as well"
    )
    add("status", status, "show the components; exit code 1 unless the node is ready")
    add("kubeconfig", kubeconfig, "print the path of the kubeconfig")
    add("load", load, "import an image archive into the node").add_argument("archive", type=Path)
    add("images", images, "list the node's images")
    build = add("binary", binary, "build and cache programs, and print their paths")
    build.add_argument("names", nargs="+", metavar="name", choices=sorted(PROGRAMS))
    add(
        "reclaim-volumes",
        reclaim_volumes,
        "empty volumes whose claims are deleted, until stopped (a component of the node)",
    )
    add(
        "wipe-volumes",
        wipe_volumes,
        "empty every volume no claim holds and make it available again",
    )
    return parser


def main() -> int:
    os.umask(0o077)
    arguments = _parser().parse_args()
    run: Verb = arguments.run
    return exit_code(
        lambda: run(arguments, Paths.from_environment()),
        (CommandFailed, UnknownProgram, cluster.NotReady),
    )


if __name__ == "__main__":
    sys.exit(main())
