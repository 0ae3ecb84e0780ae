"""Advice of load analytics in force.

Owns: `AdviceReader`: the document that the store has, checked once per revision. Imports:
balance.advice, views, siblings. Invariants: what is not sound, has expired or is switched off is not
used, and no decision fails of it; each refusal is logged and counted once per document. Any thread may
ask.
"""

from __future__ import annotations

import structlog

from magnetar.balance.advice import DOCUMENT, LoadAdvice
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreError
from magnetar.hosting.views import ClusterViews

log = structlog.get_logger(__name__)

OFF = "loadAnalyticsAdviceEnabled is false"
ABSENT = "no run of load analytics has given any"
EXPIRED = "it has expired; run the job again"


class AdviceReader:
    """What may be used now, and why there is nothing."""

    def __init__(
        self, context: BrokerContext, views: ClusterViews, settings: BalanceSettings
    ) -> None:
        self._context, self._documents, self._settings = context, views.documents, settings
        self._revision = 0
        self._advice: LoadAdvice | None = None
        self._refusal = ABSENT
        self._expired = False
        context.metrics.gauge(
            "magnetar_load_advice_valid_until_timestamp_seconds",
            "When the advice of load analytics that this broker uses expires; 0 = it uses none",
            lambda: self._advice.valid_until_ms / 1000 if self._advice is not None else 0.0,
        )

    @property
    def refusal(self) -> str:
        """Why `current` has found nothing."""
        return self._refusal

    def current(self) -> LoadAdvice | None:
        """The advice in force."""
        if not self._settings.current.advice:
            self._refusal = OFF
            return None
        viewed, now_ms = self._documents.get(DOCUMENT), self._context.clock.wall_ms()
        if viewed is None:
            self._advice, self._revision, self._refusal = None, 0, ABSENT
            return None
        if viewed.mod_revision != self._revision:
            self._take(viewed.record.documents.get(DOCUMENT), now_ms)
            self._revision = viewed.mod_revision
        if self._advice is not None and now_ms >= self._advice.valid_until_ms:
            self._advice = None
            self._refuse("expired", EXPIRED)
        return self._advice

    def _take(self, document: object, now_ms: int) -> None:
        try:
            self._advice = LoadAdvice.read(document, now_ms)
        except StoreError as error:
            self._advice = None
            self._refuse("unsound", str(error))
        else:
            log.info("load_advice.used", job=self._advice.job, run=self._advice.run)

    def _refuse(self, reason: str, sentence: str) -> None:
        self._refusal = sentence
        self._context.metrics.balance.advice_ignored.labels(reason).inc()
        log.warning("load_advice.ignored", reason=reason, error=sentence)
