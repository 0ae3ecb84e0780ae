"""A secured server and its clients, for tests."""

from __future__ import annotations

from typing import Any

import pulsar

from dev.secured_server import SecuredServer
from tests.clients.conftest import QUIET


class Secured(SecuredServer):
    """A standalone server with TLS and tokens, and the official Python client."""

    def client(self, authentication: Any, timeout_s: int = 60) -> pulsar.Client:
        """The official Python client."""
        return pulsar.Client(
            self.process.service_url_tls,
            authentication=authentication,
            tls_trust_certs_file_path=str(self.authority.file),
            operation_timeout_seconds=timeout_s,
            logger=QUIET,
        )
