"""How clients get to a process.

Owns: `AccessOptions`, what the command line says about security. Imports: errors.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import InvalidRequest

OPEN, INTERNAL, CLOSED = "open", "internal", "closed"
DEFAULT_TLS_PORT, DEFAULT_HTTPS_PORT = 6651, 8443


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """`security`: the file with the security document ("" = any client may do everything). `tls`:
    the directory with certificate and key ("" = no TLS); the ports are those that it is spoken on.
    `plain`: what the ports without TLS are for.
    """

    security: str = ""
    tls: str = ""
    tls_port: int = DEFAULT_TLS_PORT
    https_port: int = DEFAULT_HTTPS_PORT
    plain: str = OPEN

    def check(self) -> None:
        """Raises InvalidRequest for a combination that would admit no client, or every
        one."""
        if self.plain not in (OPEN, INTERNAL, CLOSED):
            raise InvalidRequest(
                f"plain: {self.plain!r} is not known; use {OPEN}, {INTERNAL} or {CLOSED}"
            )
        if self.plain != OPEN and not self.tls:
            raise InvalidRequest(
                f"plain: {self.plain} leaves clients no port without --tls; name a directory with "
                "tls.crt and tls.key"
            )
        if self.plain == INTERNAL and not self.security:
            raise InvalidRequest(
                f"plain: {INTERNAL} needs --security, whose internal.keyFile makes the tokens of "
                "the cluster"
            )
