"""The guides whose commands are tested."""

from __future__ import annotations

GUIDES = ("quickstart.md", "install.md", "operations.md")
