"""What all tests share.

Owns: the profiles of hypothesis, and the loop of coroutine tests. By default examples are the same
in every run and on every machine, so that a test that passed passes again; MAGNETAR_EXPLORE=1 draws
new ones, and `--hypothesis-seed` repeats them. Imports: hypothesis, pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None)
settings.load_profile("exploring" if os.environ.get("MAGNETAR_EXPLORE") else "repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True
