"""`python -m dev.broker_settings`: write the list of a broker's settings that the operator and the
reference read.

Owns: `broker_image/magnetar/resources/broker_settings.json` and the text of `docs/settings.md`.
Imports: the broker's settings. Invariant: both are functions of `hosting/settings.py`, which the
operator may not import; `make crds` writes them, a test fails when they differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from magnetar.hosting.bounded import ENVIRONMENT_PREFIX, bounded_fields
from magnetar.hosting.live_settings import LIVE
from magnetar.hosting.settings import BrokerSettings

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "broker_image" / "magnetar" / "resources" / "broker_settings.json"
REFERENCE = ROOT / "docs" / "settings.md"
OF_THE_OPERATOR = {"drain_timeout_s": "spec.drainTimeoutSeconds"}
"""Settings that have a field of their own in a BrokerCluster."""
INTRODUCTION = f"""# Settings of a broker

Made from `broker_image/magnetar/hosting/settings.py` by `make docs`; do not edit.

A `BrokerCluster` takes them in `spec.config` by these names, as numbers; the API server checks names and bounds, and
`kubectl explain brokercluster.spec.config` shows this list. A change rolls the brokers one by one, unless the setting is *live*: then
running brokers follow it. A broker that is started by hand, and
`magnetar standalone`, read them as `{ENVIRONMENT_PREFIX}<NAME>`, for example `{ENVIRONMENT_PREFIX}KEEP_ALIVE_S=20`, and refuse to start on a
value out of bounds.

Live settings also change by `pulsar-admin brokers update-dynamic-config --config NAME --value VALUE` (REST:
`POST /admin/v2/brokers/configuration/NAME/VALUE`), for all brokers, until `delete-dynamic-config` returns to what each was
started with; `list-dynamic-config` lists them, with those of [load balancing](load-balancing.md). A value that the
`BrokerCluster` names wins. Settings of connections hold for connections made after the change. Other settings are refused
there, with what to do instead. Names that end in `_s` are seconds, in `_ms` milliseconds, in `_bytes` or `_bytes_max` bytes.

| setting | default | bounds | live | what it is |
|---|---|---|---|---|
"""


def settings() -> list[dict[str, Any]]:
    """Name, type (integer or number), bounds, default, description and, if it is not in
    `spec.config`, the field that sets it."""
    return [
        {
            "name": setting.name,
            "type": "integer" if isinstance(setting.default, int) else "number",
            "minimum": setting.metadata["low"],
            "maximum": setting.metadata["high"],
            "default": setting.default,
            "description": setting.metadata["what"],
            "field": OF_THE_OPERATOR.get(setting.name, ""),
            "live": setting.name in LIVE,
        }
        for setting in bounded_fields(BrokerSettings)
    ]


def listed() -> str:
    """The content of the list."""
    return json.dumps(settings(), indent=1) + "\n"


def reference() -> str:
    """The content of the reference."""
    rows = []
    for setting in settings():
        where = f" In a BrokerCluster: `{setting['field']}`." if setting["field"] else ""
        text = setting["description"].replace("|", "\\|")
        bounds = f"{setting['minimum']:.15g}..{setting['maximum']:.15g}"
        rows.append(
            f"| `{setting['name']}` | {setting['default']:.15g} | {bounds} | "
            f"{'yes' if setting['live'] else ''} | "
            f"{text[:1].upper()}{text[1:]}.{where} |\n"
        )
    return INTRODUCTION + "".join(rows)


def main() -> None:
    LIST.write_text(listed())
    REFERENCE.write_text(reference())


if __name__ == "__main__":
    main()
