"""CONNECT and AUTH_RESPONSE.

Owns: `Handshakes`: letting connections in, and asking for a fresh token before the one they showed
is over. Imports: wire, security, authentication. Invariants: a connection outlives neither what it
showed nor the rules by which that was good; a renewal never changes the role; a refusal is sent
before the connection closes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from magnetar.errors import AuthenticationFailed, MagnetarError, WireCode
from magnetar.hosting.security.authentication import Authenticator
from magnetar.security.authorization import Principal
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.hosting.security.peers import Peer

log = structlog.get_logger(__name__)

REFRESH = b"PulsarAuthRefresh"
REFRESH_LEAD_S = 60.0
"""How long before its end a token is requested again; half of what is left if that is less."""
REFRESH_LEFT_S_MIN = 1.0
"""With less left than this no client is asked again."""
TIMER_S_MAX = 86_400.0
NO_REQUEST = -1


class Handshakes:
    """Lets connections in, for as long as what they show is good."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._timers: dict[Peer, asyncio.TimerHandle] = {}
        self._methods: dict[Peer, tuple[str, bool]] = {}
        self._followed = authenticator.source.current
        self.refused = 0
        authenticator.source.listen(self._source_changed)

    def stop(self) -> None:
        """Follow changes no more."""
        self._authenticator.source.forget(self._source_changed)

    def _source_changed(self) -> None:
        """Clients admitted by other keys or rules connect again, and authenticate by the present
        ones."""
        before, now = self._followed, self._authenticator.source.current
        self._followed = now
        rules, keys = (
            before.authentication != now.authentication,
            not set(before.internal_keys) <= set(now.internal_keys),
        )
        leaving = [
            peer
            for peer in self._methods
            if (keys if peer.principal is not None and peer.principal.internal else rules)
        ]
        if leaving:
            log.info("connections.authenticate_again", connections=len(leaving))
        for connection in leaving:
            connection.close()

    def admit(self, connection: Peer, connect: api.CommandConnect) -> bool:
        """Whether a CONNECT is good; the connection then has its principal. One that is not has
        been refused, and closes."""
        method = connect.auth_method_name or _named(connect)
        try:
            found = self._authenticator.principal(method, connect.auth_data, connection.certificate)
            self._authenticator.check_port(found, tls=connection.tls)
            found = self._authenticator.behind_proxy(found, connect.original_principal)
        except MagnetarError as error:
            self._refuse(connection, error)
            return False
        connection.principal = replace(found, address=str(connection.peer))
        self._methods[connection] = method, connect.feature_flags.supports_auth_refresh
        self._arm(connection, connection.principal)
        return True

    def renew(self, connection: Peer, answer: api.CommandAuthResponse) -> None:
        """Take an AUTH_RESPONSE: the connection stays until the credentials expire, or ends."""
        before = connection.principal
        assert before is not None, "only connections that were let in get here"
        try:
            found = self._authenticator.principal(
                answer.response.auth_method_name or self._methods[connection][0],
                answer.response.auth_data,
                connection.certificate,
            )
            if found.role != before.role:
                raise AuthenticationFailed(
                    "Principal cannot change during an authentication refresh; connect again"
                )
        except MagnetarError as error:
            self._refuse(connection, error)
            return
        connection.principal = replace(before, expires_s=found.expires_s)
        self._arm(connection, connection.principal)

    def forget(self, connection: Peer) -> None:
        """The connection is gone."""
        self._methods.pop(connection, None)
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _refuse(self, connection: Peer, error: MagnetarError) -> None:
        self.refused += 1
        log.info("connection.not_authenticated", peer=connection.peer, error=str(error))
        connection.queue(commands.error_of(NO_REQUEST, error))
        connection.close()

    def _arm(self, connection: Peer, principal: Principal) -> None:
        """Have the connection looked at when it must be asked, or ends."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if principal.expires_s is None or connection.closed:
            return
        left_s = principal.expires_s - self._authenticator.now_s()
        asks = self._methods[connection][1] and left_s > REFRESH_LEFT_S_MIN
        delay_s = left_s - min(REFRESH_LEAD_S, left_s / 2) if asks else max(left_s, 0.0)
        act = self._ask if asks else self._end
        self._timers[connection] = asyncio.get_running_loop().call_later(
            min(delay_s, TIMER_S_MAX), act, connection, principal
        )

    def _ask(self, connection: Peer, principal: Principal) -> None:
        assert principal.expires_s is not None, "only what ends is looked at"
        left_s = principal.expires_s - self._authenticator.now_s()
        if left_s > 2 * TIMER_S_MAX:
            self._arm(connection, principal)
            return
        connection.queue(
            commands.auth_challenge(
                commands.SERVER_VERSION,
                connection.protocol_version,
                self._methods[connection][0],
                REFRESH,
            )
        )
        self._timers[connection] = asyncio.get_running_loop().call_later(
            max(left_s, 0.0), self._end, connection, principal
        )

    def _end(self, connection: Peer, principal: Principal) -> None:
        assert principal.expires_s is not None, "only what ends is looked at"
        # the timer is bounded, or the clock was set back
        if principal.expires_s > self._authenticator.now_s():
            self._arm(connection, principal)
            return
        log.info("connection.expired", peer=connection.peer, asked=self._methods[connection][1])
        connection.queue(
            commands.error(
                NO_REQUEST,
                WireCode.AUTHENTICATION,
                "The token of this connection has expired; connect again",
            )
        )
        connection.close()


def _named(connect: api.CommandConnect) -> str:
    """The method of clients from before methods had names."""
    return (
        ""
        if connect.auth_method == api.AuthMethodNone
        else api.AuthMethod.Name(connect.auth_method).lower()
    )
