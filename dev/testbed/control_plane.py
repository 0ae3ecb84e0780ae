"""A real kube-apiserver with its etcd, and nothing else: no node, no controllers, no privileges.

Owns: the two processes, on free loopback ports with data below one directory; certificates; a
kubeconfig. Stopped by their process handles.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dev.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S, STOP_TIMEOUT_S = 240.0, 240.0
TOKEN = "tests-only"
OPERATOR_TOKEN = "tests-operator"
OPERATOR_NAMESPACE = "magnetar-system"
OPERATOR_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:magnetar-operator"
SCOPED_NAMESPACE, SCOPED_TOKEN = "scoped-system", "tests-scoped"
SCOPED_USER = f"system:serviceaccount:{SCOPED_NAMESPACE}:scoped-magnetar-operator"
"""An operator of another release, with rights in the namespaces that it watches only."""
EVERYWHERE = "watchNamespaces={*}"
"""The operator under test has its rights in every namespace, for every test has one of its own."""
UNINSTALL_TOKEN = "tests-uninstall"
UNINSTALL_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:magnetar-uninstall-check"


class ControlPlaneNotAvailable(RuntimeError):
    """A binary could not be found or built, or a process did not start."""


def binary(name: str) -> str:
    """Path of a program that `dev.kube` builds once and caches. Raises ControlPlaneNotAvailable."""
    command = [sys.executable, "-m", "dev.kube", "binary", name]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode != 0 or not built.stdout.split():
        raise ControlPlaneNotAvailable(f"{' '.join(command)}: {built.stderr.strip()[-300:]}")
    return built.stdout.split()[-1]


class EtcdProcess:
    """One etcd member without fsync: what a test asserts does not outlive it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self._peer = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        arguments = [
            binary("etcd"), "--data-dir", str(self._directory / "data"), "--log-level", "error", "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        with (self._directory / "etcd.log").open("ab") as output:
            self._process = subprocess.Popen(arguments, stdout=output, stderr=output)
        _wait(f"{client}/health", self._process, self._directory / "etcd.log", None)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It answers nobody concurrently, and forgets nothing."""
        assert self._process is not None, "it has been started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None


class ControlPlane:
    """The API server and its etcd."""

    def __init__(self, directory: Path, *, audited: bool = False) -> None:
        """`audited`: the operators' requests are written to `audit_log`."""
        self._directory, self._audited = directory, audited
        self._etcd = EtcdProcess(directory / "etcd")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.kubeconfig = directory / "kubeconfig"
        self.operator_kubeconfig = directory / "operator.kubeconfig"
        self.scoped_kubeconfig = directory / "scoped.kubeconfig"
        self.uninstall_kubeconfig = directory / "uninstall.kubeconfig"
        self.audit_log = directory / "audit.log"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when the API server is ready. Raises ControlPlaneNotAvailable."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_credentials()
        self._etcd.start()
        certificates = self._directory / "certificates"
        arguments = [
            binary("kube-apiserver"), f"--etcd-servers=http://{self._etcd.endpoint}", f"--secure-port={self._port}",
            "--bind-address=127.0.0.1", f"--cert-dir={certificates}", "--authorization-mode=RBAC",
            f"--token-auth-file={self._directory / 'tokens.csv'}", "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://tests", f"--service-account-key-file={self._directory / 'key.pub'}",
            f"--service-account-signing-key-file={self._directory / 'key.pem'}", "--allow-privileged=true",
            # Without a controller manager nobody makes service accounts' objects for pods.
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
            # Where it is on, owner references that block deletion need a right of their own.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            *([f"--audit-policy-file={self._directory / 'audit.yaml'}", f"--audit-log-path={self.audit_log}"] * self._audited),
        ]  # fmt: skip
        log = self._directory / "apiserver.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(arguments, stdout=output, stderr=output)
        _wait(f"{self.url}/readyz", self._process, log, TOKEN)
        self._write_kubeconfig(self.kubeconfig, TOKEN)
        self._write_kubeconfig(self.operator_kubeconfig, OPERATOR_TOKEN)
        self._write_kubeconfig(self.scoped_kubeconfig, SCOPED_TOKEN)
        self._write_kubeconfig(self.uninstall_kubeconfig, UNINSTALL_TOKEN)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # nothing of it is kept, and a planned stop takes a while
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None
        self._etcd.stop()

    def _write_credentials(self) -> None:
        accounts = (
            (OPERATOR_TOKEN, OPERATOR_USER),
            (SCOPED_TOKEN, SCOPED_USER),
            (UNINSTALL_TOKEN, UNINSTALL_USER),
        )
        tokens = [
            f'{TOKEN},admin,1,"system:masters"',
            *(f"{token},{user},{user}" for token, user in accounts),
        ]
        (self._directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        policy = {
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": [user for _, user in accounts]}, {"level": "None"}],
        }  # fmt: skip
        (self._directory / "audit.yaml").write_text(yaml.safe_dump(policy))
        key = [
            "openssl",
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-out",
            str(self._directory / "key.pem"),
        ]
        subprocess.run(key, check=True, capture_output=True)
        public = [
            "openssl",
            "pkey",
            "-in",
            str(self._directory / "key.pem"),
            "-pubout",
            "-out",
            str(self._directory / "key.pub"),
        ]
        subprocess.run(public, check=True, capture_output=True)

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        authority = (self._directory / "certificates" / "apiserver.crt").read_bytes()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "tests",
                    "context": {"cluster": "tests", "user": "admin", "namespace": "default"},
                }
            ],
            "current-context": "tests",
        }
        path.write_text(yaml.safe_dump(document))

    # --- talking to it ----------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        token: str = TOKEN,
        account: str = "",
    ) -> tuple[int, Any]:
        """One request; status and document. `account`: in the name of this service account, as
        `kubectl --as`."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": content_type,
            "Accept": "application/json",
        }
        if account:
            headers |= {"Impersonate-User": account, "Impersonate-Group": "system:authenticated"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=_trusting()) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def must(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """One request that has to succeed."""
        status, document = self.request(method, path, body, content_type)
        assert 200 <= status < 300, (method, path, status, document.get("message"))
        return document

    def kubectl(self, *arguments: str, text_input: str = "") -> subprocess.CompletedProcess[str]:
        command = [binary("kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(
            command, input=text_input, capture_output=True, text=True, check=False, timeout=240
        )

    def install_rights(self) -> None:
        """The chart's roles: the operator under test has these and no others."""
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": OPERATOR_NAMESPACE}})
        rendered = rendered_rights("magnetar", OPERATOR_NAMESPACE, "--set", EVERYWHERE)
        applied = self.kubectl("apply", "-f", "-", text_input=rendered)
        assert applied.returncode == 0, applied.stderr


def rendered_rights(release: str, namespace: str, *arguments: str) -> str:
    """The chart's roles of a release's operator."""
    # helm refuses to show a template that renders nothing.
    parts = (
        ["rbac"]
        if "rbac.readStorageClasses=false" in ",".join(arguments)
        else ["rbac", "storage-classes"]
    )
    only = [word for part in parts for word in ("--show-only", f"templates/{part}.yaml")]
    return rendered(release, namespace, *only, *arguments)


def rendered(release: str, namespace: str, *arguments: str) -> str:
    """The chart for a release."""
    chart = [
        binary("helm"),
        "template",
        release,
        str(ROOT / "charts/magnetar"),
        "--namespace",
        namespace,
    ]
    always = ["--set", "image.repository=example/magnetar", "--kube-version", "1.34.4"]
    return subprocess.run(
        [*chart, *always, *arguments], capture_output=True, text=True, check=True
    ).stdout


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, token: str | None) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=5, context=_trusting()
            ):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ControlPlaneNotAvailable(
                    f"{url} did not answer: {log.read_text()[-800:]}"
                ) from None
            time.sleep(0.05)


def is_ci() -> bool:
    return bool(os.environ.get("CI"))
