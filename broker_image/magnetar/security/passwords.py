"""Passwords of users, as Pulsar's AuthenticationProviderBasic has them.

Owns: `Passwords`, the users of a file in htpasswd's form, and the hashes that it may hold: MD5 as
Apache writes it ($apr1$) and as crypt does ($1$), SHA-256 ($5$) and SHA-512 ($6$) of crypt.
Imports: hashlib, hmac, errors. Pure. Source: Poul-Henning Kamp's md5crypt, Ulrich Drepper's
SHA-crypt. Invariants: a hash is compared in constant time; an unknown user costs as much as a known
one; what a line holds never comes into an error.

The standard library's `crypt` goes with Python 3.13, so the two schemes stand here. Hashes with a
DES salt or of bcrypt are refused: Pulsar does not know bcrypt, and DES keeps eight characters.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from magnetar.errors import InvalidRequest

USERS_MAX = 10_000
USERS_FILE_BYTES_MAX = 1 << 20
NAME_LENGTH_MAX = 512
PASSWORD_BYTES_MAX = 512
ROUNDS, ROUNDS_MIN, ROUNDS_MAX = 5_000, 1_000, 20_000
"""Of SHA-crypt; more would hold up others, for a peer that has shown nothing yet."""
_ALPHABET = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MD5_ORDER = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))
_MAKE_ONE = "make it with htpasswd -nm USER, or openssl passwd -6"


@dataclass(frozen=True, slots=True, repr=False)
class _Scheme:
    """How a password becomes the text of a line."""

    salt_max: int
    hashed: Callable[[bytes, bytes, int], bytes]


def _text(value: int, length: int) -> bytes:
    """Six bits per character, the lowest first."""
    return bytes(_ALPHABET[(value >> 6 * at) & 63] for at in range(length))


def _group(digest: bytes, high: int, middle: int, low: int) -> bytes:
    return _text(digest[high] << 16 | digest[middle] << 8 | digest[low], 4)


def _md5(magic: bytes) -> Callable[[bytes, bytes, int], bytes]:
    def hashed(password: bytes, salt: bytes, rounds: int) -> bytes:
        del rounds  # always a thousand
        inner = hashlib.md5(password + salt + password).digest()
        start = password + magic + salt
        start += (inner * (len(password) // 16 + 1))[: len(password)]
        left = len(password)
        while left:
            start += b"\0" if left & 1 else password[:1]
            left >>= 1
        digest = hashlib.md5(start).digest()
        for number in range(1000):
            turn = password if number & 1 else digest
            turn += salt if number % 3 else b""
            turn += password if number % 7 else b""
            turn += digest if number & 1 else password
            digest = hashlib.md5(turn).digest()
        return b"".join(_group(digest, *order) for order in _MD5_ORDER) + _text(digest[11], 2)

    return hashed


def _repeated(digest: bytes, length: int) -> bytes:
    return (digest * (length // len(digest) + 1))[:length]


def _sha(make: Callable[[bytes], hashlib._Hash]) -> Callable[[bytes, bytes, int], bytes]:
    def hashed(password: bytes, salt: bytes, rounds: int) -> bytes:
        other = make(password + salt + password).digest()
        start = password + salt + _repeated(other, len(password))
        left = len(password)
        while left:
            start += other if left & 1 else password
            left >>= 1
        digest = make(start).digest()
        p = _repeated(make(password * len(password)).digest(), len(password))
        s = _repeated(make(salt * (16 + digest[0])).digest(), len(salt))
        for number in range(rounds):
            turn = p if number & 1 else digest
            turn += s if number % 3 else b""
            turn += p if number % 7 else b""
            turn += digest if number & 1 else p
            digest = make(turn).digest()
        return _sha_text(digest)

    return hashed


def _sha_text(digest: bytes) -> bytes:
    """The digest in the order that the scheme has."""
    third = len(digest) // 3
    found = []
    order = (0, third, 2 * third)
    for at in range(third):
        # each group begins one column further: down for SHA-512, up for SHA-256
        turn = (at if len(digest) == 64 else -at) % 3
        columns = order[turn:] + order[:turn]
        found.append(_group(digest, *(column + at for column in columns)))
    if len(digest) == 64:
        return b"".join(found) + _text(digest[63], 2)
    return b"".join(found) + _text(digest[31] << 8 | digest[30], 3)


_SCHEMES: Mapping[str, _Scheme] = {
    "apr1": _Scheme(8, _md5(b"$apr1$")),
    "1": _Scheme(8, _md5(b"$1$")),
    "5": _Scheme(16, _sha(hashlib.sha256)),
    "6": _Scheme(16, _sha(hashlib.sha512)),
}


@dataclass(frozen=True, slots=True, repr=False)
class _Hash:
    """One user's hash."""

    scheme: _Scheme
    salt: bytes
    rounds: int
    text: bytes

    def matches(self, password: bytes) -> bool:
        return hmac.compare_digest(self.scheme.hashed(password, self.salt, self.rounds), self.text)


class Passwords:
    """Users of one file."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidRequest naming the line."""
        self._users: dict[str, _Hash] = {}
        try:
            lines = data.decode().splitlines()
        except UnicodeDecodeError:
            raise InvalidRequest(
                "authentication.basic.usersFile is not text in UTF-8; write lines user:hash"
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):
                user, _, text = line.strip().partition(":")
                where = f"authentication.basic.usersFile, line {number}"
                if not user or len(user) > NAME_LENGTH_MAX or user in self._users:
                    raise InvalidRequest(
                        f"{where}: the user is empty, longer than {NAME_LENGTH_MAX} characters or "
                        "there twice; write one line user:hash for each"
                    )
                self._users[user] = _hash_of(where, text)
        if not 0 < len(self._users) <= USERS_MAX:
            raise InvalidRequest(
                f"authentication.basic.usersFile has {len(self._users)} users; write 1 to "
                f"{USERS_MAX} lines user:hash"
            )
        self._slowest = max(self._users.values(), key=lambda found: found.rounds)

    def check(self, user: str, password: bytes) -> bool:
        """Whether that is the user's password. Takes milliseconds."""
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        found = self._users.get(user)
        if found is None:
            self._slowest.matches(password)  # as long as for a user that there is
            return False
        return found.matches(password)


def _hash_of(where: str, text: str) -> _Hash:
    empty, _, rest = text.partition("$")
    name, _, rest = rest.partition("$")
    scheme = _SCHEMES.get(name)
    if empty or scheme is None:
        raise InvalidRequest(
            f"{where}: the hash begins with none of $apr1$, $1$, $5$ and $6$; {_MAKE_ONE}"
        )
    rounds = ROUNDS
    if name in ("5", "6") and rest.startswith("rounds="):
        given, _, rest = rest.removeprefix("rounds=").partition("$")
        if not given.isdecimal() or not ROUNDS_MIN <= int(given[:9]) <= ROUNDS_MAX:
            raise InvalidRequest(f"{where}: use {ROUNDS_MIN} to {ROUNDS_MAX} rounds; {_MAKE_ONE}")
        rounds = int(given)
    salt, _, hashed = rest.partition("$")
    length = len(scheme.hashed(b"", b"", 0))
    if not salt or len(salt) > scheme.salt_max or len(hashed) != length or not rest.isascii():
        raise InvalidRequest(f"{where}: the hash is not one of ${name}$; {_MAKE_ONE}")
    return _Hash(scheme, salt.encode(), rounds, hashed.encode())
