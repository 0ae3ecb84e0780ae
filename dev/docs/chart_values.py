"""The chart's values as documents.

Owns: reading the comments of values.yaml, the descriptions in values.schema.json, and the chart's
README. Imports: yaml. Invariants: values.yaml is the only place where a value is described; every
value has a comment and a schema, and every schema a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "magnetar"
_KEY = re.compile(r"^( *)([A-Za-z]\w*):")
Schema = dict[str, Any]

_HEAD = """\
# The Magnetar operator's chart

<!-- Generated from values.yaml and values.schema.json by `make docs`; do not edit. -->

Installs the operator, its resource definitions and rights. Brokers are made by `BrokerCluster` resources (docs/quickstart.md), installation is
described in docs/install.md.

```bash
helm upgrade --install magnetar charts/magnetar --namespace magnetar-system --create-namespace \\
  --set image.repository=registry.example/you/magnetar --set watchNamespaces={default}
```

There is no published image: an empty `image.repository` fails and prints how to build, push or load one.

- **Upgrade**: the same command. Resource definitions are part of the release, so they are upgraded too. Brokers are restarted only if their pods'
  template changes, one at a time; `status.pendingRestarts` of a BrokerCluster says which and why.
- **Uninstall**: `helm uninstall magnetar -n magnetar-system` is refused while clusters exist (`--no-hooks` passes that). It never removes resource
  definitions, clusters, brokers or volumes; a release of the same name and namespace takes them up again.
- **Second release** on the same cluster, for other namespaces: `--set crds.install=false --set watchNamespaces={theirs}`.

## Values

| value | type | default | |
|---|---|---|---|
"""


def comments() -> dict[str, str]:
    """Dotted name of every described value -> its comment."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            pending.append(stripped.lstrip("# "))
        elif match := _KEY.match(line):
            indent = len(match[1])
            while stack and stack[-1][0] >= indent:
                stack.pop()
            stack.append((indent, match[2]))
            if pending:
                found[".".join(name for _, name in stack)] = " ".join(pending)
            pending = []
        else:
            pending = []
    return found


def values() -> dict[str, Any]:
    """Dotted name of every value that the schema describes -> its default."""
    document = yaml.safe_load((CHART / "values.yaml").read_text())
    return {name: _at(document, name) for name, _ in leaves(schema())}


def schema() -> Schema:
    loaded: Schema = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def leaves(node: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Name and schema of every value; an object that only groups others is none. `global`
    belongs to helm."""
    for name, child in node["properties"].items():
        if not prefix and name == "global":
            continue
        if "properties" in child and _groups(f"{prefix}{name}"):
            yield from leaves(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def described_schema() -> str:
    """values.schema.json with the descriptions of values.yaml. Raises ValueError naming values
    without comment, or without schema."""
    document, texts = schema(), comments()
    known = dict(leaves(document))
    if wrong := sorted(set(known) ^ set(texts)):
        raise ValueError(
            "values.yaml needs a comment, and values.schema.json a type, for each of: "
            f"{', '.join(wrong)}"
        )
    for name, node in known.items():
        content = {key: value for key, value in node.items() if key != "description"}
        node.clear()
        node.update({"description": texts[name], **content})
    return json.dumps(document, indent=2) + "\n"


def readme() -> str:
    """The chart's README.md."""
    texts, defaults = comments(), values()
    rows = [
        f"| `{name}` | {_type(node)} | `{json.dumps(defaults[name])}` | "
        f"{_cell(texts.get(name, ''))} |"
        for name, node in leaves(schema())
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _groups(name: str) -> bool:
    """An object without a comment of its own is a heading, not a value."""
    return name not in comments()


def _at(document: Any, name: str) -> Any:
    for part in name.split("."):
        document = document[part]
    return document


def _type(node: Schema) -> str:
    if "enum" in node:
        return _cell(
            " | ".join(item if isinstance(item, str) else json.dumps(item) for item in node["enum"])
        )
    kind = node["type"]
    if kind == "array":
        return f"list of: {_type(node['items'])}"
    if kind == "integer" and "minimum" in node:
        return f"integer, {node['minimum']}..{node['maximum']}"
    return str(kind)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
