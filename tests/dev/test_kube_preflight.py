"""The preflight table: every row that is not fine says what to do."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.kube import preflight
from dev.kube.addresses import BRIDGE_IP, LISTENERS, LOOPBACK
from dev.kube.paths import Paths
from dev.kube.preflight import Row, State

LISTENING = """\
tcp LISTEN 0 4096 10.244.0.1:6443 0.0.0.0:* users:(("kube-apiserver",pid=17,fd=5))
tcp LISTEN 0 128  0.0.0.0:10250   0.0.0.0:* users:(("kubelet",pid=18,fd=5))
udp UNCONN 0 0    127.0.0.53%lo:53 0.0.0.0:*
tcp LISTEN 0 4096 *:12379         *:*
"""


def test_the_table_lines_up() -> None:
    text = preflight.render(
        [Row("Go", State.MISSING, "not installed", "install it"), Row("root", State.OK, "yes")]
    )
    assert text.splitlines() == [
        "CHECK  STATE    FOUND          WHAT TO DO",
        "Go     MISSING  not installed  install it",
        "root   ok       yes",
    ]


def test_a_taken_port_names_its_owner() -> None:
    (row,) = preflight.port_rows(LISTENING, BRIDGE_IP, 6443)
    assert row.state is State.MISSING
    assert "kube-apiserver (pid 17)" in row.detail
    assert "kill 17" in row.remedy


def test_the_wildcard_takes_every_address() -> None:
    assert preflight.port_rows(LISTENING, BRIDGE_IP, 10250)
    (row,) = preflight.port_rows(LISTENING, LOOPBACK, 12379)
    assert "another user" in row.detail


def test_another_address_takes_nothing() -> None:
    """systemd-resolved listens on 127.0.0.53, our DNS on the bridge."""
    assert preflight.port_rows(LISTENING, BRIDGE_IP, 53) == []
    assert preflight.port_rows(LISTENING, LOOPBACK, 6443) == []


def test_only_missing_rows_block() -> None:
    rows = [
        Row("a", State.OK, ""),
        Row("b", State.WILL, ""),
        Row("c", State.NOTE, ""),
        Row("d", State.MISSING, ""),
    ]
    assert [row.check for row in preflight.blockers(rows)] == ["d"]


def test_without_root_it_points_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    row = next(
        row for row in preflight.rows(Paths(tmp_path), node_is_up=True) if row.check == "root"
    )
    assert row.state is State.MISSING
    assert "CONTEXT" in row.remedy


def test_every_real_row_that_is_not_fine_has_a_remedy(tmp_path: Path) -> None:
    rows = preflight.rows(Paths(tmp_path / "not" / "there"), node_is_up=False)
    assert all(row.remedy for row in rows if row.state is not State.OK)
    assert not (tmp_path / "not").exists()


def test_listeners_are_private_and_distinct() -> None:
    assert {listener.address for listener in LISTENERS} == {LOOPBACK, BRIDGE_IP}
    assert len({(listener.address, listener.port) for listener in LISTENERS}) == len(LISTENERS)


def test_a_node_that_runs_needs_little_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Programs and images are there already: 5 GiB do for it, and not for a new node."""
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 2**30))
    paths = Paths(cache=tmp_path)
    disk = [
        next(row for row in preflight.rows(paths, node_is_up=up) if row.check == "free disk")
        for up in (True, False)
    ]
    assert [row.state for row in disk] == [State.OK, State.MISSING]
