"""Topic patterns: they mean what Java and RE2 make of them, and no pattern costs more than its
bound."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import LimitExceeded, NotAllowed
from magnetar.topics.patterns import PATTERN_LENGTH_MAX, TopicPattern

NAMES = [
    "public/default/a",
    "public/default/ab",
    "public/default/b-1",
    "public/default/",
    "x/y/orders.eu",
    "x/y/orders-eu",
    "x/y/Ä",
]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("public/default/.*", "public/default/a", True),
        ("persistent://public/default/.*", "public/default/a", True),
        ("^persistent://public/default/a$", "public/default/a", True),
        ("public/default/a", "public/default/ab", False),
        ("default/a", "public/default/a", False),
        ("public/default/(a|b)+", "public/default/abba", True),
        ("public/default/[^b]*", "public/default/abba", False),
        ("public/default/a{2,3}", "public/default/aa", True),
        ("public/default/a{2,3}", "public/default/aaaa", False),
        ("public/default/a{2}b{1,}", "public/default/aabbb", True),
        (r"x/y/orders\.eu", "x/y/orders-eu", False),
        (r"x/y/\Qorders.eu\E", "x/y/orders.eu", True),
        (r"x/y/\Qa*", "x/y/a*", True),
        ("(?i)X/Y/ORDERS.EU", "x/y/orders.eu", True),
        ("x/(?i:Y)/a", "X/y/a", False),
        ("(?P<t>x)/y/(?<n>.+?)", "x/y/z", True),
        (r"x/y/[\w-]+", "x/y/a_b-c", True),
        (r"x/y/[a\-c]+", "x/y/b", False),
        (r"x/y/\D*\d?", "x/y/a1", True),
        ("", "", True),
        ("^$", "", True),
        ("a^b", "ab", False),
        ("a$b", "ab", False),
        ("(a*)*b", "aaab", True),
        ("a||b", "", True),
    ],
)
def test_patterns_mean_what_clients_expect(pattern: str, name: str, expected: bool) -> None:
    assert TopicPattern.compile(pattern).matches(name) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?>a)b", r"(a)\1", "a++", "a**", "*a", "(a", "a)", "[a", "[]", "[b-a]", "a{3,2}", "a{1001}",
        "a{x}", "\\", r"\p{L}", r"\b", "[a[b]]", "[a&&b]", "(((a{1000}){1000}){1000}){1000}", "((((){1000}){1000}){1000}){1000}",
        "x" * (PATTERN_LENGTH_MAX + 1),
    ],
)  # fmt: skip
def test_what_the_dialect_cannot_say_or_bound_is_refused(pattern: str) -> None:
    """Look-around, back-references, possessive repetition, broken syntax, and patterns that
    would need too many states."""
    with pytest.raises(NotAllowed, match="topics_pattern"):
        TopicPattern.compile(pattern)


def test_patterns_that_cost_others_exponential_time_are_cheap() -> None:
    """What a back-tracking engine cannot do in a lifetime takes a moment: otherwise this test
    does not end."""
    name = "a" * 1000 + "!"
    for pattern in ("(a+)+b", "(a|aa)+b", "(a|a)*b", "(.*)*b", "(x+x+)+y", ".*.*.*.*.*.*.*b"):
        assert not TopicPattern.compile(pattern).matches(name)


def test_work_is_counted_and_bounded_per_list() -> None:
    """A pattern whose automaton never repeats a state is given up, and works again on the next
    list."""
    pattern = TopicPattern(".*a.{200}" + ".{0,100}")
    pattern.start_work()
    names = [f"{number:b}".replace("0", "a") * 30 for number in range(10_000)]
    with pytest.raises(LimitExceeded, match="too long to match"):
        any(pattern.matches(name) is None for name in names)
    pattern.start_work()
    assert pattern.matches("a" + "x" * 200)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "1", "^", "$"])


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


@settings(max_examples=300, deadline=None)
@given(
    pattern=st.recursive(ATOMS, combine, max_leaves=6).filter(
        lambda text: len(text) <= PATTERN_LENGTH_MAX
    ),
    names=st.lists(st.text("ab1.", max_size=6), min_size=1, max_size=5),
)
def test_it_agrees_with_pythons_engine(pattern: str, names: list[str]) -> None:
    """For random patterns of the dialect and short names (where back-tracking is harmless) both
    say the same."""
    ours, theirs = TopicPattern.compile(pattern), re.compile(pattern, re.ASCII)
    for name in names:
        assert ours.matches(name) == (theirs.fullmatch(name) is not None), (pattern, name)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=PATTERN_LENGTH_MAX)
    | st.text("(){}[]*+?\\|^$.,-ab12<>=!:i&QEd", max_size=PATTERN_LENGTH_MAX)
)
def test_any_text_is_either_a_pattern_or_refused(text: str) -> None:
    try:
        pattern = TopicPattern.compile(text)
    except NotAllowed:
        return
    for name in NAMES:
        assert pattern.matches(name) in (True, False)
