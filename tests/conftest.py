"""What all tests share.

Owns: the profiles of hypothesis. By default examples are the same in every run and on every
machine, so that a test that passed passes again; MAGNETAR_EXPLORE=1 draws new ones, and
`--hypothesis-seed` repeats them. Imports: hypothesis.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None)
settings.load_profile("exploring" if os.environ.get("MAGNETAR_EXPLORE") else "repeatable")
