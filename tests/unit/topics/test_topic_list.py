"""Topic lists: Pulsar's hash, hidden names, and changes that add up to the list."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.names import TopicName
from magnetar.topics.patterns import TopicPattern
from magnetar.topics.topic_list import (
    MatchingTopics,
    comparable_name,
    is_system_topic,
    of_domain,
    select,
    topics_hash,
)


def test_the_hash_is_crc32c_of_the_sorted_names_with_its_lowest_byte_first() -> None:
    """CRC-32C of "123456789" is 0xe3069283 (RFC 3720); order and repetition of arguments do not
    matter but for sorting."""
    assert topics_hash(["123456789"]) == "839206e3"
    assert topics_hash([]) == "00000000"
    assert topics_hash(["b", "a"]) == topics_hash(["a", "b"]) == topics_hash(["a,b"])


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("persistent://public/default/t", False),
        ("persistent://public/default/__change_events", True),
        ("persistent://public/default/__change_events-partition-3", True),
        ("persistent://public/default/__transaction_buffer_snapshot", True),
        ("persistent://public/default/t-s__transaction_pending_ack", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-0", True),
        ("persistent://pulsar/system/anything", True),
        ("persistent://public/default/t/_txnlog", True),
        ("persistent://public/default/my__change_events", False),
    ],
)
def test_machinery_is_hidden(name: str, hidden: bool) -> None:
    assert is_system_topic(TopicName.parse(name)) is hidden


def test_patterns_see_names_without_scheme_and_partition() -> None:
    names = [
        f"persistent://a/b/{local}"
        for local in ("t-partition-0", "t-partition-1", "t-partition-x", "u", "t-partition-01")
    ]
    assert [comparable_name(name) for name in names] == [
        "a/b/t",
        "a/b/t",
        "a/b/t-partition-x",
        "a/b/u",
        "a/b/t-partition-01",
    ]
    assert select(names, TopicPattern.compile("persistent://a/b/t")) == names[:2]


@given(
    st.from_regex(
        r"[a-z]{0,3}(-partition-)?[0-9]{0,11}(-partition-)?[0-9]{0,11}", fullmatch=True
    ).filter(bool)
)
def test_the_comparable_name_is_that_of_the_partitioned_topic(local: str) -> None:
    """The short way of taking a suffix off agrees with the grammar of names, whatever the name
    looks like."""
    name = f"persistent://a/b/{local}"
    expected = str(TopicName.parse(name).base).partition("://")[2]
    assert comparable_name(name) == expected


def test_domains_are_distinguished() -> None:
    names = ["persistent://a/b/t", "non-persistent://a/b/t"]
    assert of_domain(names, persistent=True, non_persistent=False) == [names[0]]
    assert of_domain(names, persistent=False, non_persistent=True) == [names[1]]
    assert of_domain(names, persistent=True, non_persistent=True) == sorted(names)


NAMES = [f"persistent://a/b/{local}" for local in ("x", "x1", "x-partition-0", "y", "y1", "z")]


@given(
    st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=8),
    st.sampled_from(["a/b/x.*", "a/b/.*", "a/b/q"]),
)
def test_changes_in_order_give_what_listing_again_gives(states: list[set[str]], text: str) -> None:
    """A watcher that applies every update holds exactly the matching topics, and the hash of
    each update is that of its list."""
    pattern = TopicPattern.compile(text)
    watched = MatchingTopics(pattern, states[0])
    held = set(watched.names)
    assert held == set(select(states[0], pattern))
    for before, after in itertools.pairwise(states):
        change = watched.apply(before ^ after, after)
        if change is not None:
            assert change.new or change.deleted
            assert not held & set(change.new)
            assert held >= set(change.deleted)
            held = held - set(change.deleted) | set(change.new)
            assert change.topics_hash == topics_hash(held)
        assert held == set(watched.names) == set(select(after, pattern))
        assert watched.topics_hash == topics_hash(held)
