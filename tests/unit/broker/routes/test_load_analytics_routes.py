"""Load analytics by REST: the advice in force, reports by job, and nothing else of storage."""

from __future__ import annotations

import json
from pathlib import Path

from magnetar.balance.advice import DOCUMENT, BundleAdvice, LoadAdvice, SplitAdvice
from magnetar.balance.load import Rates
from magnetar.metadata import keys
from magnetar.metadata.records import DocumentsRecord
from magnetar.storage.names import LoadReportPlace, load_report
from tests.support.polling import until
from tests.support.rest import broker_with_rest

PATH = "/magnetar/v1/load-analytics"


async def test_advice_reports_and_explanations(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, _):
        found = await rest.get(PATH)
        assert (found["used"], found["advice"]) == (False, None)
        assert "no run" in found["why"]
        now_ms = broker.context.clock.wall_ms()
        name = "public/default/0x00000000_0x40000000"
        advice = LoadAdvice(
            now_ms,
            now_ms + 3_600_000,
            bundles=(BundleAdvice(name, Rates(4.0), Rates(90.0)),),
            splits=(SplitAdvice(name, (0x1000,)),),
        )
        record = DocumentsRecord({DOCUMENT: json.loads(advice.encode())})
        await broker.context.store.put(keys.documents(DOCUMENT), record.encode())
        await until(lambda: broker.views.documents.get(DOCUMENT) is not None)
        found = await rest.get(PATH)
        assert found["used"]
        assert found["advice"] == json.loads(advice.encode())

        pages = {
            LoadReportPlace(at, len(page), job): page
            for at, job, page in (
                (1, "team/nightly", b"<p>old</p>"),
                (2, "team/nightly", b"<p>new</p>"),
                (3, "command-line", b"<p>hand</p>"),
            )
        }
        for place, page in pages.items():
            await broker.context.volume.put_if_absent(load_report(place), page)
        every = await rest.get(f"{PATH}/reports")
        assert [row["job"] for row in every] == ["command-line", "team/nightly", "team/nightly"]
        for job in ("nightly", "team/nightly"):
            rows = await rest.get(f"{PATH}/reports?job={job}")
            assert [row["at_ms"] for row in rows] == [2, 1]
        identifier = rows[0]["id"].replace("%", "%25")
        answer = await rest.ask("GET", f"{PATH}/reports/{identifier}")
        assert answer.status_code == 200
        assert answer.content == b"<p>new</p>"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for strange in ("..%2F..%2Fclaims", "000000000000009-00000005-x", "x"):
            answer = await rest.ask("GET", f"{PATH}/reports/{strange}")
            assert answer.status_code in (400, 404, 412, 422)
