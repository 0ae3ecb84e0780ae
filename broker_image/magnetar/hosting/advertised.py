"""Addresses under which clients reach a broker.

Owns: the spelling of advertised listeners and of their ports, the file that they may come from, and
`Listeners`, what holds now. Imports: errors, metadata records. Source: Pulsar's advertisedListeners
and bindAddresses (PIP-61, PIP-95). Invariants: other brokers, and clients that name no listener,
use the internal one, which every broker has; a client is never handed an address of a listener that
is not its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from magnetar.errors import InvalidRequest
from magnetar.metadata.records import INTERNAL_LISTENER, ListenerAddress, over_tls, service_url_on

LISTENERS_MAX = 16
HOST_PLACEHOLDER = "{host}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SEPARATORS = re.compile(r"[,\s]+")
_SCHEMES = ("pulsar", "pulsar+ssl", "http", "https")
_ORDER = ("pulsar", "http", "pulsar+ssl", "https")
"""As the fields of a `ListenerAddress`."""
Advertised = Mapping[str, ListenerAddress]
Successor = Callable[[str], str | None]
"""Where a bundle is served next, by listener; None: that broker has no such listener."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The configuration of listeners.

    `bound` gives the address and port that belong to a listener alone; `reread` says what is
    advertised from now on (None: that never changes). Both leave out the internal listener unless
    it is named.
    """

    advertised: Advertised = field(default_factory=dict)
    bound: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    reread: Callable[[], Advertised] | None = None


class Listeners:
    """The addresses of this broker, as they are now."""

    def __init__(self, internal: ListenerAddress, options: ListenerOptions) -> None:
        self._internal, self._bound = internal, frozenset(options.bound)
        self.advertised: dict[str, ListenerAddress] = {}
        self.use(options.advertised)

    def use(self, advertised: Advertised) -> bool:
        """From now on these are advertised; whether that changes anything. The internal address
        stays what it was at the start."""
        wanted = {
            name: address
            for name, address in sorted(advertised.items())
            if name != INTERNAL_LISTENER
        }
        changed, self.advertised = wanted != self.advertised, wanted
        return changed

    def service_url_on(self, listener: str) -> str | None:
        """This broker's address on a listener, or by TLS on `over_tls(listener)`."""
        return service_url_on(listener, self._internal, self.advertised)

    def after_transfer(self, listener: str | None, successor: Successor) -> str | None:
        """The address to give to a client on `listener`; None: it must look the topic up again.

        `listener` None is a client that came in by the main port and has not said which one it
        uses: while a listener shares that port, it may be one of that listener's.
        """
        if listener is None:
            shared = any(name not in self._bound for name in self.advertised)
            return None if shared else successor(INTERNAL_LISTENER)
        if listener == over_tls(INTERNAL_LISTENER):
            others = (
                over_tls(name)
                for name, address in self.advertised.items()
                if address.service_url_tls
            )
            return None if any(name not in self._bound for name in others) else successor(listener)
        return successor(listener)


def options_of(advertised: str, bind_addresses: str, file: str, host: str) -> ListenerOptions:
    """From what the command line says. `file` replaces `advertised` whenever it exists. Raises
    InvalidRequest."""
    fixed, bound = parse_listeners(advertised, host), parse_bind_addresses(bind_addresses)
    if not file:
        return ListenerOptions(fixed, bound)

    def reread() -> Advertised:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return fixed  # the addresses are unknown yet
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"listeners-file: {file} is no text in UTF-8; write name:pulsar://host:port on "
                "each line"
            ) from error
        return parse_listeners(text, host)

    try:
        return ListenerOptions(reread(), bound, reread)
    except OSError as error:
        raise InvalidRequest(f"listeners-file: {file} cannot be read: {error.strerror}") from error


def parse_listeners(text: str, host: str = "") -> dict[str, ListenerAddress]:
    """Listeners of `name:pulsar://host:port` or `name:pulsar+ssl://host:port` items, each of which
    may have `http` and `https` ones beside it; `{host}` stands for `host`.

    Raises InvalidRequest naming the item and what it should look like.
    """
    found: dict[str, dict[str, str]] = {}
    for item in _items(text):
        name, scheme, url = _split(item, "advertised-listeners", _SCHEMES)
        if HOST_PLACEHOLDER in url:
            if not host:
                raise InvalidRequest(
                    f"advertised-listeners: {item!r} needs --host-address, which is empty"
                )
            url = url.replace(HOST_PLACEHOLDER, f"[{host}]" if ":" in host else host)
        if scheme in found.setdefault(name, {}):
            raise InvalidRequest(
                f"advertised-listeners: {name} is given twice for {scheme}://; name each address "
                "once"
            )
        _host_and_port(url, item, "advertised-listeners")
        found[name][scheme] = url
    if len(found) > LISTENERS_MAX:
        raise InvalidRequest(
            f"advertised-listeners: {len(found)} listeners are more than {LISTENERS_MAX}; leave "
            "some out"
        )
    owners: dict[str, str] = {}
    for name, urls in found.items():
        service_urls = [urls[scheme] for scheme in ("pulsar", "pulsar+ssl") if scheme in urls]
        if not service_urls:
            raise InvalidRequest(
                f"advertised-listeners: {name} has no pulsar:// address; add "
                f"{name}:pulsar://host:port"
            )
        for url in service_urls:
            other = owners.setdefault(url, name)
            if other != name:
                raise InvalidRequest(
                    f"advertised-listeners: {url} is given for {other} and {name}; use one name "
                    "for it"
                )
    return {
        name: ListenerAddress(*(urls.get(scheme, "") for scheme in _ORDER))
        for name, urls in found.items()
    }


def parse_bind_addresses(text: str) -> dict[str, tuple[str, int]]:
    """Host and port of each listener that has a port of its own, from
    `name:pulsar://0.0.0.0:port` items; those of `pulsar+ssl` are for `over_tls(name)`. Raises
    InvalidRequest."""
    bound: dict[str, tuple[str, int]] = {}
    for item in _items(text):
        named, scheme, url = _split(item, "bind-addresses", ("pulsar", "pulsar+ssl"))
        name = named if scheme == "pulsar" else over_tls(named)
        address = _host_and_port(url, item, "bind-addresses")
        if name in bound or named == INTERNAL_LISTENER or address in bound.values():
            raise InvalidRequest(
                f"bind-addresses: {item!r}: a listener has one port, alone, and "
                f"{INTERNAL_LISTENER} has --broker-port; leave it out"
            )
        bound[name] = address
    return bound


def _items(text: str) -> list[str]:
    return [item for item in _SEPARATORS.split(text) if item]


def _split(item: str, option: str, schemes: tuple[str, ...]) -> tuple[str, str, str]:
    """Name, scheme and URL of one item."""
    name, _, url = item.partition(":")
    scheme = url.partition("://")[0]
    if not _NAME.fullmatch(name) or scheme not in schemes:
        raise InvalidRequest(
            f"{option}: {item!r} is not understood; use name:{schemes[0]}://host:port"
        )
    return name, scheme, url


def _host_and_port(url: str, item: str, option: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        host, port = "", 0
    if not host or not port or parts.path or parts.query or parts.username:
        raise InvalidRequest(
            f"{option}: {item!r} names no host and port; use name:pulsar://host:port"
        )
    return host, port
