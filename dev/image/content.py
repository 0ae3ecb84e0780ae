"""What the image is made of.

Owns: the content hash that tags an image, and the names of the images of one tag. May import: the
standard library. Invariant: two checkouts with the same files get the same tag, and a changed file
another one; a tag is never `latest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

REPOSITORY = "localhost/magnetar"
TARGETS = {"broker": "", "operator": "-operator", "spark": "-spark"}
"""Targets of the Dockerfile, and what their repositories' names end with: the name of one image
gives the others'."""
HASH_LENGTH = 16
FILES = (
    "Dockerfile", "pyproject.toml", "README.md", "LICENSE", "requirements/broker.lock",
    "requirements/operator.lock", "requirements/spark.lock", "requirements/build.lock",
    "dev/image/entrypoint.sh",
)  # fmt: skip
TREES = ("broker_image", "operator", "spark_jobs")


def sources(checkout: Path) -> Iterator[Path]:
    """Every file that reaches the image, in a fixed order."""
    yield from (checkout / name for name in FILES if (checkout / name).is_file())
    for tree in TREES:
        yield from (
            path
            for path in sorted((checkout / tree).rglob("*"))
            if path.is_file() and not _is_derived(path)
        )


def content_hash(checkout: Path) -> str:
    """Names the image's content, file modes included."""
    return _hash(checkout, sources(checkout))


def image_of(name: str, target: str) -> str:
    """The image of one target, by the name of the brokers'."""
    repository, _, tag = name.rpartition(":")
    return f"{repository}{TARGETS[target]}:{tag}"


def images_of(name: str) -> list[str]:
    return [image_of(name, target) for target in TARGETS]


def stages_below(checkout: Path) -> dict[str, str]:
    """Images of the stages that hold the locked packages, by stage: names of their own keep them
    when what is made of them is removed."""
    below = [checkout / name for name in FILES if name == "Dockerfile" or name.endswith(".lock")]
    digest = _hash(checkout, below)
    return {
        stage: f"{REPOSITORY}-stage-{stage}:{digest}"
        for stage in (f"{target}-packages" for target in TARGETS)
    }


def _hash(checkout: Path, files: Iterable[Path]) -> str:
    digest = sha256()
    for path in files:
        is_executable = path.stat().st_mode & 0o100 != 0
        digest.update(f"{path.relative_to(checkout)}\0{is_executable}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:HASH_LENGTH]


def default_name(checkout: Path) -> str:
    return f"{REPOSITORY}:{content_hash(checkout)}"


def _is_derived(path: Path) -> bool:
    return path.suffix == ".pyc" or any(
        part == "__pycache__" or part.endswith(".egg-info") for part in path.parts
    )
