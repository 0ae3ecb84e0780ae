"""Which version a managed etcd may change to."""

from __future__ import annotations

import pytest

from magnetar_operator.etcd.versions import choose_image, version_of

IMAGE = "gcr.io/etcd-development/etcd:v"


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("gcr.io/etcd-development/etcd:v3.6.5", (3, 6, 5)),
        ("registry.example:5000/etcd:3.5.13-0", (3, 5, 13)),
        ("etcd:v3.6.5@sha256:ab", (3, 6, 5)),
        ("registry.example:5000/etcd", None),
        ("etcd:latest", None),
    ],
)
def test_a_tag_shows_the_version(image: str, version: tuple[int, int, int] | None) -> None:
    assert version_of(image) == version


def test_patches_either_way_and_the_next_minor_are_taken() -> None:
    for wanted in ("3.6.7", "3.6.1", "3.7.0"):
        assert choose_image(IMAGE + wanted, IMAGE + "3.6.5", ["3.6.5"]) == (IMAGE + wanted, "")
    assert choose_image(IMAGE + "3.6.5", "", []) == (IMAGE + "3.6.5", "")
    assert choose_image("mine:latest", IMAGE + "3.6.5", ["3.6.5"]) == ("mine:latest", "")


def test_a_skipped_minor_and_a_downgrade_are_refused_also_halfway_through_an_upgrade() -> None:
    kept, problem = choose_image(IMAGE + "3.7.1", IMAGE + "3.5.21", ["3.5.21", "3.5.21", "3.5.21"])
    assert (kept, "3.6 first" in problem) == (IMAGE + "3.5.21", True)
    kept, problem = choose_image(IMAGE + "3.5.21", IMAGE + "3.6.5", ["3.5.21", "3.6.5"])
    assert (kept, "downgrade" in problem) == (IMAGE + "3.6.5", True)
    kept, problem = choose_image(IMAGE + "3.7.0", IMAGE + "3.6.5", ["3.5.21", "3.6.5"])
    assert kept == IMAGE + "3.6.5"
    assert choose_image(IMAGE + "4.0.0", IMAGE + "3.7.0", [])[1]
