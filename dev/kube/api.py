"""The few questions the tools ask the API server themselves.

Owns: the administrator's connection. May import: addresses, binaries, paths, processes, report.
Invariant: talks to the local cluster only, with its own credentials, and never through a proxy.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from datetime import datetime
from typing import Any

from dev.kube import binaries
from dev.kube.addresses import API_URL, NODE_NAME
from dev.kube.paths import Paths
from dev.kube.processes import environment_without_proxies
from dev.kube.report import CommandFailed

TIMEOUT_SECONDS = 5.0


def get(paths: Paths, path: str) -> tuple[int, str]:
    """Status and body; status 0 when the server cannot be reached."""
    pki = paths.certificates
    try:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        host = API_URL.removeprefix("https://")
        connection = http.client.HTTPSConnection(host, context=context, timeout=TIMEOUT_SECONDS)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""


def server_ready(paths: Paths) -> bool:
    return get(paths, "/readyz")[0] == http.HTTPStatus.OK


def exists(paths: Paths, path: str) -> bool:
    return get(paths, path)[0] == http.HTTPStatus.OK


def node_ready(paths: Paths, *, since: float) -> bool:
    """Whether the node accepts pods, by a report no older than `since` (seconds since the
    epoch)."""
    status, body = get(paths, f"/api/v1/nodes/{NODE_NAME}")
    if status != http.HTTPStatus.OK:
        return False
    return accepts_pods(json.loads(body), since)


def accepts_pods(node: dict[str, Any], since: float) -> bool:
    """Read a Node object. The node controller taints a new node until it has seen it ready; pods
    wait for that too."""
    for condition in node.get("status", {}).get("conditions", []):
        if (
            condition["type"] == "Ready"
            and condition["status"] == "True"
            and not node["spec"].get("taints")
        ):
            return datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp() >= since
    return False


def kubectl(paths: Paths, *arguments: str, text_input: str | None = None) -> str:
    """Run kubectl as the administrator."""
    program = binaries.ensure(["kubectl"], paths)["kubectl"]
    argv = [str(program), "--kubeconfig", str(paths.kubeconfig), *arguments]
    done = subprocess.run(
        argv, capture_output=True, text=True, input=text_input, env=environment_without_proxies()
    )
    if done.returncode != 0:
        raise CommandFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
