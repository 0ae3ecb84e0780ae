"""`magnetar status`.

Owns: the tables that people see. Imports: the REST client of `cli.rest`, rich (only here, when a table is printed).
Invariant: `--output json` prints exactly what the server answered, for scripts.
"""

from __future__ import annotations

import json

from magnetar.cli.rest import request


def run_status(http_url: str, as_json: bool) -> None:
    """Show brokers and bundles as the server at `http_url` sees them."""
    status = request("GET", f"{http_url}/magnetar/v1/status")
    if as_json:
        print(json.dumps(status, indent=2, sort_keys=True))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"cluster storage {status['storage_id']}, leader {_broker_of(status['leader']) or 'none'}")
    brokers = Table("broker", "service URL", "bundles", "topics", "in msg/s", "out msg/s", "state", box=box.SIMPLE_HEAD)
    for row in status["brokers"]:
        brokers.add_row(*(str(row[name]) for name in ("broker", "service_url", "bundles", "topics", "in", "out", "state")))
    console.print(brokers)
    bundles = Table("bundle", "state", "epoch", "owner", "reason", box=box.SIMPLE_HEAD)
    for row in status["bundles"]:
        bundles.add_row(row["bundle"], row["state"], str(row["epoch"]), _broker_of(row["owner"]), row["reason"])
    console.print(bundles)


def _broker_of(incarnation: str) -> str:
    """The broker's name; `--output json` has whole incarnations."""
    return incarnation.rpartition(".")[0]
