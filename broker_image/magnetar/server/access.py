"""How clients get to a process.

Owns: `AccessOptions`, what the command line says about security. Imports: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """`security`: the file with the security document ("" = everybody may do everything)."""

    security: str = ""
