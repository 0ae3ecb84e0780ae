"""The program cache: complete entries or none, and versions that agree with the Go modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.kube import binaries, configuration
from dev.kube.paths import MODULES, Paths, cache_directory
from dev.kube.versions import NODE_PROGRAMS, PROGRAMS, Program, stamps


def test_an_entry_appears_whole(tmp_path: Path) -> None:
    with binaries.entry(tmp_path, "tool-1") as directory:
        (directory / "tool").write_text("program")
        assert not (tmp_path / "tool-1").exists()
    assert (tmp_path / "tool-1" / "tool").read_text() == "program"
    assert [path.name for path in tmp_path.iterdir()] == ["tool-1"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interrupted_build_leaves_nothing(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    with pytest.raises(interruption), binaries.entry(tmp_path, "tool-1") as directory:  # noqa: PT012 - the point of it
        (directory / "tool").write_text("half a pro")
        raise interruption
    assert list(tmp_path.iterdir()) == []


def test_an_entry_without_its_program_is_not_cached(tmp_path: Path) -> None:
    """What a crash between two versions of this tool could leave."""
    paths = Paths(tmp_path)
    (paths.binaries / PROGRAMS["etcd"].cache_key).mkdir(parents=True)
    assert binaries.cached("etcd", paths) is None


def test_a_cached_program_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path)
    with binaries.entry(paths.binaries, PROGRAMS["etcd"].cache_key) as directory:
        (directory / "etcd").write_text("program")
    monkeypatch.setenv("PATH", "")  # no compiler to be found
    assert binaries.ensure(["etcd"], paths)["etcd"].read_text() == "program"


def test_an_unknown_program_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(binaries.UnknownProgram, match="kube-apiserver"):
        binaries.ensure(["kubernetes"], Paths(tmp_path))


@pytest.mark.parametrize(
    "program",
    [each for each in PROGRAMS.values() if each.module != "pause"],
    ids=lambda each: each.name,
)
def test_the_version_table_agrees_with_the_go_modules(program: Program) -> None:
    requirements = dict(
        re.findall(
            r"^\s*(?:require )?(\S+/\S+) v(\S+)",
            (MODULES / program.module / "go.mod").read_text(),
            re.M,
        )
    )
    assert requirements[program.source] == program.version


def test_every_staging_module_has_the_version_of_kubernetes() -> None:
    replaced = re.findall(
        r"^\t(\S+) => (\S+) v0\.(\S+)$", (MODULES / "node" / "go.mod").read_text(), re.M
    )
    assert len(replaced) == 31
    assert {version for _, _, version in replaced} == {
        PROGRAMS["kubelet"].version.removeprefix("1.")
    }
    assert all(name == target for name, target, _ in replaced)


def test_kubernetes_programs_carry_their_version() -> None:
    """Without the stamp the API server reports v0.0.0 and clients misjudge it."""
    assert "version.gitVersion=v1.34.4" in stamps()
    assert "version.gitMinor=34" in stamps()


def test_helm_carries_its_version() -> None:
    assert f"helm/v3/internal/version.version=v{PROGRAMS['helm'].version}" in stamps()


def test_the_dns_server_has_the_plugins_that_its_configuration_names(tmp_path: Path) -> None:
    """In CoreDNS's order, which decides who answers."""
    source = (MODULES / "node" / "coredns" / "main.go").read_text()
    order = re.findall(r'"(\w+)"', re.search(r"Directives = (.*)", source)[1])  # type: ignore[index]
    named = re.findall(r"^    (\w+)", configuration.dns_text(Paths(tmp_path)), re.M)
    assert set(named) == set(order) == set(re.findall(r"coredns/plugin/(\w+)", source))


@pytest.mark.parametrize(
    ("name", "built_as"),
    [("etcd", "server"), ("etcdctl", "etcdctl"), ("coredns", "coredns"), ("kubelet", "kubelet")],
)
def test_go_names_a_program_after_its_package(name: str, built_as: str) -> None:
    assert PROGRAMS[name].built_as == built_as


def test_the_node_needs_neither_helm_nor_etcdctl() -> None:
    assert {"helm", "etcdctl"}.isdisjoint(NODE_PROGRAMS)
    assert set(NODE_PROGRAMS) <= PROGRAMS.keys()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MAGNETAR_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/magnetar")),
        ({"XDG_CACHE_HOME": ""}, Path("~/.cache/magnetar").expanduser().resolve()),
    ],
)
def test_the_cache_directory_follows_the_environment(
    environment: dict[str, str], expected: Path
) -> None:
    assert cache_directory(environment) == expected
