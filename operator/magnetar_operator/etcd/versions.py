"""Which version a managed etcd may change to.

Owns: the decision about its image. Imports: the standard library. Pure. Invariants: minor versions
are taken one at a time and never backwards, as etcd's storage demands; a patch version may change
either way; an image whose tag names no version is the user's own responsibility.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Version = tuple[int, int, int]
_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)")


def parse_version(text: str) -> Version | None:
    """The version that a text such as v3.6.5 or 3.6.5-0 begins with."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def version_of(image: str) -> Version | None:
    """The version that an image's tag names."""
    name = image.partition("@")[0].rpartition("/")[2]
    return parse_version(name.partition(":")[2])


def choose_image(wanted: str, current: str, running: Iterable[str]) -> tuple[str, str]:
    """The image that pods get, and why it is not the wanted one ("" = it is). `running` are the
    members' versions, `current` the pods' image."""
    target = version_of(wanted)
    known = [
        version
        for version in (*map(parse_version, running), version_of(current))
        if version is not None
    ]
    if not current or wanted == current or target is None or not known:
        return wanted, ""
    oldest, newest = min(known), max(known)
    if target[:2] < newest[:2]:
        return (
            current,
            f"etcd runs {_text(newest)}; {wanted} would be a downgrade, which its data does not "
            "survive",
        )
    if target[0] != oldest[0] or target[1] > oldest[1] + 1:
        return (
            current,
            f"etcd runs {_text(oldest)}; {wanted} would skip a minor version: go through "
            f"{oldest[0]}.{oldest[1] + 1} first",
        )
    return wanted, ""


def _text(version: Version) -> str:
    return ".".join(map(str, version))
