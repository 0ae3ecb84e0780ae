"""Kubernetes Events.

Owns: telling people what was done and why nothing was done. Imports: kube.api, conditions,
builders.object, clock. Invariants: an effect has one Event; a state that lasts has one when it
begins; a failure to write one never stops the work; one whose answer is missing is sent again, and
one of a state that was not written at all is written by a later look.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from magnetar.clock import Clock
from magnetar.resources.base import API_VERSION, CustomResource
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import MESSAGE_LENGTH_MAX, Problem, Reason, timestamp
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.errors import (
    ApiConflict,
    ApiUnavailable,
    KubernetesError,
    NotLeading,
)
from magnetar_operator.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

REMEMBERED_MAX = 10_000
ATTEMPTS = 3
"""A busy API server's answer may come too late, and nothing is done again for its Event alone."""

_Key = tuple[str, str, str]
"""Uid, reason, part."""


def event(
    name: str,
    involved: Manifest,
    kind: str,
    reason: str,
    message: str,
    wall_ms: int,
    component: str,
) -> Manifest:
    """An Event about the object `involved`, in its namespace, by `component`; `kind` is Normal
    or Warning."""
    now = timestamp(wall_ms)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": involved["namespace"]},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message[:MESSAGE_LENGTH_MAX],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": component},
    }


class Events:
    """Writes Events about custom resources."""

    def __init__(
        self, api: KubernetesApi, clock: Clock, metrics: OperatorMetrics, identity: str
    ) -> None:
        self._api, self._clock, self._metrics, self._identity = api, clock, metrics, identity
        self._last: dict[_Key, str] = {}
        self._standing: dict[str, set[_Key]] = {}
        """By uid, of objects that have problems."""
        self._newest_ms = 0

    async def normal(self, about: CustomResource, reason: str, message: str) -> None:
        """Something was done."""
        await self._write(about, "Normal", reason, message)

    async def warning(self, about: CustomResource, reason: str, message: str) -> None:
        """Something needs a person's attention."""
        await self._write(about, "Warning", reason, message)

    async def once(
        self, about: CustomResource, kind: str, reason: str, message: str, *, part: str = ""
    ) -> None:
        """As above, but not again while the same message would follow itself; of each `part` of
        what it is about there is a last one."""
        key = (about.metadata.uid, reason, part)
        if self._last.get(key) == message:
            return
        if len(self._last) >= REMEMBERED_MAX:
            self._last.clear()
            self._standing.clear()
        if await self._write(about, kind, reason, message):
            self._last[key] = message

    async def standing(self, about: CustomResource, problems: Iterable[Problem]) -> None:
        """Warn of each problem that begins; those of the last call that are not among them have
        ended, and are news when they come again."""
        found, uid = list(problems), about.metadata.uid
        standing = {(uid, problem.reason.value, problem.about) for problem in found}
        for ended in self._standing.pop(uid, set()) - standing:
            self._last.pop(ended, None)
        for problem in found:
            await self.once(
                about, "Warning", problem.reason.value, problem.message, part=problem.about
            )
        if standing:
            self._standing[uid] = standing

    async def paused(self, about: CustomResource) -> None:
        """The annotation keeps the operator from acting on it."""
        text = f"{Reason.PAUSED.meaning} {Reason.PAUSED.remedy}"
        await self.once(about, "Normal", Reason.PAUSED.value, text)

    def forget(self, about_uid: str, reason: str) -> None:
        """The state that `once` reported has ended; the same report is news again."""
        self._last.pop((about_uid, reason, ""), None)

    async def _write(self, about: CustomResource, kind: str, reason: str, message: str) -> bool:
        """Whether it is written, or never will be."""
        log.info("event", about=about.reference, reason=reason, message=message)
        now_ms = self._clock.wall_ms()
        # Times have whole seconds, and Events of one second are shown by name: the names keep their
        # order.
        self._newest_ms = max(self._newest_ms + 1, now_ms)
        name = f"{about.name}.{self._newest_ms:012x}{self._clock.random_bits(32):08x}"
        involved = {
            "apiVersion": API_VERSION, "kind": about.kind, "name": about.name, "namespace": about.namespace, "uid": about.metadata.uid,
        }  # fmt: skip
        manifest = event(name, involved, kind, reason, message, now_ms, names.FIELD_MANAGER) | {
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._identity,
        }
        try:
            await self._post(manifest)
            self._metrics.events.labels(reason).inc()
        except KubernetesError as error:
            log.warning("event.failed", about=about.reference, reason=reason, error=str(error))
            return not isinstance(error, ApiUnavailable | NotLeading)
        return True

    async def _post(self, manifest: Manifest) -> None:
        """Raises KubernetesError."""
        for left in reversed(range(ATTEMPTS)):
            try:
                await self._api.post_event(manifest)
            except ApiUnavailable:
                if not left:
                    raise
            except ApiConflict:
                if left == ATTEMPTS - 1:
                    raise
                return  # an attempt without an answer has written it
            else:
                return
