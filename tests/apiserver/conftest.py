"""One API server for the whole tier; every test has a Kubernetes namespace of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dev.testbed.control_plane import (
    ROOT,
    ControlPlane,
    ControlPlaneNotAvailable,
    EtcdProcess,
    is_ci,
)
from magnetar.clock import SystemClock
from tests.apiserver.job_stage import SetClock
from tests.apiserver.rights import WHOLE_TIER
from tests.apiserver.stage import Scene

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with _running(tmp_path_factory.mktemp("control-plane")) as plane:
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            plane.must(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                yaml.safe_load(path.read_text()),
            )
        _wait_until_established(plane)
        plane.install_rights()
        yield plane


@contextmanager
def _running(directory: Path) -> Iterator[ControlPlane]:
    """An API server whose audit log is kept; outside CI the test is skipped where there is none."""
    plane = ControlPlane(directory, audited=True)
    try:
        plane.start()
    except ControlPlaneNotAvailable as error:
        plane.stop()
        if is_ci():
            raise
        pytest.skip(f"no API server, so nothing of this tier was tested: {error}")
    try:
        yield plane
    finally:
        plane.stop()


def _wait_until_established(plane: ControlPlane) -> None:
    waited = plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")
    assert waited.returncode == 0, waited.stderr


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What judges all requests of the tier runs last, and knows whether the whole tier has run
    before."""
    here = Path(__file__).parent
    last = [item for item in items if item.path == here / "test_rights.py"]
    items[:] = [item for item in items if item not in last] + last
    filtered = bool(
        config.option.keyword or config.option.markexpr or config.getoption("deselect", None)
    )
    chosen_singly = any("::" in argument for argument in config.args)
    present = {item.path for item in items}
    whole = set(here.glob("test_*.py")) <= present and not filtered and not chosen_singly
    config.stash[WHOLE_TIER] = whole


@pytest.fixture(scope="session")
def chart_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of its own for what installs the chart: nothing but helm puts anything
    there."""
    with _running(tmp_path_factory.mktemp("chart-plane")) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{next(_numbers)}"
    control_plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The namespace, and an operator started here has the operator's rights."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    return Scene(control_plane, namespace)


@pytest.fixture(scope="session")
def cluster_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """The metadata store of the Magnetar clusters under test."""
    etcd = EtcdProcess(tmp_path_factory.mktemp("cluster-etcd"))
    try:
        etcd.start()
    except ControlPlaneNotAvailable as error:
        if is_ci():
            raise
        pytest.skip(f"no etcd, so nothing of this tier was tested: {error}")
    try:
        yield etcd
    finally:
        etcd.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """The wall clock of this process, the operator's included."""
    clock, wall_ms = SetClock(), SystemClock.wall_ms
    monkeypatch.setattr(SystemClock, "wall_ms", lambda this: wall_ms(this) + clock.ahead_ms)
    return clock
