"""Leadership by a Kubernetes Lease.

Owns: acquiring, renewing and releasing the Lease; the deadline after which nothing may be written.
Imports: asyncio, clock, kube.api, resources. Invariants: `may_write` is true only while no other
process can hold the Lease: the deadline counts from *sending* the renewal, by the clock that also
runs while the machine sleeps, and ends earlier than the Lease by more than a write may take;
another holder's Lease is judged by how long it has not changed here, never by comparing wall
clocks; a planned stop releases it, so that the successor need not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from magnetar.clock import Clock
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube.api import WRITE_TIMEOUT_S, KubernetesApi
from magnetar_operator.kube.connection import Connection
from magnetar_operator.kube.errors import ApiConflict, ApiRefused, KubernetesError
from magnetar_operator.kube.kinds import LEASE
from magnetar_operator.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

LEASE_S = 4
"""A standby that waits for a crashed leader's Lease looks every `RETRY_S` and begins `LEASE_S`
after the last renewal it saw: within 5 s."""
WRITABLE_S = 2.4
"""Writes are sent until then after a renewal was; with their own deadline they have ended before
the Lease has."""
RENEW_S = 0.8
ATTEMPT_TIMEOUT_S = 0.7
"""One renewal that gets no answer leaves time for another."""
RENEWAL_RETRY_S, RETRY_S = 0.1, 0.3
RELEASE_ATTEMPTS_MAX = 3
CLOCK_DRIFT_MAX = 0.01
"""The clocks of two machines count the same seconds but for this part."""

assert WRITABLE_S + WRITE_TIMEOUT_S < LEASE_S * (1 - 2 * CLOCK_DRIFT_MAX)
assert RENEW_S + RENEWAL_RETRY_S + 2 * ATTEMPT_TIMEOUT_S < WRITABLE_S


class Leadership:
    """One candidate."""

    def __init__(
        self,
        clock: Clock,
        metrics: OperatorMetrics,
        namespace: str,
        name: str,
        identity: str,
        on_change: Callable[[bool], None],
    ) -> None:
        self._clock, self._metrics = clock, metrics
        self._namespace, self._name, self.identity = namespace, name, identity
        self._on_change = on_change
        self._deadline = 0.0
        self._leading = False
        self._seen = ("", -1.0)
        self._held: Manifest | None = None

    def may_write(self) -> bool:
        """Whether an effect may be sent now."""
        return self._clock.boottime() < self._deadline

    @property
    def leading(self) -> bool:
        return self._leading and self.may_write()

    async def run(self, connection: Connection) -> None:
        """Hold the Lease whenever it can be had, until cancelled; then release it."""
        api = KubernetesApi(connection, self._clock, self._metrics, lambda: True)
        self._metrics.leading.labels(self._name).set(0)
        try:
            while True:
                held = await self.attempt(api)
                self._set_leading(held)
                await asyncio.sleep(self._pause_s(held))
        finally:
            await self._release(api)

    def _pause_s(self, held: bool) -> float:
        """Until the next renewal is due, or the next look at another holder's Lease."""
        if not held:
            return RETRY_S * self._clock.uniform(0.7, 1.0)
        return max(RENEWAL_RETRY_S, self._deadline - WRITABLE_S + RENEW_S - self._clock.boottime())

    async def attempt(self, api: KubernetesApi) -> bool:
        """Acquire or renew once; whether this candidate may act as the holder."""
        sent = self._clock.boottime()
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                written = await self._renewed(api) or await self._acquired(api)
        except (KubernetesError, TimeoutError) as error:
            log.warning(
                "lease.attempt_failed", lease=self._name, error=str(error) or "no answer in time"
            )
            return self.may_write()
        if written is None:
            return False
        self._held, self._deadline = written, sent + WRITABLE_S
        return True

    async def _renewed(self, api: KubernetesApi) -> Manifest | None:
        """The Lease, renewed without being read first; None if it is not ours as we left it.
        Raises KubernetesError."""
        if self._held is None:
            return None
        held, self._held = self._held, None
        try:
            transitions = int(held["spec"].get("leaseTransitions", 0))
            return await api.replace(LEASE, self._manifest(held["metadata"], transitions))
        except (ApiConflict, ApiRefused):
            return None

    async def _acquired(self, api: KubernetesApi) -> Manifest | None:
        """The Lease, if it is free, over or ours. Raises KubernetesError."""
        current = await api.get(LEASE, self._namespace, self._name)
        if current is None:
            return await api.create(LEASE, self._manifest({}, 0))
        if not self._is_ours(current) and not self._is_over(current):
            return None
        transitions = int(current["spec"].get("leaseTransitions", 0)) + (not self._is_ours(current))
        return await api.replace(LEASE, self._manifest(current["metadata"], transitions))

    def _is_ours(self, current: Manifest) -> bool:
        return bool(current["spec"].get("holderIdentity") == self.identity)

    def _is_over(self, current: Manifest) -> bool:
        """Whether the Lease was given up, or has not changed for its whole duration since it was
        first seen like this."""
        spec, version, now = (
            current["spec"],
            current["metadata"]["resourceVersion"],
            self._clock.boottime(),
        )
        if not spec.get("holderIdentity"):
            return True
        if self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE_S)

    def _manifest(self, metadata: Manifest, transitions: int) -> Manifest:
        now = _micro_time(self._clock.wall_ms())
        kept = {key: metadata[key] for key in ("resourceVersion", "uid") if key in metadata}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace, **kept},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    def _set_leading(self, leading: bool) -> None:
        if leading == self._leading:
            return
        self._leading = leading
        self._metrics.leading.labels(self._name).set(int(leading))
        log.info(
            "lease.held" if leading else "lease.lost", lease=self._name, identity=self.identity
        )
        self._on_change(leading)

    async def _release(self, api: KubernetesApi) -> None:
        """Give the Lease up if it is ours; first of all stop writing."""
        was_leading, self._deadline, self._held = self._leading, 0.0, None
        self._set_leading(False)
        if not was_leading:
            return
        for _ in range(RELEASE_ATTEMPTS_MAX):
            try:
                current = await api.get(LEASE, self._namespace, self._name)
                if current is not None and self._is_ours(current):
                    manifest = self._manifest(
                        current["metadata"], int(current["spec"].get("leaseTransitions", 0))
                    )
                    manifest["spec"]["holderIdentity"] = ""
                    await api.replace(LEASE, manifest)
                    log.info("lease.released", lease=self._name)
                return
            except ApiConflict:
                continue  # a renewal that was under way when we were stopped
            except KubernetesError as error:
                log.warning("lease.release_failed", lease=self._name, error=str(error))
                return


def _micro_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
