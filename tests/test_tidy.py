"""The project lints itself: what linters do not check. Limits here tighten, never loosen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "broker_image/magnetar",
    "operator/magnetar_operator",
    "spark_jobs/magnetar_jobs",
    "dev",
)
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX, CLASS_LINES_MAX = 60, 350
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager|impl)(_|$)")
HEAVY_MODULES = (
    "rich",
    "typer",
    "pyarrow",
    "numpy",
    "pandas",
    "kubernetes",
    "kopf",
    "aetcd",
    "grpc",
    "pyspark",
)


def _sources() -> list[Path]:
    return sorted(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py") and "__pycache__" not in path.parts
    )


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_has_a_header_and_stays_readable(path: Path) -> None:
    """Every module says what it owns, and neither it nor a function of it outgrows a reader."""
    text = path.read_text()
    tree = ast.parse(text)
    header = ast.get_docstring(tree) or ""
    assert header, "no module docstring"
    assert "Owns" in header, "the header does not say what the module owns"
    over = [f"{len(text.splitlines())} lines"] if len(text.splitlines()) > FILE_LINES_MAX else []
    over += [
        f"{node.name} has {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1)
        > (CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX)
    ]
    assert over == []
    assert not BANNED_NAMES.search(path.stem), f"{path.stem} says nothing about what is inside"


def _imports() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports, for types only and inside of functions too."""
    modules = {}
    for path in _sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "dev" else parts[1:]
        modules[".".join(part for part in parts if part != "__init__")] = path
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in full]
            else:
                continue
            found[module] |= {name for name in names if name in modules} - {module}
    return found


def test_no_imports_go_in_circles() -> None:
    """A reader follows type-only and deferred imports as well."""
    left = _imports()
    while True:
        leaves = {module for module, imported in left.items() if not imported & left.keys()}
        if not leaves:
            break
        left = {module: found for module, found in left.items() if module not in leaves}
    importers = {module for imported in left.values() for module in imported}
    assert {
        module: sorted(left[module] & left.keys()) for module in left if module in importers
    } == {}


def test_dev_imports_no_tests() -> None:
    """Tests and tools depend one way: what both need is in dev/testbed."""
    offenders = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "dev").rglob("*.py")
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ]
    assert offenders == []


def test_no_test_module_is_a_library_of_another() -> None:
    """What tests share is in tests/support, or in a module beside them that holds no tests."""
    offenders = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            offenders += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in names
                if name.startswith("tests.") and ".test_" in name
            ]
    assert offenders == []


def test_time_and_chance_come_only_from_the_clock() -> None:
    """No module of the broker reads time or randomness but `clock.py` (and processes that
    measure themselves in `cli/`)."""
    allowed = {"clock.py", "cli/serve.py"}
    offenders = []
    for path in (ROOT / "broker_image/magnetar").rglob("*.py"):
        name = str(path.relative_to(ROOT / "broker_image/magnetar"))
        if name in allowed or name.endswith("_pb2.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and [a.name for a in node.names] != ["timedelta"]:
                names.append(node.module or "")
            offenders += [
                f"{name} imports {found}"
                for found in names
                if found in ("time", "random", "secrets", "datetime")
            ]
    assert offenders == []


def test_patterns_of_whole_texts_do_not_end_with_a_dollar_sign() -> None:
    r"""`$` also matches before a line break at the end: `fullmatch` and `\Z` do not."""
    pattern = re.compile(r"""re\.(?:compile|match|search)\([^\n]*\$["']""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in _sources()
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert [line for line in found if "MULTILINE" not in line] == []


def test_every_invariant_names_a_test_that_fails_without_it() -> None:
    """A planted bug that is hunted, or a file of tests; never a folder."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 11)]
    hunted = (ROOT / "tests/simulation/test_planted_bugs.py").read_text()
    for number, proof in rows:
        named = re.findall(r"`([\w/.]+)`", proof)
        assert named, f"invariant {number} names no test"
        for name in named:
            known = (ROOT / name).is_file() if "/" in name else f'"{name}":' in hunted
            assert known, f"invariant {number} names {name}"


def test_commits_name_no_registry_and_no_machine() -> None:
    """Tracked files hold no address of a package registry and no absolute path of a developer's
    machine."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(
        r"https?://[\w.-]*(pypi|pythonhosted|npmjs|proxy\.golang|maven\.org|debian\.org)",
        re.IGNORECASE,
    )
    offenders = []
    for name in files:
        path = ROOT / name
        if path.suffix in (".png", ".gz") or not path.is_file() or path == Path(__file__):
            continue
        offenders += [name for _ in pattern.finditer(path.read_text(errors="replace"))]
    assert offenders == []


UNTIL_TRANSACTIONS = (
    "magnetar.coordinator.incarnation",
    "magnetar.coordinator.transactions",
    "magnetar.transactions.coordinator.core",
)


@pytest.mark.slow
def test_a_coordinator_is_imported_when_it_is_needed() -> None:
    """A server that never sees a transaction does not load what would carry them out."""
    program = (
        f"import sys, magnetar.cli.serve; print([name for name in {UNTIL_TRANSACTIONS!r} if name "
        "in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_idle_broker_imports_stay_light() -> None:
    """What `magnetar standalone` imports has no Spark, Arrow, Kubernetes, gRPC or terminal
    library in it."""
    program = (
        "import sys; sys.argv = ['magnetar', 'standalone'];"
        "sys.modules.setdefault('rich', None);"
        "import magnetar.cli.serve;"
        f"print([name for name in {HEAVY_MODULES!r} if sys.modules.get(name) is not None])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
