"""The security document of a process.

Owns: the shape of `--security FILE` and its errors. Imports: PyYAML, errors, authorization.
Invariants: a field that is unknown, has the wrong type or contradicts another is refused by its
full name, never ignored: a typing mistake must not open a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.security.authorization import CLUSTER_ROLES

DOCUMENT_BYTES_MAX = 256 << 10
ROLES_MAX = 10_000
ROLE_LENGTH_MAX = 512


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """How tokens are checked; exactly one of the key files is set. `audience` "" = not checked."""

    secret_key_file: str = ""
    public_key_file: str = ""
    role_claim: str = "sub"
    audience: str = ""


@dataclass(frozen=True, slots=True)
class SecurityDocument:
    """What a process is configured with about clients and the other processes of its cluster."""

    anonymous_role: str = ""
    token: TokenOptions | None = None
    client_certificates: bool = False
    users_file: str = ""
    authorization: bool = True
    super_user_roles: frozenset[str] = frozenset()
    proxy_roles: frozenset[str] = frozenset()
    open_metrics: bool = True
    internal_key_file: str = ""
    internal_ca_file: str = ""


def parse_document(text: str) -> SecurityDocument:
    """The document in YAML. Raises InvalidRequest naming the field, what it holds and what it
    should hold."""
    import yaml  # not for who only needs the shapes

    if len(text.encode()) > DOCUMENT_BYTES_MAX:
        raise InvalidRequest(
            f"security: the document has more than {DOCUMENT_BYTES_MAX} bytes; shorten its lists "
            "of roles"
        )
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidRequest(
            f"security: the document is not YAML ({type(error).__name__}); see docs/security.md "
            "for its shape"
        ) from None
    root = _Section(
        "", found if found is not None else {}, ("authentication", "authorization", "internal")
    )
    authentication = root.section("authentication", ("anonymousRole", "token", "tls", "basic"))
    authorization = root.section(
        "authorization", ("enabled", "superUserRoles", "proxyRoles", "openMetrics")
    )
    internal = root.section("internal", ("keyFile", "caFile"))
    document = SecurityDocument(
        anonymous_role=authentication.text("anonymousRole", ""),
        token=_token(authentication),
        client_certificates=authentication.flag("tls", False),
        users_file=_users_file(authentication),
        authorization=authorization.flag("enabled", True),
        super_user_roles=authorization.roles("superUserRoles"),
        proxy_roles=authorization.roles("proxyRoles"),
        open_metrics=authorization.flag("openMetrics", True),
        internal_key_file=internal.text("keyFile", ""),
        internal_ca_file=internal.text("caFile", ""),
    )
    _check(document)
    return document


def _users_file(authentication: _Section) -> str:
    if not authentication.has("basic"):
        return ""
    found = authentication.section("basic", ("usersFile",)).text("usersFile", "")
    if not found:
        raise InvalidRequest(
            "security: authentication.basic.usersFile is empty; name a file of lines user:hash"
        )
    return found


def _token(authentication: _Section) -> TokenOptions | None:
    if not authentication.has("token"):
        return None
    token = authentication.section(
        "token", ("secretKeyFile", "publicKeyFile", "roleClaim", "audience")
    )
    options = TokenOptions(
        token.text("secretKeyFile", ""),
        token.text("publicKeyFile", ""),
        token.text("roleClaim", "sub"),
        token.text("audience", ""),
    )
    if bool(options.secret_key_file) == bool(options.public_key_file):
        raise InvalidRequest(
            "security: authentication.token needs one of secretKeyFile and publicKeyFile, and not "
            "both; name one file"
        )
    if not options.role_claim:
        raise InvalidRequest(
            "security: authentication.token.roleClaim is empty; name a claim, or leave it out for "
            "sub"
        )
    return options


def _check(document: SecurityDocument) -> None:
    named = {
        "anonymousRole": [document.anonymous_role],
        "superUserRoles": document.super_user_roles,
        "proxyRoles": document.proxy_roles,
    }
    for field, roles in named.items():
        for role in roles:
            if role.startswith(CLUSTER_ROLES):
                raise InvalidRequest(
                    f"security: {field} names {role!r}; roles that begin with {CLUSTER_ROLES} are "
                    "the cluster's own"
                )
    if both := document.proxy_roles & document.super_user_roles:
        raise InvalidRequest(
            f"security: authorization.proxyRoles and superUserRoles both name {sorted(both)[0]!r}; "
            "a proxy needs no rights of its own"
        )
    if document.anonymous_role and document.anonymous_role in document.super_user_roles:
        raise InvalidRequest(
            f"security: authentication.anonymousRole {document.anonymous_role!r} is one of "
            "authorization.superUserRoles: "
            "that lets everybody do everything; choose another role"
        )
    ways = (document.token, document.client_certificates, document.users_file)
    if not (any(ways) or document.anonymous_role):
        raise InvalidRequest(
            "security: authentication has neither token, tls, basic nor anonymousRole: no client "
            "could connect; set one of them"
        )


class _Section:
    """One mapping of the document, whose fields are known."""

    def __init__(self, path: str, found: Any, fields: tuple[str, ...]) -> None:
        self._path = path
        if not isinstance(found, Mapping):
            raise InvalidRequest(
                f"security: {path or 'the document'} is {_kind(found)}; write a mapping of "
                f"{', '.join(fields)}"
            )
        for name in found:
            if name not in fields:
                raise InvalidRequest(
                    f"security: {self._name(str(name)[:80])} is not known; use {', '.join(fields)}"
                )
        self._found: Mapping[str, Any] = found

    def _name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def has(self, field: str) -> bool:
        return self._found.get(field) is not None

    def section(self, field: str, fields: tuple[str, ...]) -> _Section:
        found = self._found.get(field)
        return _Section(self._name(field), {} if found is None else found, fields)

    def text(self, field: str, default: str) -> str:
        found = self._found.get(field, default)
        if not isinstance(found, str):
            raise InvalidRequest(
                f"security: {self._name(field)} is {_kind(found)}; write text, in quotes if need be"
            )
        return found

    def flag(self, field: str, default: bool) -> bool:
        found = self._found.get(field, default)
        if not isinstance(found, bool):
            raise InvalidRequest(
                f"security: {self._name(field)} is {_kind(found)}; write true or false"
            )
        return found

    def roles(self, field: str) -> frozenset[str]:
        found = self._found.get(field)
        if found is None:
            return frozenset()
        if not isinstance(found, list) or not all(
            isinstance(role, str) and 0 < len(role) <= ROLE_LENGTH_MAX for role in found
        ):
            raise InvalidRequest(
                f"security: {self._name(field)} is not a list of roles; write [role, role], each "
                "with 1 to 512 characters"
            )
        if len(found) > ROLES_MAX:
            raise InvalidRequest(
                f"security: {self._name(field)} has {len(found)} roles, more than {ROLES_MAX}; "
                "leave some out"
            )
        return frozenset(found)


def _kind(found: Any) -> str:
    """The type of a value for a message; never the value, which may be a secret that was put
    into the wrong place."""
    return "empty" if found is None else f"of type {type(found).__name__}"
