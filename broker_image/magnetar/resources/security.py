"""`spec.auth` and `spec.tls`: who clients are, what they may do, and how connections are protected.

Owns: their fields, limits and rules. Imports: resources.base. Invariants: a spec holds no key: it
names secrets of the resource's own namespace; what cannot let anybody in is refused, because a
cluster that no client reaches is never meant.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from magnetar.resources.base import Model, Rule

ROLES_MAX = 100
Roles = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=ROLES_MAX)
]


class SecretEntry(Model):
    """One entry of a secret in the resource's own namespace."""

    name: str = Field(min_length=1, max_length=253, description="The secret.")
    key: str = Field(
        min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Its entry."
    )


class Tokens(Model):
    """JSON web tokens: exactly one of `secretKey` and `publicKey` says with which key they are
    checked."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretKey) != has(self.publicKey)",
            "tokens: set exactly one of secretKey and publicKey",
            lambda tokens: (tokens.secret_key is None) != (tokens.public_key is None),
        ),
    )

    secret_key: SecretEntry | None = Field(
        default=None,
        description="Secret key of HS256, HS384 or HS512: at least 32 bytes, raw or as Pulsar "
        "writes them.",
    )
    public_key: SecretEntry | None = Field(
        default=None,
        description="Public key of RS or ES algorithms, PEM or DER; the issuer of tokens keeps "
        "the private one.",
    )
    role_claim: str = Field(
        default="sub", min_length=1, max_length=253, description="The claim that holds the role."
    )
    audience: str = Field(
        default="",
        max_length=253,
        description="What a token's `aud` must hold; empty = it is not checked.",
    )


class Auth(Model):
    """Who clients are and what they may do. Without it every client may do everything."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.tokens) || has(self.users) || self.clientCertificates || "
            "self.anonymousRole != ''",
            "auth: no client would be admitted: set tokens, users, clientCertificates or "
            "anonymousRole",
            lambda auth: (
                auth.tokens is not None
                or auth.users is not None
                or auth.client_certificates
                or auth.anonymous_role != ""
            ),
        ),
        Rule(
            "!(self.anonymousRole in self.superUserRoles)",
            "auth: anonymousRole is one of superUserRoles, which lets every client do everything; "
            "choose another role",
            lambda auth: auth.anonymous_role not in auth.super_user_roles,
        ),
        Rule(
            "self.proxyRoles.all(role, !(role in self.superUserRoles))",
            "auth: a role is in proxyRoles and superUserRoles; a proxy needs no rights of its own",
            lambda auth: not set(auth.proxy_roles) & set(auth.super_user_roles),
        ),
    )

    anonymous_role: str = Field(
        default="",
        max_length=253,
        description="Role of clients that show neither token nor certificate; empty = they are "
        "refused.",
    )
    tokens: Tokens | None = Field(default=None, description="Clients may show JSON web tokens.")
    users: SecretEntry | None = Field(
        default=None,
        description="Clients may show a user and a password (Pulsar's basic authentication): an "
        "entry with lines user:hash, as htpasswd -m and openssl passwd -6 write the hash. The "
        "user is the role.",
    )
    client_certificates: bool = Field(
        default=False,
        description="Clients may show certificates that ca.crt of the secret of spec.tls has "
        "signed; the common name is the role.",
    )
    authorization: bool = Field(
        default=True,
        description="Roles need permissions (tenants' admins, permissions of namespaces and "
        "topics); false: every known role may do everything.",
    )
    super_user_roles: Roles = Field(
        default=(),
        description="Roles that may do everything.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    proxy_roles: Roles = Field(
        default=(),
        description="Roles of proxies, which speak for the clients behind them.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    open_metrics: bool = Field(
        default=True,
        description="Every client that reaches the port may read metrics; false: a super user's token is "
        "needed for them, too.",
    )


class Tls(Model):
    """TLS for clients: Pulsar on 6651, REST on 8443. A renewed certificate is used by new
    connections, without a restart."""

    secret_name: str = Field(
        min_length=1,
        max_length=253,
        description="A secret of type kubernetes.io/tls in the same namespace: tls.crt (with the "
        "chain), tls.key, and ca.crt for client "
        "certificates and authorities of your own. cert-manager writes them so.",
    )
    plain: Literal["Open", "Internal", "Closed"] = Field(
        default="Open",
        description="The ports without TLS: Open for every client; Internal for probes, metrics and "
        "the cluster's own processes; Closed. "
        "A cluster that exists gets TLS with Open first.",
    )
