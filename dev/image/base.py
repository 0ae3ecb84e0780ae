"""The base image, made from Debian packages.

Owns: `localhost/magnetar-base:<release>`. May import: workshop, dev.kube.report.
Invariant: the mirrors are the ones this machine's apt uses, so nothing new has to be reachable.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dev.image.workshop import Workshop
from dev.kube.report import CommandFailed, run_quietly, run_with_progress, say

RELEASE = "bookworm"
BASE_IMAGE = f"localhost/magnetar-base:{RELEASE}-slim"
SUITE_SECURITY = f"{RELEASE}-security"
LEFT_OUT = ("doc", "info", "linda", "lintian", "locale", "man")
"""Below /usr/share: what Debian's own slim images leave out. Copyright notices stay."""


@dataclass(frozen=True)
class Mirrors:
    """Where this machine's apt finds Debian; empty where it does not know."""

    main: str
    security: str


def mirrors(index_targets: str) -> Mirrors:
    """Read `apt-get indextargets` lines of origin, suite and address."""
    found: dict[str, str] = {}
    for line in index_targets.splitlines():
        origin, suite, address = line.split("|")
        if origin == "Debian":
            found.setdefault("security" if suite.endswith("-security") else "main", address)
    return Mirrors(found.get("main", ""), found.get("security", ""))


def sources(found: Mirrors) -> str:
    """The image's own apt sources; empty leaves what debootstrap wrote."""
    lines = [
        f"deb {found.main} {suite} main" for suite in (RELEASE, f"{RELEASE}-updates") if found.main
    ]
    lines += [f"deb {found.security} {SUITE_SECURITY} main"] if found.security else []
    return "".join(f"{line}\n" for line in lines)


def ensure(workshop: Workshop) -> str:
    """Make the base image once."""
    if not workshop.has(BASE_IMAGE):
        say(f"making {BASE_IMAGE} with debootstrap (about a minute)")
        _make(workshop)
    return BASE_IMAGE


def _make(workshop: Workshop) -> None:
    try:
        found = mirrors(
            run_quietly(
                ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(CODENAME)|$(REPO_URI)"]
            )
        )
    except CommandFailed:
        found = Mirrors("", "")
    container = workshop.buildah("from", "scratch").strip()
    try:
        root = workshop.buildah("mount", container).strip()
        options = ["--variant=minbase", "--include=ca-certificates"]
        argv = ["sh", "-c", 'umask 022; exec "$@"', "sh", "debootstrap", *options, RELEASE, root]
        run_with_progress(
            [*argv, *([found.main] if found.main else [])],
            lambda lines: f"debootstrap: {lines} lines",
        )
        if text := sources(found):
            run_quietly(["tee", f"{root}/etc/apt/sources.list"], text_input=text)
        _slim(Path(root))
        workshop.buildah("unmount", container)
        search_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        workshop.buildah("config", "--env", f"PATH={search_path}", container)
        workshop.buildah("commit", "--quiet", container, BASE_IMAGE)
    finally:
        workshop.buildah("rm", container)


def excludes() -> str:
    """dpkg's configuration of a slim image, for packages that are installed later."""
    lines = [f"path-exclude /usr/share/{name}/*" for name in LEFT_OUT]
    return "".join(f"{line}\n" for line in [*lines, "path-include /usr/share/doc/*/copyright"])


def _slim(root: Path) -> None:
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(excludes())
    unread = (
        path
        for name in LEFT_OUT
        for path in (root / "usr/share" / name).rglob("*")
        if path.name != "copyright"
    )
    fetched = (
        *root.glob("var/cache/apt/archives/*.deb"),
        *root.glob("var/lib/apt/lists/*"),
        *root.glob("var/log/*.log"),
    )
    for path in (*unread, *fetched):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir() and path.parent.name == "lists":
            shutil.rmtree(path)
