"""Generated documents are in step with what they describe."""

from __future__ import annotations

from dev.docs import __main__ as docs


def test_generated_documents_are_in_step() -> None:
    """Run `make docs` after a change of values, models, reasons or metrics."""
    assert docs.differences() == []
