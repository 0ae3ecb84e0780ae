"""The table of names: what it accepts fits into paths, log lines and URLs; what it refuses is
refused wherever a name enters."""

from __future__ import annotations

import json
import posixpath
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidTopicName
from magnetar.names import RULES, BundleName, NamespaceName, TopicName

LINE_BREAKS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")
PARTS = ("cluster", "tenant", "namespace")
TEXTS = ("topic", "subscription", "producer_name")


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("end", LINE_BREAKS)
def test_no_kind_of_name_takes_a_line_break_anywhere(kind: str, end: str) -> None:
    """Also at its end, which `$` of a regular expression passes over."""
    assert RULES[kind].violation("name") is None
    for name in (f"name{end}", f"{end}name", f"na{end}me"):
        violation = RULES[kind].violation(name)
        assert violation is not None
        assert kind in violation
        assert len(violation.splitlines()) == 1  # it is logged and sent


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize(
    "name", ["", ".", "..", "...", "a/b", "a\x00", "ü", "٣", "a b", "a" * 201, "%2e"]
)
def test_a_directory_of_storage_is_never_named_like_this(kind: str, name: str) -> None:
    assert RULES[kind].violation(name) is not None


@pytest.mark.parametrize(
    "text",
    [
        "./ns",
        "../ns",
        "t/.",
        "t/..",
        "t/ns\n",
        "t\n/ns",
        "t/n\u00e4s",
        "t",
        "t/n/s",
        "/n",
        "t/",
        f"{'t' * 201}/ns",
    ],
)
def test_a_namespace_outside_the_rules_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        NamespaceName.parse(text)
    with pytest.raises(InvalidTopicName):
        TopicName.parse(f"persistent://{text}/topic" if text != "t/n/s" else "persistent://t/")
    with pytest.raises(InvalidTopicName):
        BundleName.parse(f"{text}/0x00000000_0x40000000")


@pytest.mark.parametrize(
    "local",
    [
        "a\n",
        "a\x85b",
        "a\u2028b",
        "a\x7fb",
        "a\u202eb",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/.",
        "a" * 1025,
    ],
)
def test_a_topic_outside_the_rules_is_refused(local: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(f"persistent://t/n/{local}")


def test_a_bundle_ends_where_its_range_ends() -> None:
    with pytest.raises(InvalidTopicName):
        BundleName.parse("t/n/0x00000000_0x40000000\n")


@given(st.sampled_from(TEXTS), st.text(max_size=40))
def test_what_a_text_rule_accepts_stays_one_line_and_survives_a_url(kind: str, name: str) -> None:
    if RULES[kind].violation(name) is not None:
        return
    assert len(f"a{name}a".splitlines()) == 1
    assert unquote(quote(name, safe="")) == name
    assert json.loads(json.dumps(name)) == name


@given(st.sampled_from(PARTS), st.from_regex(r"[-=:.\w/%~ ]{0,40}", fullmatch=True))
def test_what_a_part_rule_accepts_is_one_component_of_a_path(kind: str, name: str) -> None:
    if RULES[kind].violation(name) is not None:
        return
    assert name.isascii()
    assert posixpath.normpath(f"manifests/{name}/x") == f"manifests/{name}/x"
    assert len(posixpath.join("/a", name).split("/")) == 3


@given(st.from_regex(r"[-=:.0-9A-Za-z_]{1,20}", fullmatch=True), st.text(min_size=1, max_size=40))
def test_a_topic_that_parses_is_written_as_it_was_read(part: str, local: str) -> None:
    text = f"persistent://{part}/{part}/{local}"
    try:
        topic = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert str(topic) == text
    assert TopicName.parse(str(topic)) == topic
