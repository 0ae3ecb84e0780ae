"""Load analytics as administrators see it.

Owns: `LoadAnalyticsFacts`: the advice in force, and reports of runs. Imports: balancing, storage
names. Invariants: nothing here changes anything; lists and reports are bounded; a report is named by
what the list says, never by a path.
"""

from __future__ import annotations

import json
from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.errors import TopicNotFound
from magnetar.storage import names

REPORTS_MAX = 100
REPORT_BYTES_MAX = 8 << 20


class LoadAnalyticsFacts:
    """Questions that any broker answers, from the shared volume and its own views."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def advice(self) -> dict[str, Any]:
        """What is in force, or why nothing is."""
        broker = self._site.broker
        reader = broker.ownership.assigner.placer.advice

        def answer() -> dict[str, Any]:
            found = reader.current()
            return {
                "used": found is not None,
                "why": "" if found is not None else reader.refusal,
                "advice": json.loads(found.encode()) if found is not None else None,
            }

        return await broker.context.compute(answer)

    async def reports(self, job: str = "") -> list[dict[str, Any]]:
        """Reports that are kept, newest first; with `job` those of a job, by its name with or
        without its Kubernetes namespace. Raises StorageError."""
        listed = await self._site.broker.context.volume.list(names.LOAD_REPORTS)
        places = [place for name in listed if (place := names.load_report_place(name)) is not None]
        found = [
            place for place in places if not job or job in (place.job, place.job.rpartition("/")[2])
        ]
        return [
            {
                "id": place.identifier,
                "at_ms": place.at_ms,
                "bytes": place.size,
                "job": place.job,
            }
            for place in sorted(found, reverse=True)[:REPORTS_MAX]
        ]

    async def report(self, identifier: str) -> bytes:
        """One page. Raises TopicNotFound, StorageError."""
        place = names.load_report_place(f"{names.LOAD_REPORTS}/{identifier}.html")
        if place is not None and place.size <= REPORT_BYTES_MAX:
            volume, name = self._site.broker.context.volume, names.load_report(place)
            if await volume.exists(name):
                return await volume.read(name, 0, REPORT_BYTES_MAX)
        raise TopicNotFound(f"report {identifier[:200]}: there is none; the list names them")
