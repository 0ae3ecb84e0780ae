"""The campaign runner finds failing seeds, remembers what is done and goes on from there."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dev import campaign
from dev.campaign import Campaign, Range, merged, missing, run_chunk

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def covered(ranges: list[Range]) -> set[int]:
    return {seed for start, end in ranges for seed in range(start, end)}


@given(RANGES, st.integers(0, 30), st.integers(0, 30))
def test_ranges_are_merged_and_what_is_missing_is_found(
    ranges: list[Range], start: int, end: int
) -> None:
    tidy = merged(ranges)
    assert covered(tidy) == covered(ranges)
    assert all(low[1] < high[0] for low, high in itertools.pairwise(tidy))
    assert covered(missing(ranges, (start, end))) == set(range(start, end)) - covered(ranges)


def test_a_chunk_reports_failing_seeds_with_seed_and_events() -> None:
    result = run_chunk("toy_fence_blind", 0, 50, timeout_s=60)
    assert 0 < len(result.failures) < 50
    seed, text = next(iter(result.failures.items()))
    assert f"seed {seed}, virtual time" in text
    assert "beyond the seal" in text


def test_the_state_survives_and_names_its_suite(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    state = Campaign("toy_fence")
    state.finished(0, 5, {3: "broken"})
    state.finished(5, 9, {})
    state.save(path)
    again = Campaign.load(path, "toy_fence")
    assert (again.done, again.failures) == ([(0, 9)], {3: "broken"})
    again.finished(3, 4, {})
    assert again.failures == {}
    with pytest.raises(SystemExit, match="belongs to suite"):
        Campaign.load(path, "tracer")


@pytest.mark.slow
def test_a_campaign_resumes_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # main sets them for its workers; the test gives them back
    for variable in ("PYTHONHASHSEED", "PYTHONPATH"):
        monkeypatch.setenv(variable, "0")
    path = tmp_path / "state.json"
    command = ["--suite", "toy_fence", "--jobs", "1", "--state", str(path), "--seeds"]
    assert campaign.main([*command, "0:30"]) == 0
    assert "30/30 seeds" in capsys.readouterr().out
    assert campaign.main([*command, "10:40"]) == 0
    assert "10/10 seeds" in capsys.readouterr().out
    assert json.loads(path.read_text())["done"] == [[0, 40]]
