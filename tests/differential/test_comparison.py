"""The comparison itself: it sees differences, and explains only what a rule says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dev.differential.comparison import DOCUMENT, Difference, differences, judge, rules
from dev.differential.generation import scenario
from dev.differential.naming import Names, Published
from dev.differential.operations import OPERATIONS
from dev.differential.play import Step
from dev.differential.recordings import Recording, recordings
from dev.differential.scenarios import SCENARIOS
from dev.differential.shrinking import shrunk

HEAD = "| rule | step | Apache Pulsar | Magnetar | then | reason |\n|---|---|---|---|---|---|\n"


def table(tmp_path: Path, *rows: str) -> Path:
    document = tmp_path / "differences.md"
    document.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return document


def test_a_difference_names_its_step_and_its_place() -> None:
    """Nested answers are compared leaf by leaf; what only one side shows differs from nothing."""
    left = [{"step": ["stats"], "answer": {"a": {"b": 1, "c": 2}}}]
    right = [{"step": ["stats"], "answer": {"a": {"b": 1, "c": 3}}, "consumer 0": ["m0"]}]
    assert differences(left, right) == [
        Difference(0, "stats", "answer.a.c", "2", "3"),
        Difference(0, "stats", "consumer 0", "null", '["m0"]'),
    ]


def test_a_rule_explains_what_its_patterns_say(tmp_path: Path) -> None:
    """Step, place and both sides must fit, and the whole of them."""
    (rule,) = rules(table(tmp_path, "| `r` | `send consumer *` | `null` | `[*]` | go on | why |"))
    fits = Difference(0, "send", "consumer 3", "null", '["m1"]')
    assert rule.explains(fits)
    assert not rule.explains(Difference(0, "send", "answer", "null", '["m1"]'))
    assert not rule.explains(Difference(0, "send", "consumer 3", '["m0"]', '["m1"]'))
    assert not rule.explains(Difference(0, "resend", "consumer 3", "null", '["m1"]'))


def test_a_rule_that_stops_ends_the_comparison(tmp_path: Path) -> None:
    """What follows from an intended difference is no finding; what follows another one is."""
    found = [Difference(0, "send", "answer", "1", "2"), Difference(1, "ack", "answer", "3", "4")]
    row = "| `r` | `send answer` | `1` | `2` | {} | why |"
    stopped = judge(found, rules(table(tmp_path, row.format("stop"))))
    assert (len(stopped.explained), stopped.unexplained) == (1, [])
    assert judge(found, rules(table(tmp_path, row.format("go on")))).unexplained == found[1:]


@pytest.mark.parametrize(
    "row",
    [
        "| `r` | `send` | `1` | `2` | go on | |",
        "| `r` | `send` | `1` | `2` | later | why |",
        "| `r` | `send` | `1` | `2` | why |",
    ],
    ids=["no reason", "unknown end", "a cell too few"],
)
def test_a_rule_without_a_reason_is_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(ValueError, match="six cells"):
        rules(table(tmp_path, row))


def test_the_document_has_rules() -> None:
    assert rules(DOCUMENT)


def test_a_seed_makes_the_same_scenario_of_known_steps() -> None:
    """In every run; scenarios written by hand have known steps, too."""
    for seed in range(50):
        assert scenario(seed) == scenario(seed)
    steps = [step for made in (*map(scenario, range(50)), *SCENARIOS.values()) for step in made]
    assert {step[0] for step in steps} <= set(OPERATIONS)


def test_messages_are_called_by_the_order_of_their_publication() -> None:
    """Whatever their ids are; a transaction's message is known by its bytes where it has another id
    after the commit."""
    names = Names()
    names.add(Published(7, 0, 1, 0, b"a"))
    names.add(Published(9, 4, 1, 0, b"b", in_transaction=True))
    assert [names.of(7, 0), names.of(9, 4), names.of(7, 1)] == ["m0", "m1", "other 7:1"]
    early = {"last": [names.of(7, 1), names.of(7, 2), 3]}
    assert [names.of(7, 2**64 - 1), names.of(2**64 - 1, 2**64 - 1)] == ["start", "none"]
    names.recognize(7, 1, b"b")
    names.recognize(7, 2, b"a")
    assert names.of(7, 1) == "m1"
    assert names.settled(early) == {"last": ["m1", "other", 3]}


def test_shrinking_keeps_what_the_difference_needs() -> None:
    """Of twenty steps the two that make it."""

    async def compare(steps: list[Step]) -> list[Difference]:
        guilty = ["a", 1] in steps and ["b", 2] in steps
        at = steps.index(["b", 2]) if guilty else 0
        return [Difference(at, "b", "answer", "1", "2")] if guilty else []

    steps: list[Step] = [["x", number] for number in range(20)]
    steps[3], steps[11] = ["a", 1], ["b", 2]
    assert asyncio.run(shrunk(compare, steps)) == [["a", 1], ["b", 2]]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = Recording("x", "4.2.4", [{"step": ["send", 0], "answer": ["m0"]}])
    recording.write(tmp_path)
    assert list(recordings(tmp_path)) == [recording]
    assert recording.steps == [["send", 0]]
