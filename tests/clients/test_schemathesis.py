"""Whatever is sent to a route of the OpenAPI document: no 500, every refusal in the shape that
admin clients parse, and the server continues."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, Response

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin, RestError

pytestmark = pytest.mark.timeout(900)
EXAMPLES = {GenerationMode.POSITIVE: 8, GenerationMode.NEGATIVE: 2}
"""Per route. What does not fit takes a tenth of a second to think of."""
POLICY_EXAMPLES = 3
"""Per policy and method, of which there are some three hundred."""
SHAPES: tuple[Any, ...] = ({}, [], True, 7, "some", {"some": [1]})
"""Values of every kind, of which each policy stores one: what is read back afterwards was there."""
METHODS = ("put", "post", "patch", "get", "head", "delete")
"""In this order: what is read or deleted was written before."""
SEED = 20_26
KNOWN = {
    "domain": ["persistent", "non-persistent"],
    "tenant": ["public", "absent"],
    "namespace": ["default", "absent"],
    "topic": ["t", "many", "many-partition-0", "absent"],
    "subscription": ["s", "absent"],
    "cluster": ["standalone", "absent"],
    "bundle": ["0x00000000_0x40000000", "0x00000000_0x00000001"],
    "key": ["k", "absent"],
    "role": ["someone", "absent"],
}
"""What is there, so that requests get beyond the first look at a name."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("server"), environment={"MAGNETAR_PARK_TIMEOUT_S": "2"}
    ) as process:
        yield process


def furnish(admin: Admin) -> None:
    """What `KNOWN` names, there or there again."""
    for method, path, body in (
        ("PUT", "tenants/public", {"allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/public/default", {}),
        ("PUT", "persistent/public/default/t", None),
        ("PUT", "persistent/public/default/many/partitions", 2),
        ("PUT", "persistent/public/default/t/subscription/s", {"ledgerId": -1, "entryId": -1}),
        ("PUT", "persistent/public/default/many/subscription/s", None),
        ("PUT", "namespaces/public/default/property/k/v", None),
        ("POST", "namespaces/public/default/permissions/someone", ["produce"]),
        ("POST", "persistent/public/default/t/permissions/someone", ["produce"]),
    ):
        with contextlib.suppress(RestError):
            admin.call(method, path, body)


def complaint(answer: Response) -> str:
    """What is wrong with an answer, "" if nothing."""
    if answer.status_code < 400:
        return "a body with 204" if answer.status_code == 204 and answer.content else ""
    if answer.status_code >= 500 and answer.status_code != 503:
        return "an error of the server's own"
    try:
        body = json.loads(answer.content)
    except ValueError:
        return "a refusal that is not JSON"
    good = (
        isinstance(body, dict)
        and list(body) in (["reason"], ["reason", "remedy"])
        and isinstance(body["reason"], str)
        and len(body["reason"]) > 5
    )
    return "" if good else "a refusal without a reason"


def operations(url: str) -> list[Any]:
    """All operations of the server's own document: by method, and then in its order."""
    described: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return sorted(
        (found.ok() for found in described.get_all_operations()),
        key=lambda found: METHODS.index(found.method.lower()),
    )


def policies(operation: Any) -> list[str]:
    """The policies that an operation is about, one of them at a time; none for most."""
    described = operation.definition.raw.get("parameters", ())
    return next(
        (list(found["schema"]["enum"]) for found in described if found["name"] == "policy"), []
    )


def can_be_unfit(operation: Any) -> bool:
    """Whether anything does not fit: a body, or a parameter that is not just a string (to find
    no string takes the generator seconds)."""
    described = operation.definition.raw
    kinds = {
        found.get("schema", {}).get("type", "string") for found in described.get("parameters", ())
    }
    return "requestBody" in described or bool(kinds - {"string"})


def attack(operation: Any, mode: GenerationMode, found: list[str], policy: str = "") -> bool:
    """Send examples to one operation, or to one policy of it, which is there; what is wrong is
    added to `found`. Whether any was taken."""
    taken = []

    @seed(SEED)
    @settings(
        max_examples=POLICY_EXAMPLES if policy else EXAMPLES[mode],
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode), place=st.randoms(use_true_random=False)
    )
    def run(case: Any, place: random.Random) -> None:
        for name in case.path_parameters or {}:
            if name in KNOWN and (policy or place.random() < 0.8):
                case.path_parameters[name] = (
                    KNOWN[name][0] if policy else place.choice(KNOWN[name][:1] * 4 + KNOWN[name])
                )
        if policy:
            case.path_parameters["policy"] = policy
            if "requestBody" in operation.definition.raw and place.random() < 0.7:
                case.body = place.choice(SHAPES)
        answer = case.call(timeout=60)
        taken.append(answer.status_code < 400)
        wrong = complaint(answer)
        if wrong:
            sent = answer.request
            found.append(
                f"{wrong}: {sent.method} {sent.url} {sent.body!r:.300} -> {answer.status_code} "
                f"{answer.text[:300]}"
            )

    # nothing that does not fit can be sent to a route without parameters
    with contextlib.suppress(Unsatisfiable):
        run()
    return any(taken)


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "unfitting"]
)
def test_no_request_breaks_a_route(server: ServerProcess, mode: GenerationMode) -> None:
    """Values that fit the document's shapes, and values that do not, at names that exist and
    names that do not."""
    admin = Admin(server)
    known = operations(server.http_url)
    assert len(known) > 130
    found: list[str] = []
    for operation in known:
        if mode is GenerationMode.NEGATIVE and not can_be_unfit(operation):
            continue
        furnish(admin)
        attack(operation, mode, found)
    assert found == []
    assert requests.get(f"{server.http_url}/admin/v2/brokers/health", timeout=60).text == "ok"


def test_no_request_breaks_a_policy(server: ServerProcess) -> None:
    """Every policy of a namespace and of a topic: whatever is stored in it, reading and removing
    are answered."""
    admin = Admin(server)
    about = [
        (operation, policy)
        for operation in operations(server.http_url)
        for policy in policies(operation)
    ]
    assert len(about) > 4 * 60
    found: list[str] = []
    missed = []
    for operation, policy in about:
        furnish(admin)
        taken = attack(operation, GenerationMode.POSITIVE, found, policy)
        if not taken and operation.method.lower() in ("get", "delete"):
            missed.append(f"{operation.method} {policy}")
    assert (found, missed) == ([], [])
    assert requests.get(f"{server.http_url}/admin/v2/brokers/health", timeout=60).text == "ok"
