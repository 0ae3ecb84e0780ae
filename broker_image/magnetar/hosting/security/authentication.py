"""Who a peer is.

Owns: `Authenticator`: the principal behind what CONNECT, AUTH_RESPONSE or an HTTP request shows,
and the tokens by which processes of a cluster know each other. Imports: security, source, clock,
errors. Source: Pulsar's AuthenticationService: an unknown method is the anonymous role if there is
one. Invariants: what was shown and is wrong is refused, never anonymous; an internal token is
believed under its own method and key only, and only for as long as processes make them; no client
has a role of the cluster's own; a certificate is believed until its end.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from magnetar.clock import Clock
from magnetar.errors import AuthenticationFailed, NotAuthorized
from magnetar.hosting.security.basic import METHOD as BASIC_METHOD
from magnetar.hosting.security.basic import BasicChecks, of_header
from magnetar.hosting.security.source import SecuritySource
from magnetar.hosting.tls import PeerCertificate
from magnetar.security.authorization import (
    CLUSTER_ROLES,
    INTERNAL,
    INTERNAL_METHOD,
    INTERNAL_ROLE,
    Principal,
)
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import TokenRules, make, verify

TOKEN_METHOD, TLS_METHOD = "token", "tls"
BEARER = "bearer"
INTERNAL_TOKEN_S = 60.0
"""How long an internal token is good for: longer than a request takes and than clocks of one
cluster differ."""
INTERNAL_ALGORITHM = "HS256"
INTERNAL_AUDIENCE = "magnetar"
CLOCKS_APART_S = 300.0
"""By how much the clocks of a cluster's processes may differ."""
VERIFIED_MAX = 1000
"""Tokens of HTTP requests whose signature is remembered: tools send the same one each time."""


class Authenticator:
    """Answers from the document of the moment."""

    def __init__(
        self, source: SecuritySource, clock: Clock, *, plain_is_internal: bool = False
    ) -> None:
        """`plain_is_internal`: ports without TLS answer only processes of the cluster."""
        self.source, self._clock, self._plain_is_internal = source, clock, plain_is_internal
        self._verified: dict[bytes, Principal] = {}
        self._basic = BasicChecks(clock.random_bits(256).to_bytes(32, "big"))
        source.listen(self._verified.clear)
        source.listen(self._basic.forget)

    def now_s(self) -> float:
        """Unix time."""
        return self._clock.wall_ms() / 1000

    def principal(self, method: str, data: bytes, certificate: PeerCertificate) -> Principal:
        """Who shows `data` under `method`, and `certificate` by TLS. Raises
        AuthenticationFailed."""
        loaded = self.source.current
        if method == INTERNAL_METHOD:
            return self._internal(data, loaded.internal_keys)
        if method == TOKEN_METHOD and loaded.token_rules is not None:
            claims = verify(data, loaded.token_rules, self.now_s())
            return Principal(_client_role(claims.role), expires_s=claims.expires_s)
        if method == BASIC_METHOD and loaded.passwords is not None:
            user = self._basic.user(loaded.passwords, data, self._clock.monotonic())
            return Principal(_client_role(user))
        if loaded.document.client_certificates:
            if certificate.common_name:
                return self._of_certificate(certificate)
            if method == TLS_METHOD:
                raise AuthenticationFailed("Client unable to authenticate with TLS certificate")
        if loaded.document.anonymous_role:
            return Principal(loaded.document.anonymous_role)
        if not method or method == "none":
            raise AuthenticationFailed("No credentials passed, and there is no anonymous role")
        raise AuthenticationFailed(f"Unsupported authentication method: {method[:40]!r}")

    def _of_certificate(self, certificate: PeerCertificate) -> Principal:
        """A connection by a certificate ends with it, and an HTTP connection that outlives it is
        refused."""
        if certificate.expires_s is not None and self.now_s() >= certificate.expires_s:
            raise AuthenticationFailed(
                "The client's certificate has expired; renew it and connect again"
            )
        return Principal(_client_role(certificate.common_name), expires_s=certificate.expires_s)

    def _internal(self, data: bytes, keys: tuple[SecretKey, ...]) -> Principal:
        """Another process of the cluster, whichever of the keys it has. Raises
        AuthenticationFailed."""
        for number, key in enumerate(keys, start=1):
            try:
                claims = verify(data, TokenRules(key, audience=INTERNAL_AUDIENCE), self.now_s())
                break
            except AuthenticationFailed:
                if number == len(keys):
                    raise
        latest_s = self.now_s() + INTERNAL_TOKEN_S + CLOCKS_APART_S
        if claims.role != INTERNAL_ROLE or claims.expires_s is None or claims.expires_s > latest_s:
            raise AuthenticationFailed(
                "An internal token names another role, or is good for longer than processes make "
                "them"
            )
        return INTERNAL

    def check_port(self, principal: Principal, *, tls: bool) -> None:
        """Raises NotAuthorized for a client on a port that is none for clients."""
        if self._plain_is_internal and not tls and not principal.internal:
            raise NotAuthorized(
                "This port is for the processes of the cluster; connect by TLS: pulsar+ssl:// or "
                "https://"
            )

    def behind_proxy(self, principal: Principal, original: str) -> Principal:
        """The principal of a peer that speaks for `original` ("" = for itself). Raises
        NotAuthorized, in Pulsar's words.

        A process of the cluster may act for any role, and keeps its own rights.
        """
        proxies = self.source.current.document.proxy_roles
        if (
            not principal.internal
            and principal.role not in proxies
            and original in ("", principal.role)
        ):
            return principal
        if principal.internal:
            return replace(principal, original=original)
        if principal.role not in proxies or not original or original in proxies:
            raise NotAuthorized("Invalid roles.")
        _client_role(original)
        return replace(principal, original=original)

    def of_request(
        self, authorization: str, method: str, certificate: PeerCertificate
    ) -> Principal:
        """Who sends an HTTP request with these headers. Raises AuthenticationFailed."""
        scheme, _, shown = authorization.partition(" ")
        data = shown.strip().encode("latin-1", "replace")
        if scheme.lower() == INTERNAL_METHOD:
            return self.principal(INTERNAL_METHOD, data, certificate)
        if scheme.lower() == BASIC_METHOD and self.source.current.passwords is not None:
            return self.principal(BASIC_METHOD, of_header(shown.strip()), certificate)
        if scheme.lower() != BEARER:
            named = method if method not in (TOKEN_METHOD, BASIC_METHOD) else ""
            return self.principal(named, b"", certificate)
        digest = hashlib.sha256(data).digest()
        known = self._verified.get(digest)
        if known is not None and (known.expires_s is None or self.now_s() < known.expires_s):
            return known
        found = self.principal(TOKEN_METHOD, data, certificate)
        if len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = found
        return found

    def internal_token(self) -> str:
        """A token by which another process of the cluster knows this one, for the next minute."""
        payload = {
            "sub": INTERNAL_ROLE,
            "aud": INTERNAL_AUDIENCE,
            "exp": int(self.now_s() + INTERNAL_TOKEN_S),
        }
        return make(self.source.current.internal_keys[0], INTERNAL_ALGORITHM, payload)


def _client_role(role: str) -> str:
    """The role of a client. Raises AuthenticationFailed for one that stands for the cluster's
    own processes, or is no line of text."""
    if role.startswith(CLUSTER_ROLES) or not role.isprintable():
        raise AuthenticationFailed(
            f"Role {role[:40]!r} is not for clients: it begins with {CLUSTER_ROLES}, or has "
            "control characters"
        )
    return role
