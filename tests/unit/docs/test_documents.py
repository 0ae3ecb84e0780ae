"""What the documents speak of exists: commands, fields, values, conditions, alerts, files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.docs import chart_values, metrics, reference
from magnetar.cli.commands import application
from magnetar.resources import KINDS
from magnetar.resources.definitions import definitions
from magnetar_operator.conditions import Reason, Type

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [
    *(
        DOCS / name
        for name in (
            "README.md",
            "install.md",
            "quickstart.md",
            "operations.md",
            "failures.md",
            "autoscaling.md",
            "etcd-access.md",
            "transactions.md",
        )
    )
]
PAGES += sorted((DOCS / "runbooks").glob("*.md"))
IDS = [str(page.relative_to(DOCS)) for page in PAGES]

OF_KUBERNETES = {
    "BackOff", "ConfigMap", "ClusterRole", "CrashLoopBackOff", "ImagePullBackOff", "NetworkPolicy", "Pending", "PodDisruptionBudget", "PodMonitor",
    "PodSecurity", "PrometheusRule", "ReadWriteMany", "ReadWriteOnce", "ResourceQuota", "Role", "StatefulSet", "False", "True", "Delete", "Retain",
    "Traceback",
}  # fmt: skip
_CODE = re.compile(r"`([^`\n]+)`")
_WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z0-9]*)*")
_LINK = re.compile(r"\]\(([^)#]+)\)")
_COMMAND = re.compile(r"(?<![\w/.-])magnetar ((?:[a-z]+(?:-[a-z]+)*(?: |\b)){1,2})")


def _prose(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _paths() -> set[str]:
    """Every field of every kind, as `spec.a.b`."""
    found = {"spec", "status"}
    for definition in definitions().values():
        properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        for part in ("spec", "status"):
            found |= {
                place.replace("[]", "") for place, _ in reference.fields(properties[part], part)
            }
    return found


def _phases() -> set[str]:
    """What a field `phase` or `state` may say, from its description."""
    found = set()
    for definition in definitions().values():
        properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        for place, node in reference.fields(properties["status"], "status"):
            if place.endswith((".phase", ".state", ".decision", ".etcdSecurity", ".rotation")):
                found |= set(re.findall(r"[A-Z][A-Za-z]+", node.get("description", "")))
    return found


FIELDS = _paths()
VALUES = {name for name, _ in chart_values.leaves(chart_values.schema())}
VALUE_GROUPS = {name.rpartition(".")[0] for name in VALUES} | VALUES
ALERTS = {alert["alert"] for alert in metrics.alerts()}
WORDS = (
    OF_KUBERNETES
    | {reason.value for reason in Reason}
    | {kind.value for kind in Type}
    | set(KINDS)
    | set(reference.event_reasons())
    | ALERTS
    | _phases()
)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_fields_and_values_exist(page: Path) -> None:
    """Dotted names in code: fields of our kinds, or values of the chart."""
    roots = {name.partition(".")[0] for name in VALUES if "." in name}
    for code in _CODE.findall(_prose(page)):
        name = code.partition("=")[0].partition(":")[0].partition(" ")[0]
        if re.fullmatch(r"(spec|status)(\.[a-zA-Z]+)*", name):
            assert name in FIELDS, f"`{code}`: no kind has this field"
        elif (
            re.fullmatch(r"[a-z][a-zA-Z]*(\.[a-zA-Z]+)+", name) and name.partition(".")[0] in roots
        ):
            assert name in VALUE_GROUPS, f"`{code}`: the chart has no such value"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_values_in_blocks_exist(page: Path) -> None:
    for name in re.findall(r"--set(?:-string)? ([a-zA-Z.]+)=", page.read_text()):
        assert name in VALUES, f"--set {name}: the chart has no such value"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_reasons_conditions_kinds_and_alerts_exist(page: Path) -> None:
    """Words in code that look like one of them."""
    for code in _CODE.findall(_prose(page)):
        if _WORD.fullmatch(code):
            assert code in WORDS, f"`{code}` is no reason, condition, event, kind or alert"
    for name in re.findall(r"\bMagnetar[A-Z][A-Za-z]+\b", page.read_text()):
        assert name in ALERTS, f"{name} is no alert"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist(page: Path) -> None:
    """`magnetar COMMAND` and `make TARGET`."""
    groups = {
        str(found.name): {
            command.name or command.callback.__name__
            for command in found.typer_instance.registered_commands
            if command.callback
        }
        for found in application.registered_groups
        if found.typer_instance is not None
    }
    single = {
        found.name or found.callback.__name__
        for found in application.registered_commands
        if found.callback is not None
    }
    code = "\n".join(
        [
            *_CODE.findall(_prose(page)),
            *re.findall(r"^```.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL),
        ]
    )
    for found in _COMMAND.findall(code):
        first, _, second = found.strip().partition(" ")
        if first in groups:
            assert not second or second in groups[first], f"magnetar {found}"
        else:
            assert first in single | {"standalone", "broker", "operator", "charts"}, (
                f"magnetar {found}"
            )
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", code, re.MULTILINE):
        assert target in targets, f"make {target}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_and_files_exist(page: Path) -> None:
    for link in _LINK.findall(_prose(page)):
        if "://" not in link:
            assert (page.parent / link).exists(), link
    for name in re.findall(r"(?:-f |`)((?:examples|charts|docs|tests)/[\w./-]+)", page.read_text()):
        assert (ROOT / name).exists(), name
