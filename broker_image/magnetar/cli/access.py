"""What the command line shows to servers, and whom it believes.

Owns: `Access`: a token, a certificate and an authority, for REST and for clients. Imports: ssl,
client (lazily), failures. Invariants: a token file is read when it is needed, so that one that is
renewed is used; nothing of a token is ever printed.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.cli.failures import WrongUsage

if TYPE_CHECKING:
    from magnetar.client import Client


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The options --token, --token-file, --tls-ca, --tls-cert and --tls-key, as they were given
    ("" = not)."""

    token: str = ""
    token_file: str = ""
    authority: str = ""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise WrongUsage(
                "--tls-cert, --tls-key: one of them is missing",
                "name the files of both, or neither",
            )

    def shown_token(self) -> str:
        """The token of this moment; "" = none. Raises WrongUsage."""
        if self.token or not self.token_file:
            return self.token
        try:
            return Path(self.token_file).read_text().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise WrongUsage(
                f"--token-file: {self.token_file} cannot be read: {why}",
                "name a file with a token in it",
            ) from error

    def tls(self) -> ssl.SSLContext:
        """For connections by TLS. Raises WrongUsage."""
        named = "--tls-ca"
        try:
            context = ssl.create_default_context(cafile=self.authority or None)
            if self.certificate:
                named = "--tls-cert, --tls-key"
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl.SSLError is one
            why = getattr(error, "reason", None) or error.strerror or type(error).__name__
            raise WrongUsage(
                f"{named}: the files cannot be used: {why}",
                "name files in PEM, and a key that matches its certificate",
            ) from None
        return context

    def client(self, service_url: str) -> Client:
        """A client that shows this."""
        from magnetar.client import Client
        from magnetar.client.connection import Credentials

        tls = self.tls() if service_url.startswith("pulsar+ssl:") else None
        if self.shown_token():
            return Client(service_url, token=self.shown_token, tls=tls)
        return Client(
            service_url, credentials=Credentials("tls") if self.certificate else None, tls=tls
        )


ANYBODY = Access()
"""Who shows nothing."""
