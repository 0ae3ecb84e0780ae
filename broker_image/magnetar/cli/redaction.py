"""Taking secrets out of what leaves a cluster.

Owns: which values count as secret, in documents and in text. Imports: re. Pure. Invariants: a value
is removed if its name or its form says that it is secret, whatever document it stands in; names of
secrets stay, so that a wrong reference can be seen; removing twice is the same as once.
"""

from __future__ import annotations

import re
from typing import Any

REMOVED = "<removed>"
_WORDS = r"pass(?:word|wd|phrase)?|secret(?!name|ref)|token|credentials?|api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|authorization"
_SECRET_NAME = re.compile(rf"(?:^|[^a-z])(?:{_WORDS})(?:[^a-z]|$)", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HARMLESS_ENDS = ("name", "ref", "path", "file", "seconds", "expiration", "kind", "type")
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REMOVED),
    (re.compile(r"(?<=://)[^/@\s\"'\\]+:[^/@\s\"'\\]+(?=@)"), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REMOVED}"),
    (
        re.compile(
            rf"(?i)([\w.-]*(?:{_WORDS}))(\\?[\"']?\s*[=:]\s*\\?[\"']?)(?!<removed>)([^\s\"'\\,;&}}\])]+)"
        ),
        rf"\1\2{REMOVED}",
    ),
)
"""Private keys, JSON web tokens, AWS keys, credentials in addresses, HTTP authorization, and
name=value in logs and arguments."""


def is_secret_name(name: str) -> bool:
    """Whether a field, variable or setting of that name holds a secret."""
    words = _CAMEL.sub("_", name)
    return _SECRET_NAME.search(words) is not None and not words.lower().rsplit("_", 1)[-1].endswith(
        _HARMLESS_ENDS
    )


def redacted(value: Any) -> Any:
    """A Kubernetes document, or any part of one, without secrets; bookkeeping that repeats other
    fields goes too."""
    if isinstance(value, dict):
        if value.get("kind") == "Secret":
            kept = {
                key: redacted(part)
                for key, part in value.items()
                if key not in ("data", "stringData")
            }
            return kept | {
                "data": dict.fromkeys(
                    [*value.get("data", {}), *value.get("stringData", {})], REMOVED
                )
            }
        named = value.get("name")
        if isinstance(named, str) and "value" in value and is_secret_name(named):
            return {**value, "value": REMOVED}
        return {
            key: REMOVED
            if isinstance(part, str) and part and is_secret_name(key)
            else redacted(part)
            for key, part in value.items()
            if key != "managedFields" and key not in _DROPPED_ANNOTATIONS
        }
    if isinstance(value, list):
        return [redacted(part) for part in value]
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Text, such as a log, without what looks like a secret."""
    for pattern, replacement in _TEXTS:
        text = pattern.sub(replacement, text)
    return text
