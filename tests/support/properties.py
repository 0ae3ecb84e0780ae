"""Properties under a planted bug.

Owns: `fails`. Imports: hypothesis. Why: that a property notices a bug takes one counterexample, and
hypothesis would spend a hundred times as long on a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy


def fails(test: Callable[..., None], *strategies: SearchStrategy[Any], examples: int) -> bool:
    """Whether `test`, which is @given these strategies, fails at one of so many examples: those
    that the test itself would try."""
    tried = given(*strategies)(test.hypothesis.inner_test)  # type: ignore[attr-defined]
    try:
        settings(max_examples=examples, phases=[Phase.generate])(tried)()
    except AssertionError:
        return True
    return False
