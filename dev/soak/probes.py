"""What an ordinary client asks again and again, and how long each answer took.

Owns: `Probes`: one thread for each kind of question. Imports: the standard library, paced (values).
Invariant: a question that fails is kept as a failure, with what it was; it is asked again after the
same pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from dev.soak.paced import Sample


class Probes:
    """Call `start` first and `close` last."""

    def __init__(self, questions: Mapping[str, Callable[[], None]], pause_s: float) -> None:
        """`questions` raise if the answer is not as it should be."""
        self.samples: dict[str, list[Sample]] = {kind: [] for kind in questions}
        self.failures: list[str] = []
        self._pause_s = pause_s
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(kind, question), name=kind, daemon=True)
            for kind, question in questions.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, kind: str, question: Callable[[], None]) -> None:
        while not self._over.wait(self._pause_s):
            began = time.monotonic()
            try:
                question()
            except Exception as error:  # whatever it is, an ordinary client was not served
                self.failures.append(f"{kind} after {time.monotonic() - began:.1f} s: {error!r}")
            else:
                self.samples[kind].append(Sample(began, time.monotonic() - began))
