"""`magnetar apply` to a single server: what a manifest asks for and a server cannot take from it
is said."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.access import ANYBODY
from magnetar.cli.manifests import run_apply
from magnetar.cli.rest import Rest
from magnetar.cli.screen import OutputFormat, Screen
from magnetar.cli.session import Session

MANIFEST = "apiVersion: magnetar.io/v1alpha1\nkind: BrokerCluster\nmetadata: {name: main}\nspec: "


class Alone(Rest):
    """A server that is a cluster of its own, and is only asked."""

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        assert (path, query) == ("/magnetar/v1/status", None)
        return {"brokers": [{"broker": "standalone"}]}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{replicas: 3}", "its size is Kubernetes' to change"),
        (
            "{auth: {anonymousRole: guest}}",
            "instead of spec.auth it has the options --security: docs/security.md",
        ),
        (
            "{auth: {anonymousRole: guest}, tls: {secretName: x}}",
            "instead of spec.auth and spec.tls it has the options --security and --tls",
        ),
    ],
)
def test_a_single_server_says_which_options_it_has_instead_of_fields(
    tmp_path: Path, spec: str, said: str
) -> None:
    """Who applies `spec.auth` must not believe that anybody is kept out now."""
    file, text = tmp_path / "main.yaml", io.StringIO()
    file.write_text(MANIFEST + spec)
    run_apply(
        Session(Alone("http://127.0.0.1:1"), Screen(OutputFormat.TABLE, file=text), ANYBODY),
        file,
        False,
    )
    assert said in " ".join(text.getvalue().split())
