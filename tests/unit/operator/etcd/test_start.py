"""Whether an etcd pod may start on what its volume holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_operator.etcd import start as etcd_start
from magnetar_operator.etcd.start import StartRefused, prepare


def environment(opened: str = "", member: str = "") -> dict[str, str]:
    return {etcd_start.OPEN: opened, etcd_start.MEMBER: member, etcd_start.POD_NAME: "main-etcd-1"}


def give_data(directory: Path, content: str) -> None:
    log = directory / "data" / "member" / "wal"
    log.mkdir(parents=True)
    (log / "0.wal").write_text(content)


def data_of(directory: Path) -> str:
    return (directory / "data" / "member" / "wal" / "0.wal").read_text()


def test_a_volume_without_data_starts_only_in_the_pod_that_is_expected(tmp_path: Path) -> None:
    for variables in (environment(), environment("main-etcd-2", "ab")):
        with pytest.raises(StartRefused, match=r"^NoData: "):
            prepare(tmp_path, variables)
    # etcd was interrupted before its log was whole
    (tmp_path / "data" / "member" / "wal.tmp").mkdir(parents=True)
    with pytest.raises(StartRefused):
        prepare(tmp_path, environment())
    assert (
        prepare(tmp_path, environment("main-etcd-1", "ab"))
        == "joins as member ab; the removed member's data is set aside"
    )
    assert prepare(tmp_path, environment("main-etcd-1", "ab")) == "joins as member ab"
    assert prepare(tmp_path, environment("main-etcd-1")) == "begins a cluster"


def test_data_is_kept_unless_another_member_is_expected_instead(tmp_path: Path) -> None:
    give_data(tmp_path, "old")
    for variables in (environment(), environment("main-etcd-1"), environment("main-etcd-2", "ab")):
        assert prepare(tmp_path, variables) == "starts on its data"
    assert data_of(tmp_path) == "old"
    prepare(tmp_path, environment("main-etcd-1", "ab"))
    assert not (tmp_path / "data").exists()
    give_data(tmp_path, "new")
    # the same start once more, interrupted or not
    prepare(tmp_path, environment("main-etcd-1", "ab"))
    assert data_of(tmp_path) == "new"


def test_what_was_set_aside_goes_with_the_start_after_the_next(tmp_path: Path) -> None:
    give_data(tmp_path, "old")
    prepare(tmp_path, environment("main-etcd-1", "ab"))
    assert (tmp_path / "set-aside" / "member" / "wal" / "0.wal").read_text() == "old"
    give_data(tmp_path, "new")
    prepare(tmp_path, environment())
    assert not (tmp_path / "set-aside").exists()
    assert data_of(tmp_path) == "new"
