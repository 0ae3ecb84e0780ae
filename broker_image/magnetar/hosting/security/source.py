"""The security document of this process, as it is now.

Owns: `SecuritySource`: reading the document and the keys it names, and following their changes.
Imports: security, followed_files, clock, errors. Invariants: a broken document or key stops the
start; later it changes nothing, is logged once, and counts; keys and contents are never logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from magnetar.clock import Clock
from magnetar.errors import InvalidRequest
from magnetar.hosting.followed_files import Follower
from magnetar.security.document import (
    DOCUMENT_BYTES_MAX,
    SecurityDocument,
    TokenOptions,
    parse_document,
)
from magnetar.security.keys import (
    KEY_FILE_BYTES_MAX,
    SecretKey,
    VerifyingKey,
    secret_key,
    secret_keys,
)
from magnetar.security.passwords import USERS_FILE_BYTES_MAX, Passwords
from magnetar.security.tokens import TokenRules

log = structlog.get_logger(__name__)

OWN_KEY_BITS = 256
Contents = dict[str, bytes]
"""What was read, by the field that names the file."""


@dataclass(frozen=True, slots=True, repr=False)
class LoadedSecurity:
    """A document with its keys."""

    document: SecurityDocument
    token_rules: TokenRules | None
    passwords: Passwords | None
    internal_keys: tuple[SecretKey, ...]
    """Processes of the cluster make their tokens with the first one, and believe those of any."""
    authentication: tuple[object, ...]
    """Whatever decides who a client is, to be compared only."""


class SecuritySource:
    """The newest document that was sound; `changed` listeners learn of each."""

    def __init__(self, file: Path, clock: Clock, *, alone: bool) -> None:
        """Read everything. `alone`: no other process needs the internal key, so it may be left
        out. Raises InvalidRequest."""
        self._file, self._clock, self._alone = file, clock, alone
        self._own_key = SecretKey(
            clock.random_bits(OWN_KEY_BITS).to_bytes(OWN_KEY_BITS // 8, "big")
        )
        self._listeners: list[Callable[[], None]] = []
        self._follower = Follower("security", file=str(file))
        self.current, self._contents = self._load()

    @property
    def reloads_failed(self) -> int:
        return self._follower.failed

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever there is another document or another key."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Call it no more, if it was."""
        self._listeners = [known for known in self._listeners if known != listener]

    async def follow(self) -> None:
        """Read again and again, until cancelled."""

        def take(found: tuple[LoadedSecurity, Contents]) -> None:
            before, (self.current, self._contents) = self._contents, found
            if self._contents != before:
                log.info("security.changed", file=str(self._file))
                for listener in list(self._listeners):
                    listener()

        await self._follower.follow(self._load, take)

    def _load(self) -> tuple[LoadedSecurity, Contents]:
        contents: Contents = {}
        document = parse_document(
            _text(self._read(contents, "security", str(self._file), DOCUMENT_BYTES_MAX))
        )
        token = document.token
        rules = (
            TokenRules(self._token_key(contents, token), token.role_claim, token.audience)
            if token is not None
            else None
        )
        if document.internal_key_file:
            field = "internal.keyFile"
            internal = secret_keys(
                field, self._read(contents, field, document.internal_key_file, KEY_FILE_BYTES_MAX)
            )
        elif self._alone:
            internal = (self._own_key,)
        else:
            raise InvalidRequest(
                "security: internal.keyFile is empty, but the processes of a cluster ask each "
                "other; name a file of 32 random bytes or more "
                "that all of them have"
            )
        token_material = rules.key.material if rules is not None else None
        if any(key.material == token_material for key in internal):
            raise InvalidRequest(
                "security: internal.keyFile and authentication.token.secretKeyFile hold the same "
                "key: an issuer of clients' tokens could issue those of "
                "the cluster's processes; make another with magnetar token create-secret-key"
            )
        passwords = None
        if document.users_file:
            field = "authentication.basic.usersFile"
            passwords = Passwords(
                self._read(contents, field, document.users_file, USERS_FILE_BYTES_MAX)
            )
        keys = tuple(
            data for field, data in contents.items() if field.startswith("authentication.")
        )
        named = (
            document.anonymous_role,
            document.client_certificates,
            document.token,
            document.users_file,
            document.proxy_roles,
        )
        loaded = LoadedSecurity(document, rules, passwords, internal, (*named, *keys))
        return loaded, contents

    def _token_key(self, contents: Contents, token: TokenOptions) -> VerifyingKey:
        if token.secret_key_file:
            field = "authentication.token.secretKeyFile"
            return secret_key(
                field, self._read(contents, field, token.secret_key_file, KEY_FILE_BYTES_MAX)
            )
        from magnetar.security.signatures import public_key

        field = "authentication.token.publicKeyFile"
        return public_key(
            field, self._read(contents, field, token.public_key_file, KEY_FILE_BYTES_MAX)
        )

    def _read(self, contents: Contents, field: str, name: str, limit: int) -> bytes:
        try:
            with Path(name).open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise InvalidRequest(
                f"{field}: {name} cannot be read: {error.strerror}; name a file that this process "
                "may read"
            ) from error
        if len(data) > limit:
            raise InvalidRequest(
                f"{field}: {name} has more than {limit} bytes; name the right file"
            )
        contents[field] = data
        return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            "security: the document is not text in UTF-8; see docs/security.md for its shape"
        ) from None
