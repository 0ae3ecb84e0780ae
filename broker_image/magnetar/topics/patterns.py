"""Topic patterns: regular expressions that a client sends, matched in bounded time.

Owns: the dialect (what RE2 and Java agree on), its parser, and a lazily built automaton. Imports:
errors. Pure. Invariants: matching takes time linear in the name, whatever the pattern (there is no
back-tracking), and memory and work are bounded; what the dialect cannot say (look-around,
back-references, possessive repetition) is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from magnetar.errors import LimitExceeded, NotAllowed

PATTERN_LENGTH_MAX = 50
STATES_MAX = 500
BUILD_STEPS_MAX = 5_000
REPEAT_MAX = 1_000
CACHED_STATES_MAX = 500
CACHED_TRANSITIONS_MAX = 20_000
WORK_MAX = 1_000_000
"""Steps of the automaton that one list of names may cost beyond what is cached: some tenths of a
second."""


# --- syntax tree ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Set:
    """Characters: ranges, both ends included."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False
    any_case: bool = False

    def holds(self, char: str) -> bool:
        cases = (char, char.lower(), char.upper()) if self.any_case else (char,)
        return (
            any(low <= case <= high for case in cases for low, high in self.ranges) != self.negated
        )


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Anchor:
    start: bool


_Node = _Set | _Sequence | _Choice | _Repeat | _Anchor

_ANY = _Set((), negated=True)
_DIGITS = (("0", "9"),)
_WORDS = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACES = (("\t", "\r"), (" ", " "))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ANCHORS = {"A": True, "z": False, "Z": False}


class _Parser:
    """Recursive descent over the pattern's text."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._any_case = text, 0, False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            self._refuse("a closing bracket without an opening one")
        return node

    def _refuse(self, what: str) -> NoReturn:
        raise NotAllowed(
            f"topics_pattern: {self._text!r} at {self._at}: {what}; use a pattern that RE2 and "
            "Java both understand"
        )

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            self._refuse("it ends too early")
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._take("\\Q"):
                parts += self._quoted()
            else:
                parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _quoted(self) -> list[_Node]:
        end = self._text.find("\\E", self._at)
        literal = self._text[self._at : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._text)
        return [self._literal(char) for char in literal]

    def _repeated(self, atom: _Node) -> _Node:
        low: int
        high: int | None
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif self._take("{"):
            low, high = self._counts()
        else:
            return atom
        self._take("?")  # lazy or greedy: the whole name matches or it does not
        if self._peek() in ("*", "+", "?", "{"):
            self._refuse("repetition of a repetition")
        return _Repeat(atom, low, high)

    def _counts(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number()
        if not self._take("}") or (high is not None and high < low):
            self._refuse("a repetition is written {2}, {2,} or {2,5}")
        return low, high

    def _number(self) -> int:
        start = self._at
        while self._peek() in set("0123456789"):
            self._at += 1
        digits = self._text[start : self._at]
        if not digits or len(digits) > 4 or int(digits) > REPEAT_MAX:
            self._refuse(f"a repetition needs a number up to {REPEAT_MAX}")
        return int(digits)

    def _atom(self) -> _Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == ".":
            return _ANY
        if char in "^$":
            return _Anchor(start=char == "^")
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            self._refuse("there is nothing to repeat")
        return self._literal(char)

    def _group(self) -> _Node:
        before = self._any_case
        if self._take("?"):
            if self._take("i)"):
                self._any_case = True
                return _Sequence(())
            if self._take("i:"):
                self._any_case = True
            elif self._take("P<") or (
                self._peek() == "<" and self._text[self._at + 1 : self._at + 2] not in ("=", "!")
            ):
                self._take("<")
                while self._next() != ">":
                    pass
            elif not self._take(":"):
                self._refuse("look-around and flags other than i are not offered")
        node = self._choice()
        if not self._take(")"):
            self._refuse("a group is not closed")
        self._any_case = before
        return node

    def _escape(self) -> _Node:
        char = self._next()
        if char in _ANCHORS:
            return _Anchor(start=_ANCHORS[char])
        if char.lower() in _CLASSES:
            return _Set(_CLASSES[char.lower()], negated=char.isupper())
        return self._literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum():
            self._refuse(f"\\{char} is not offered")
        return char

    def _literal(self, char: str) -> _Set:
        return _Set(((char, char),), any_case=self._any_case)

    def _set(self) -> _Node:
        ranges: list[tuple[str, str]] = []
        negated, first = self._take("^"), True
        while first or self._peek() != "]":
            first = False
            low = self._member()
            if isinstance(low, _Set):
                if low.negated:
                    self._refuse("a negated class inside a set is not offered")
                ranges += low.ranges
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member()
                if isinstance(high, _Set) or high < low:
                    self._refuse("a range of characters goes from the lower to the higher one")
                ranges.append((low, high))
            else:
                ranges.append((low, low))
        self._at += 1
        return _Set(tuple(ranges), negated=negated, any_case=self._any_case)

    def _member(self) -> str | _Set:
        if self._take("[") or self._take("&&"):
            self._refuse("a set inside a set is not offered")
        char = self._next()
        if char != "\\":
            return char
        char = self._next()
        if char.lower() in _CLASSES:
            return _Set(_CLASSES[char.lower()], negated=char.isupper())
        return self._escaped(char)


# --- automaton ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """Reads a character of `takes`, or goes on to all of `after` at once (at the anchored place
    only, if there is an anchor)."""

    after: tuple[int, ...] = ()
    takes: _Set | None = None
    anchor: _Anchor | None = None


ACCEPT = 0


class _Builder:
    """Thompson's construction, from the end backwards: `build(node, then)` gives the state
    before `node`."""

    def __init__(self) -> None:
        self.states = [_State()]
        self._steps = 0

    def _add(self, state: _State) -> int:
        if len(self.states) >= STATES_MAX:
            raise NotAllowed(f"topics_pattern needs more than {STATES_MAX} states; repeat less")
        self.states.append(state)
        return len(self.states) - 1

    def build(self, node: _Node, then: int) -> int:
        self._steps += 1
        if self._steps > BUILD_STEPS_MAX:
            raise NotAllowed(
                f"topics_pattern takes more than {BUILD_STEPS_MAX} steps to build; repeat less"
            )
        if isinstance(node, _Set):
            return self._add(_State((then,), takes=node))
        if isinstance(node, _Anchor):
            return self._add(_State((then,), anchor=node))
        if isinstance(node, _Choice):
            return self._add(_State(tuple(self.build(option, then) for option in node.options)))
        if isinstance(node, _Repeat):
            return self._repeat(node, then)
        for part in reversed(node.parts):
            then = self.build(part, then)
        return then

    def _repeat(self, node: _Repeat, then: int) -> int:
        entry = then
        if node.high is None:
            entry = self._add(_State())
            self.states[entry].after = (self.build(node.part, entry), then)
        else:
            for _ in range(node.high - node.low):
                entry = self._add(_State((self.build(node.part, entry), then)))
        for _ in range(node.low):
            entry = self.build(node.part, entry)
        return entry


class TopicPattern:
    """A compiled pattern. Not to be shared between threads."""

    def __init__(self, text: str) -> None:
        builder = _Builder()
        self.text = text
        self._start = builder.build(_Parser(text).parse(), ACCEPT)
        self._states = builder.states
        self._work = 0
        self._forget()

    @staticmethod
    def compile(text: str) -> TopicPattern:
        """The pattern of a client; a scheme in it (`persistent://`) is taken off, as it is from
        names.

        Raises NotAllowed if it is too long or outside the dialect.
        """
        if len(text) > PATTERN_LENGTH_MAX:
            raise NotAllowed(
                f"topics_pattern has {len(text)} characters; the limit is {PATTERN_LENGTH_MAX}: "
                "use a shorter one"
            )
        anchored = text.startswith("^")
        _, separator, rest = text.partition("://")
        return _compiled(("^" + rest if anchored else rest) if separator else text)

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches. Raises LimitExceeded if that is too much work
        (see `WORK_MAX`)."""
        state = self._first
        known = self._transitions
        for char in name:
            found = known[state].get(char)
            if found is None:
                found = self._step(state, char)
                known = self._transitions
            if found == _DEAD:
                return False
            state = found
        return self._accepts(state, not name)

    def start_work(self) -> None:
        """Begin a new account of work: what was spent before no longer counts."""
        self._work = 0

    # --- the deterministic automaton, built as names come by --------------------------------------

    def _forget(self) -> None:
        self._sets: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._transitions: list[dict[str, int]] = []
        self._ends: dict[tuple[int, bool], bool] = {}
        self._known = 0
        self._first = self._number(self._closure({self._start}, lambda anchor: anchor.start))

    def _number(self, states: frozenset[int]) -> int:
        number = self._numbers.get(states)
        if number is None:
            number = self._numbers[states] = len(self._sets)
            self._sets.append(states)
            self._transitions.append({})
        return number

    def _step(self, state: int, char: str) -> int:
        current = self._sets[state]
        self._work += len(current)
        if self._work > WORK_MAX:
            raise LimitExceeded(
                f"topics_pattern: {self.text!r} takes too long to match; use a simpler one"
            )
        if len(self._sets) > CACHED_STATES_MAX or self._known > CACHED_TRANSITIONS_MAX:
            self._forget()
            state = self._number(current)
        reached: set[int] = set()
        for number in current:
            takes = self._states[number].takes
            if takes is not None and takes.holds(char):
                reached.update(self._states[number].after)
        following = self._closure(reached, lambda _anchor: False)
        target = self._number(following) if following else _DEAD
        self._transitions[state][char] = target
        self._known += 1
        return target

    def _closure(self, states: set[int], holds: Callable[[_Anchor], bool]) -> frozenset[int]:
        """Everything reached without reading; states that read, the end, and anchors that may
        hold later."""
        kept: set[int] = set()
        seen, waiting = set(states), list(states)
        while waiting:
            number = waiting.pop()
            state = self._states[number]
            self._work += 1
            if (
                number == ACCEPT
                or state.takes is not None
                or (state.anchor is not None and not holds(state.anchor))
            ):
                if state.anchor is None or not state.anchor.start:
                    kept.add(number)
                continue
            fresh = [after for after in state.after if after not in seen]
            seen.update(fresh)
            waiting += fresh
        return frozenset(kept)

    def _accepts(self, state: int, empty: bool) -> bool:
        found = self._ends.get((state, empty))
        if found is None:
            at_end = self._closure(set(self._sets[state]), lambda anchor: not anchor.start or empty)
            found = self._ends[state, empty] = ACCEPT in at_end
        return found


_DEAD = -1


@lru_cache(maxsize=256)
def _compiled(text: str) -> TopicPattern:
    return TopicPattern(text)
