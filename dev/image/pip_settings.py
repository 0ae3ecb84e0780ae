"""The machine's own pip settings, for the image build.

Owns: turning `pip config list` into a pip.conf for a build secret. May import: dev.kube.report.
Invariant: the settings reach the build as a secret mount only, so no index address or credential is
left in a layer.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dev.kube.report import CommandFailed, run_quietly

KEPT = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "retries",
    "timeout",
    "default-timeout",
)
BUNDLE_IN_BUILD = "/run/secrets/ca_bundle"
BUNDLE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def machine_settings() -> dict[str, str]:
    """What pip on this machine would use, from its files and the environment."""
    try:
        return parse(run_quietly([sys.executable, "-m", "pip", "config", "list"]))
    except CommandFailed:  # Debian's Python comes without pip
        prefixed = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return {
            name.removeprefix("PIP_").lower().replace("_", "-"): value
            for name, value in prefixed.items()
        }


def parse(listing: str) -> dict[str, str]:
    """Read `pip config list`; the environment comes first there and wins."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name.rpartition(".")[2], str(ast.literal_eval(value)))
    return found


def configuration(settings: Mapping[str, str], *, has_bundle: bool) -> str:
    """A pip.conf with what matters inside the build."""
    kept = {name: " ".join(settings[name].split()) for name in KEPT if name in settings}
    if has_bundle:
        kept["cert"] = BUNDLE_IN_BUILD
    kept["disable-pip-version-check"] = "1"
    kept["root-user-action"] = "ignore"
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in kept.items())


def certificate_bundle(settings: Mapping[str, str]) -> Path | None:
    """The bundle this machine trusts, if it names one of its own."""
    named = [settings.get("cert", ""), *(os.environ.get(name, "") for name in BUNDLE_VARIABLES)]
    return next((Path(name) for name in named if name and Path(name).is_file()), None)
