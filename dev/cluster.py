"""`make cluster`: Magnetar on a real Kubernetes.

Owns: the way from nothing (or from a cluster of yours) to a Ready BrokerCluster: node, images,
chart, quickstart. Imports: dev.preparation; runs `dev.kube`, `dev.image`, helm and kubectl.
Invariants: the user's kubeconfig is only read, and only with --context; every step says what it
does; running it again changes nothing that is right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dev.preparation import prepare

RELEASE = "magnetar"
SYSTEM_NAMESPACE = "magnetar-system"
CHART = "charts/magnetar"
QUICKSTART = "examples/quickstart"
READY_TIMEOUT_S = 240


@dataclass(frozen=True)
class Tools:
    """kubectl and helm, and which cluster they talk to."""

    kubectl: list[str]
    helm: list[str]
    local: bool

    def kube(self, *arguments: str, check: bool = True, quiet: bool = False) -> str:
        """Run kubectl; its output."""
        result = subprocess.run(
            [*self.kubectl, *arguments], text=True, capture_output=True, check=False
        )
        if check and result.returncode != 0:
            sys.exit(f"kubectl {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
        if not quiet and result.stdout.strip():
            print("  " + result.stdout.strip().replace("\n", "\n  "), flush=True)
        return result.stdout


def _output(*command: str) -> str:
    """Run one of our own tools; the last line of its standard output."""
    result = subprocess.run(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=False
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed; what it said is above")
    return result.stdout.strip().splitlines()[-1] if result.stdout.strip() else ""


def tools(context: str) -> Tools:
    """Tools for the local cluster, or for the context of the user's kubeconfig; for the latter
    those that the user has will do."""
    kubectl, helm = (
        (context and shutil.which(name)) or _output("dev.kube", "binary", name)
        for name in ("kubectl", "helm")
    )
    if context:
        return Tools(
            [kubectl, "--context", context], [helm, "--kube-context", context], local=False
        )
    kubeconfig = _output("dev.kube", "kubeconfig")
    return Tools(
        [kubectl, "--kubeconfig", kubeconfig], [helm, "--kubeconfig", kubeconfig], local=True
    )


def step(number: int, text: str) -> None:
    print(f"{number}. {text}", flush=True)


def install(found: Tools, image: str, etcd_image: str, chart: str = CHART, *options: str) -> None:
    """Install or upgrade a chart of ours, CRDs included, for all namespaces: a cluster to try
    things out has several."""
    repository, _, tag = image.rpartition(":")
    command = [
        *found.helm, "upgrade", "--install", RELEASE, chart, "--namespace", SYSTEM_NAMESPACE, "--create-namespace",
        "--set", "watchNamespaces={*}",
        "--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}", "--wait", "--timeout", "3m", *options,
    ]  # fmt: skip
    if etcd_image:
        command += ["--set", f"etcd.image={etcd_image}"]
    result = subprocess.run(command, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        print(result.stdout + result.stderr)
        found.kube("get", "pods,events", "-n", SYSTEM_NAMESPACE, check=False)
        sys.exit("helm could not install the chart; the lines above say why")


def wait_ready(
    found: Tools,
    kind: str,
    name: str,
    namespace: str = "default",
    timeout_s: float = READY_TIMEOUT_S,
) -> None:
    """Wait for the Ready condition, showing its message when it changes."""
    deadline, shown = time.monotonic() + timeout_s, ""
    path = (
        '{.status.conditions[?(@.type=="Ready")].status} '
        '{.status.conditions[?(@.type=="Ready")].message}'
    )
    while time.monotonic() < deadline:
        text = found.kube(
            "get", kind, name, "-n", namespace, "-o", f"jsonpath={path}", check=False, quiet=True
        ).strip()
        if text != shown:
            print(f"  {kind}/{name}: {text or 'no status yet'}", flush=True)
            shown = text
        if text.startswith("True"):
            return
        time.sleep(0.5)
    found.kube("describe", kind, name, "-n", namespace, check=False)
    found.kube("get", "pods", "-n", namespace, "-o", "wide", check=False)
    sys.exit(
        f"{kind}/{name} is not Ready after {timeout_s:.0f} s; the description above says what it "
        "waits for"
    )


def up(context: str, image: str, environment: str = "") -> None:
    """The whole way; `environment` is the virtual environment to make beside it, "" = none."""
    started = time.monotonic()
    if context and not image:
        sys.exit(
            "CONTEXT needs IMAGE=ref: an image of Magnetar's brokers that your cluster can pull, "
            "with ref's -operator and -spark beside it "
            "(make image REPO=... and push, or kind load)"
        )
    if not context:
        if subprocess.run([sys.executable, "-m", "dev.kube", "check"], check=False).returncode != 0:
            sys.exit(
                "this machine cannot run the node; the rows with MISSING say what to do, or use "
                "CONTEXT=name IMAGE=ref with a cluster you have"
            )
        prepare(environment)
    step(1, f"Kubernetes: {'context ' + context if context else 'a node on this machine'}")
    _output("dev.kube", "up", *(["--context", context] if context else []))
    found = tools(context)
    step(2, f"Images: {image or 'of this checkout, into the node'}")
    etcd_image = ""
    if not image:
        image = _output("dev.image", "build", "--load")
        etcd_image = _output("dev.image", "etcd", "--load")
    step(3, f"Chart {CHART} into namespace {SYSTEM_NAMESPACE}")
    install(found, image, etcd_image)
    step(4, f"kubectl apply -f {QUICKSTART}")
    found.kube("apply", "-f", QUICKSTART)
    wait_ready(found, "brokercluster", "main")
    print(f"Ready in {time.monotonic() - started:.0f} s.\n\n{_next_steps(found)}", flush=True)


def _next_steps(found: Tools) -> str:
    address = found.kube("get", "service", "main", "-o", "jsonpath={.spec.clusterIP}", quiet=True)
    kubectl = " ".join(found.kubectl)
    reach = (
        f"pulsar://{address}:6650 from this machine"
        if found.local
        else "pulsar://main.default:6650 from a pod"
    )
    return f"""Clients connect to {reach}. Paste:
  alias k='{kubectl}'
  k get magnetar -A
  k exec main-broker-0 -- magnetar status
  k scale brokercluster/main --replicas=3
  k apply -f examples/compaction.yaml
{f"  MAGNETAR_URL=http://{address}:8080 .venv/bin/magnetar status" if found.local else ""}
{"Stop it with: make cluster-down" if found.local else ""}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.cluster", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("verb", choices=["up"])
    parser.add_argument(
        "--context",
        default=os.environ.get("CONTEXT", ""),
        help="a context of your kubeconfig; default: a local node",
    )
    parser.add_argument(
        "--image",
        default=os.environ.get("IMAGE", ""),
        help="the brokers' image, which the cluster can pull",
    )
    parser.add_argument(
        "--environment",
        default="",
        help="virtual environment to make as well, for the command line",
    )
    arguments = parser.parse_args()
    assert Path(CHART).exists(), "run this from the checkout's root"
    up(arguments.context, arguments.image, arguments.environment)


if __name__ == "__main__":
    main()
