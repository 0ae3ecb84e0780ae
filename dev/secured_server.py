"""A standalone server with TLS and tokens, as a child process.

Owns: its security document, certificate and keys in a directory; tokens of roles; REST as a super
user. Imports: dev's processes, certificates, security. Invariant: the keys are for tests and trials
on the loopback interface.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dev.certificates import Authority
from dev.server_process import ServerProcess
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import make

KEY, INTERNAL_KEY = SecretKey(b"k" * 32), SecretKey(b"i" * 32)
"""Of clients' tokens, and of those of the cluster's processes."""
ADMIN, PASSWORD = "admin", "correct horse"
PASSWORD_HASH = "$6$saltsalt$hRM5XZ86KXEw9UOmjigeVqFgULtFB2sgpC9lXQDfMib3Zgw7mEiUvBJI2EplzfAqxL5Vvwp2scFtv/uamSo5z0"
"""A super user, who may come by a password as well."""
DOCUMENT = """
authentication: {{token: {{secretKeyFile: {0}/key}}, tls: true}}
authorization: {{superUserRoles: [admin]}}
"""
REST_TIMEOUT_S = 60.0


def token(role: str, seconds: float = 3600, key: SecretKey = KEY) -> str:
    """A token for a role, good for so long."""
    return make(key, "HS256", {"sub": role, "exp": time.time() + seconds})


def asked(
    broker: ServerProcess, authority: Authority, path: str, method: str = "GET", body: Any = None
) -> Any:
    """The JSON of a broker's answer to a super user. Raises OSError, HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{broker.https_url}{path}",
        data,
        {"Authorization": f"Bearer {token(ADMIN)}"},
        method=method,
    )
    context = ssl.create_default_context(cafile=str(authority.file))
    with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S, context=context) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


class SecuredServer:
    """One server; `process` is to be started and stopped."""

    def __init__(
        self,
        directory: Path,
        *,
        plain: str = "internal",
        environment: Mapping[str, str] = MappingProxyType({}),
        open_files: int | None = None,
        program: Sequence[str] = ("magnetar",),
    ) -> None:
        """`plain`: what the ports without TLS are for. The others are those of the process."""
        self.directory, self.authority = directory, Authority(directory / "ca")
        (directory / "key").write_bytes(KEY.secret)
        (directory / "internal").write_bytes(INTERNAL_KEY.secret)
        (directory / "users").write_text(f"{ADMIN}:{PASSWORD_HASH}\n")
        document = (
            DOCUMENT.format(directory).replace(
                "tls: true", f"tls: true, basic: {{usersFile: {directory}/users}}"
            )
            + f"internal: {{keyFile: {directory}/internal, caFile: {self.authority.file}}}\n"
        )
        (directory / "security.yaml").write_text(document)
        self.process = ServerProcess(
            directory / "server",
            environment={
                "MAGNETAR_SECURITY": str(directory / "security.yaml"),
                "MAGNETAR_TLS": str(self.authority.server(clients=True)),
                "MAGNETAR_PLAIN": plain,
                **environment,
            },
            open_files=open_files,
            program=program,
        )

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Ask as a super user. Raises OSError, HTTPError."""
        return asked(self.process, self.authority, path, method, body)

    def permit(self, role: str, *actions: str, namespace: str = "public/default") -> None:
        """Grant actions to a role on a namespace; none revokes."""
        path = f"/admin/v2/namespaces/{namespace}/permissions/{role}"
        self.rest("POST" if actions else "DELETE", path, list(actions) or None)
