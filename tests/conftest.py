"""What all tests share.

Owns: the profiles of hypothesis, and the loop of coroutine tests. By default examples are the same
in every run and on every machine, so that a test that passed passes again; MAGNETAR_EXPLORE=1 draws
new ones, and `--hypothesis-seed` repeats them. Imports: hypothesis, pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

NO_TIMING: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""A machine that is busy with other things fails no test."""
settings.register_profile("repeatable", derandomize=True, **NO_TIMING)
settings.register_profile("exploring", derandomize=False, **NO_TIMING)
settings.load_profile("exploring" if os.environ.get("MAGNETAR_EXPLORE") else "repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True
