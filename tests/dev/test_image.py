"""The image build: tags, settings that stay out of the image, archives."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from dev.image import archive, base, content, pip_settings
from dev.image.__main__ import main
from dev.kube import oci
from dev.kube.paths import CHECKOUT

MANIFEST_NAME = "localhost/magnetar:1"


def _checkout(directory: Path) -> Path:
    for name in ("broker_image/magnetar/cli.py", "Dockerfile", "requirements/broker.lock"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")
    return directory


def test_the_tag_names_the_content(tmp_path: Path) -> None:
    one, two = _checkout(tmp_path / "one"), _checkout(tmp_path / "two")
    assert content.default_name(one) == content.default_name(two)
    assert not content.default_name(one).endswith(":latest")
    (two / "broker_image/magnetar/cli.py").write_text("y")
    assert content.content_hash(one) != content.content_hash(two)


def test_project_code_leaves_the_dependencies_alone(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path)
    for name in content.FILES:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x")
    before = content.stages_below(checkout)
    (checkout / "broker_image/magnetar/cli.py").write_text("y")
    (checkout / "pyproject.toml").write_text("y")
    assert content.stages_below(checkout) == before
    (checkout / "requirements/spark.lock").write_text("y")
    assert set(content.stages_below(checkout).values()).isdisjoint(before.values())


def test_derived_files_do_not_change_the_tag(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path)
    before = content.content_hash(checkout)
    for derived in (
        "broker_image/magnetar/__pycache__/cli.pyc",
        "broker_image/magnetar.egg-info/PKG-INFO",
        "docs/index.md",
    ):
        (checkout / derived).parent.mkdir(parents=True, exist_ok=True)
        (checkout / derived).write_text("z")
    assert content.content_hash(checkout) == before


def test_the_context_lets_in_what_the_tag_names() -> None:
    allowed = {
        line[1:]
        for line in (CHECKOUT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert allowed == {*content.FILES, *content.TREES} - {"Dockerfile"}


def test_the_images_of_one_tag_are_named_after_the_brokers() -> None:
    assert content.images_of("host:5000/you/magnetar:1") == [
        "host:5000/you/magnetar:1", "host:5000/you/magnetar-operator:1", "host:5000/you/magnetar-spark:1",
    ]  # fmt: skip


def test_the_dockerfile_has_every_target_and_the_brokers_is_the_default() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (CHECKOUT / "Dockerfile").read_text(), re.M)
    assert {*content.TARGETS, *content.stages_below(CHECKOUT)} <= set(stages)
    assert stages[-1] == "broker"


def test_only_sparks_image_has_java() -> None:
    stages = re.split(r"^FROM ", (CHECKOUT / "Dockerfile").read_text(), flags=re.M)
    assert [stage.split()[2] for stage in stages if "openjdk" in stage] == ["spark"]


def test_the_base_leaves_out_what_debians_slim_images_leave_out() -> None:
    assert "path-exclude /usr/share/man/*" in base.excludes()
    assert base.excludes().endswith("path-include /usr/share/doc/*/copyright\n")


def test_the_dockerfile_copies_nothing_else() -> None:
    copies = re.findall(
        r"^COPY (?:--chmod=\S+ )?(?!--from)(.+)$", (CHECKOUT / "Dockerfile").read_text(), re.M
    )
    copied = {source.rstrip("*") for copy in copies for source in copy.split()[:-1]}
    assert copied == {*content.FILES, *content.TREES} - {"Dockerfile"}


@pytest.mark.parametrize(
    "name", ["magnetar", "localhost/magnetar:latest", "localhost:5000/magnetar"]
)
def test_a_floating_tag_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAGNETAR_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dev.image", "build", "--tag", name])
    with pytest.raises(SystemExit, match="other than latest"):
        main()


def test_pip_settings_reach_the_build_without_files_of_this_machine() -> None:
    listing = ":env:.timeout='9'\nglobal.cert='/here/ca.pem'\nglobal.find-links='/wheels'\nglobal.index-url='https://i/s'\nglobal.timeout='5'\n"
    settings = pip_settings.parse(listing)
    text = pip_settings.configuration(settings, has_bundle=True)
    assert "timeout = 9" in text
    assert "index-url = https://i/s" in text
    assert "cert = /run/secrets/ca_bundle" in text
    assert "/here" not in text
    assert "/wheels" not in text


def test_mirrors_are_those_of_debian_only() -> None:
    listing = "Debian|bookworm|http://m/debian/\nDebian|bookworm-security|http://m/security/\nDocker|bookworm|http://d/\n"
    found = base.mirrors(listing)
    assert found == base.Mirrors("http://m/debian/", "http://m/security/")
    assert base.sources(found).count("\n") == 3
    assert base.sources(base.mirrors("Ubuntu|noble|http://u/\n")) == ""


def _layout(directory: Path) -> Path:
    """A layout with one large and one small layer."""
    layers = [b"L" * (archive.SMALL_BLOB_BYTES_MAX + 1), b"s"]
    manifest = json.dumps(
        {
            "config": oci.descriptor(oci.CONFIG_TYPE, b"{}"),
            "layers": [oci.descriptor(oci.LAYER_TYPE, layer) for layer in layers],
        }
    ).encode()
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in (*layers, b"{}", manifest):
        (blobs / oci.digest(blob).removeprefix("sha256:")).write_bytes(blob)
    index = oci.index_of({MANIFEST_NAME: oci.descriptor(oci.MANIFEST_TYPE, manifest)})
    (directory / "index.json").write_text(json.dumps(index))
    return directory


def _members(layout: Path, without: set[str]) -> set[str]:
    output = io.BytesIO()
    archive.write(layout, [MANIFEST_NAME], output, without=without)
    with tarfile.open(fileobj=io.BytesIO(output.getvalue())) as written:
        return {name.rpartition("/")[2] for name in written.getnames()}


def test_an_archive_is_complete_but_for_what_is_known(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    digests = archive.blobs_of(layout, archive.manifest_of(layout, MANIFEST_NAME))
    everything = {
        "oci-layout",
        "index.json",
        *(digest.removeprefix("sha256:") for digest in digests),
    }
    large = oci.digest(b"L" * (archive.SMALL_BLOB_BYTES_MAX + 1))
    assert _members(layout, set()) == everything
    assert _members(layout, set(digests)) == everything - {large.removeprefix("sha256:")}


def test_pruning_keeps_every_blob_of_a_kept_image(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    orphan = layout / "blobs" / "sha256" / ("0" * 64)
    orphan.write_bytes(b"of an image forgotten earlier")
    assert archive.prune(layout, {MANIFEST_NAME}) == len(b"of an image forgotten earlier")
    assert _members(layout, set()) >= {"oci-layout", "index.json"}
    assert archive.names_in(layout) == [MANIFEST_NAME]
    archive.prune(layout, set())
    assert archive.names_in(layout) == []
    assert not list((layout / "blobs" / "sha256").iterdir())


def test_an_image_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(archive.NotInLayout, match="localhost/other:1"):
        archive.manifest_of(_layout(tmp_path), "localhost/other:1")


def _entrypoint(
    tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None
) -> list[str]:
    """Run the entry point with programs that print how they were called."""
    for name in ("bin/java", "magnetar", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('#!/bin/bash\nprintf "%s\\n" "${0##*/}" "$@"\n')
        (tmp_path / name).chmod(0o755)
    settings = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "JAVA_HOME": str(tmp_path),
        **(environment or {}),
    }
    argv = ["bash", str(CHECKOUT / "dev/image/entrypoint.sh"), *arguments]
    return subprocess.run(
        argv, env=settings, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_the_entry_point_runs_magnetar_or_the_given_program(tmp_path: Path) -> None:
    assert _entrypoint(tmp_path) == ["magnetar"]
    assert _entrypoint(tmp_path, "other", "a b") == ["other", "a b"]
