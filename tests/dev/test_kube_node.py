"""The node's text: commands, configuration, packet filter rules, volumes, archives."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from dev.kube import api, components, configuration, containers, network, oci, preflight, volumes
from dev.kube.__main__ import main
from dev.kube.paths import Paths
from dev.kube.versions import NODE_PROGRAMS

SAVED = """\
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-0af1 - [0:0]
:DOCKER - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -s 10.244.0.2/32 -m comment --comment "name: \\"magnetar\\"" -j CNI-0af1
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A KUBE-POSTROUTING -j KUBE-MARK-MASQ
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -j ACCEPT
COMMIT
"""


def test_only_our_chains_are_removed() -> None:
    assert network.removal_script(SAVED).splitlines() == [
        "*nat",
        '-D POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
        '-D POSTROUTING -s 10.244.0.2/32 -m comment --comment "name: \\"magnetar\\"" -j CNI-0af1',
        *(f"-F {chain}" for chain in ("CNI-0af1", "KUBE-POSTROUTING", "KUBE-MARK-MASQ")),
        *(f"-X {chain}" for chain in ("CNI-0af1", "KUBE-POSTROUTING", "KUBE-MARK-MASQ")),
        "COMMIT",
    ]


def test_a_clean_host_needs_no_removal() -> None:
    assert (
        network.removal_script("*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j ACCEPT\nCOMMIT\n") == ""
    )


def test_every_component_is_described_once(tmp_path: Path) -> None:
    programs = {name: Path("/programs") / name for name in NODE_PROGRAMS}
    described = components.node(Paths(tmp_path), programs)
    assert {component.name for component in described} == set(components.COMPONENT_NAMES)
    assert described == components.node(Paths(tmp_path), programs)


def test_configuration_is_private_and_written_only_when_changed(tmp_path: Path) -> None:
    """kube-proxy ends itself when its file is touched, even with the same content."""
    paths = Paths(tmp_path)
    paths.make_private_directories()
    configuration.write(paths)
    file = paths.configuration / "kube-proxy.json"
    before = file.stat().st_mtime_ns
    assert file.stat().st_mode & 0o777 == 0o600
    configuration.write(paths)
    assert file.stat().st_mtime_ns == before
    file.write_text("{}")
    configuration.write(paths)
    assert json.loads(file.read_text())["mode"] == "iptables"


def test_nothing_listens_to_the_world(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    programs = {name: Path("/programs") / name for name in NODE_PROGRAMS}
    texts = [" ".join(component.argv) for component in components.node(paths, programs)]
    texts += [
        configuration.kubelet_text(paths),
        configuration.proxy_text(paths),
        configuration.dns_text(paths),
    ]
    assert not [
        text
        for text in texts
        if re.search(r"bind\S*[ =:\"]+0\.0\.0\.0|listen\S*[ =]0\.0\.0\.0", text, re.I)
    ]


def test_containerd_keeps_to_the_state_directory(tmp_path: Path) -> None:
    text = configuration.containerd_text(Paths(tmp_path))
    places = re.findall(r'^(?:root|state|address|path) = "(.*)"$', text, re.M)
    assert len(places) == 4
    assert all(place.startswith(f"{tmp_path}/cluster/") for place in places)
    assert "restrict_oom_score_adj = true" in text
    assert "netns_mounts_under_state_dir = true" in text


def test_there_are_volumes_for_two_clusters(tmp_path: Path) -> None:
    """Two shared ones, and one per etcd member: three and one."""
    modes = [volume.mode for volume in volumes.VOLUMES]
    assert modes.count("ReadWriteMany") == 2
    assert modes.count("ReadWriteOnce") == 4
    text = volumes.manifests(Paths(tmp_path))
    assert "$" not in text.replace("${name}, ${size}, ${mode}, ${path} and ${node}", "")
    assert text.count("persistentVolumeReclaimPolicy: Retain") == 6
    assert str(tmp_path / "cluster/volumes/shared") in text


def test_mounts_are_taken_down_youngest_first_and_only_ours() -> None:
    mountinfo = "\n".join(
        f"{number} 1 0:1 / {point} rw - tmpfs tmpfs rw"
        for number, point in enumerate(
            ["/", "/cache/cluster/a", "/cache/cluster/a/b\\040c", "/cache/cluster-other/a", "/home"]
        )
    )
    assert containers.mounts_below(Path("/cache/cluster"), mountinfo) == [
        "/cache/cluster/a/b c",
        "/cache/cluster/a",
    ]


def test_a_scratch_image_is_reproducible_and_named(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    for name in ("one.tar", "two.tar"):
        oci.write_scratch_image(
            tmp_path / name, "localhost/pause:1", {"pause": program}, ["/pause"]
        )
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        index = archive.extractfile("index.json")
        assert index is not None
        (entry,) = json.load(index)["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "localhost/pause:1"
        assert f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}" in archive.getnames()


@pytest.mark.parametrize(
    ("status", "taints", "since", "ready"),
    [
        ("True", [], 0.0, True),
        ("False", [], 0.0, False),
        ("True", [{"key": "not-ready"}], 0.0, False),
        ("True", [], 2e9, False),
    ],
)
def test_a_node_is_ready_by_a_fresh_report_only(
    status: str, taints: list[object], since: float, ready: bool
) -> None:
    condition = {"type": "Ready", "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    assert (
        api.accepts_pods({"spec": {"taints": taints}, "status": {"conditions": [condition]}}, since)
        is ready
    )


@pytest.mark.parametrize(("verb", "code"), [("down", 0), ("load x.tar", 2), ("wipe-volumes", 2)])
def test_an_existing_cluster_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, code: int
) -> None:
    monkeypatch.setenv("CONTEXT", "production")
    monkeypatch.setenv("MAGNETAR_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dev.kube", *verb.split()])
    assert main() == code
    assert list(tmp_path.iterdir()) == []


def test_up_with_a_context_only_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither preflight nor anything else runs; an unknown context is an error that names it."""
    monkeypatch.setattr(preflight, "rows", lambda *_, **__: pytest.fail("preflight ran"))
    monkeypatch.setenv("MAGNETAR_CACHE", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("dev.kube.existing.shutil.which", lambda _: "false")
    monkeypatch.setattr("sys.argv", ["dev.kube", "up", "--context", "production"])
    assert main() == 1
    assert "production" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_only_a_volume_whose_claim_was_deleted_is_reclaimed() -> None:
    phases = {"a": "Bound", "b": "Released", "c": "Available"}
    listed = {
        "items": [
            *(
                {"metadata": {"name": name}, "status": {"phase": phase}}
                for name, phase in phases.items()
            ),
            {"metadata": {"name": "new"}},
        ]
    }
    assert volumes.in_phase(listed, "Released") == {"b"}
