"""What the command line shows to servers, and whom it believes.

Owns: `Access`: a token or a user and a password, a certificate and an authority, for REST and for
clients. Imports: ssl, client (lazily), failures. Invariants: a file with a token or a password is
read when it is needed, so that one that is renewed is used; nothing of either is ever printed.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.cli.failures import WrongUsage

if TYPE_CHECKING:
    from magnetar.client import Client

PASSWORD = "MAGNETAR_PASSWORD"
"""Only the environment may hold the password itself: every user sees arguments in `ps`."""


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The options --token, --token-file, --tls-ca, --tls-cert, --tls-key, --user and
    --password-file, as they were given ("" = not), and MAGNETAR_PASSWORD."""

    token: str = ""
    token_file: str = ""
    authority: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise WrongUsage(
                "--tls-cert, --tls-key: one of them is missing",
                "name the files of both, or neither",
            )
        if self.user or self.password_file or self.password:
            self._check_user()

    def _check_user(self) -> None:
        """Raises WrongUsage."""
        source = "--password-file" if self.password_file else PASSWORD
        if not self.user:
            raise WrongUsage(
                f"{source}: a password is given, but no user",
                "name the user by --user or MAGNETAR_USER, or leave the password out",
            )
        if ":" in self.user or not self.user.isprintable():
            raise WrongUsage(
                f"--user: {self.user!r} has a colon or a control character",
                "name a user of the server's users file",
            )
        if self.token or self.token_file:
            raise WrongUsage(
                f"--user: {self.user!r} is given, and a token as well",
                "give one of both; MAGNETAR_TOKEN, MAGNETAR_TOKEN_FILE and MAGNETAR_USER count too",
            )
        if self.password_file and self.password:
            raise WrongUsage(
                f"--password-file: {self.password_file} is given, and {PASSWORD} as well",
                f"give one of both; unset {PASSWORD} to use the file",
            )
        if not (self.password_file or self.password):
            raise WrongUsage(
                f"--user: {self.user!r} comes without a password",
                f"name its file by --password-file or {PASSWORD}_FILE, or set {PASSWORD}",
            )

    def shown_token(self) -> str:
        """The token of this moment; "" = none. Raises WrongUsage."""
        if self.token or not self.token_file:
            return self.token
        return _read("--token-file", self.token_file, "a token").strip()

    def shown_password(self) -> bytes:
        """The user and the password of this moment, with a colon between them; b"" = no user.
        Raises WrongUsage."""
        if not self.user:
            return b""
        password = self.password
        if self.password_file:
            password = _read("--password-file", self.password_file, "a password")
            password = password.removesuffix("\n").removesuffix("\r")
        if not password or "\n" in password:
            held = "more than one line" if password else "no password"
            raise WrongUsage(
                f"{f'--password-file: {self.password_file}' if self.password_file else PASSWORD} "
                f"has {held}",
                "write the password into it, in one line",
            )
        return f"{self.user}:{password}".encode(errors="surrogateescape")

    def headers(self) -> dict[str, str]:
        """Of a request over HTTP. Raises WrongUsage."""
        if self.user:
            shown = base64.b64encode(self.shown_password()).decode()
            return {"Authorization": f"Basic {shown}"}
        token = self.shown_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

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
        credentials = Credentials("tls") if self.certificate else None
        if self.shown_password():
            credentials = Credentials("basic", self.shown_password)
        return Client(service_url, credentials=credentials, tls=tls)


def _read(option: str, file: str, held: str) -> str:
    """The text of a file that an option names. Raises WrongUsage."""
    try:
        return Path(file).read_text()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise WrongUsage(
            f"{option}: {file} cannot be read: {why}", f"name a file with {held} in it"
        ) from None


ANYBODY = Access()
"""Who shows nothing."""
