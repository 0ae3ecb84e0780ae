"""Who shows a user and a password.

Owns: `BasicChecks`, which remembers what was right and limits how often it hashes. Imports:
security.passwords, topics.rates, errors. Pure: time comes in. Invariants: peers that have shown nothing right yet
make this process hash `CHECKS_PER_S_MAX` times a second at most, whatever they send; a password is
remembered as a keyed digest only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from magnetar.errors import AuthenticationFailed, ServiceNotReady
from magnetar.policies import Rate
from magnetar.security.passwords import Passwords
from magnetar.topics.rates import TokenBucket

METHOD = "basic"
CHECKS_PER_S_MAX = 20
"""A hash takes three to fifteen milliseconds."""
REMEMBERED_MAX = 10_000
SHOWN_BYTES_MAX = 2048


class BasicChecks:
    """Answers from the users of the moment; `forget` when there are others."""

    def __init__(self, key: bytes) -> None:
        """`key`: random, by which what was right is remembered."""
        self._key = key
        self._right: dict[bytes, str] = {}
        self._checks = TokenBucket(Rate(messages=CHECKS_PER_S_MAX), 0.0)

    def forget(self) -> None:
        self._right.clear()

    def user(self, passwords: Passwords, shown: bytes, now: float) -> str:
        """The user of `user:password`, which is right. `now` in seconds on any clock. Raises
        AuthenticationFailed, or ServiceNotReady while too many were tried."""
        digest = hmac.digest(self._key, shown, hashlib.sha256)
        if (known := self._right.get(digest)) is not None:
            return known
        text, _, password = shown.partition(b":")
        try:
            user = text.decode()
        except UnicodeDecodeError:
            user = ""
        if not user or not password or len(shown) > SHOWN_BYTES_MAX:
            raise AuthenticationFailed(
                "Basic authentication needs user:password, of at most "
                f"{SHOWN_BYTES_MAX} bytes, and both of them"
            )
        self._take(now)
        if not passwords.check(user, password):
            raise AuthenticationFailed("Unknown user or wrong password")
        if len(self._right) >= REMEMBERED_MAX:
            del self._right[next(iter(self._right))]
        self._right[digest] = user
        return user

    def _take(self, now: float) -> None:
        """Count one hash."""
        if self._checks.wait_s(now) > 0:
            raise ServiceNotReady(
                f"More than {CHECKS_PER_S_MAX} new passwords a second are tried here; connect "
                "again in a moment"
            )
        self._checks.take(1, 0)


def of_header(shown: str) -> bytes:
    """What stands behind `Basic` in an HTTP header. Raises AuthenticationFailed."""
    try:
        return base64.b64decode(shown, validate=True)
    except ValueError:
        raise AuthenticationFailed(
            "The header Authorization: Basic is not in base64; send user:password in it"
        ) from None
