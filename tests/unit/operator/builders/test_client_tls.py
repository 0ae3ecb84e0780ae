"""TLS for clients as pods see it: ports, names and mounts, which changes restart nobody, and
which certificates will not do."""

from __future__ import annotations

import argparse
import copy
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from magnetar.cli import serving
from magnetar.errors import InvalidRequest
from magnetar.hosting.advertised import parse_bind_addresses, parse_listeners
from magnetar.resources import API_VERSION, parse_manifest
from magnetar.security.document import parse_document
from magnetar_operator.brokers.client_security import SeenSecurity, authority_known, judge
from magnetar_operator.brokers.desired import Identity, desired, identity_of
from magnetar_operator.brokers.status import Observed, derive
from magnetar_operator.builders.client_tls import (
    AUTHORITY_PATH,
    Certificate,
    broker_hosts,
    coordinator_hosts,
    judged,
)
from magnetar_operator.builders.coordinator_set import desired_coordinators
from magnetar_operator.builders.listeners import listener_statuses
from magnetar_operator.builders.security import ANYBODY, DOCUMENT
from magnetar_operator.conditions import Problem, Reason, Type, wall_ms_of
from magnetar_operator.engine.planning import plan, sealed
from magnetar_operator.etcd.certificates import LEAF_LIFETIME, Pair, Subject, issue, make_authority
from magnetar_operator.pods.rolling import BrokerPod, RollPlan, held, plan_roll
from tests.support.pod_templates import AUTH, arguments, templates
from tests.support.samples import DEFAULTS, cluster, coordinators

NOW_MS = wall_ms_of("2026-11-01T00:00:00Z")
DAY_MS = 86_400_000
TLS: dict[str, Any] = {"secretName": "main-tls"}
NAMES = ("main.shop.svc", "*.main-brokers.shop.svc")
AUTHORITY = make_authority("tests", NOW_MS - DAY_MS)


def made(authority: bool = False, **spec: Any) -> dict[Identity, dict[str, Any]]:
    return {
        identity_of(found): found
        for found in desired(cluster(**spec), DEFAULTS, 2, {}, authority=authority)
    }


def document(authority: bool = False, **spec: Any) -> dict[str, Any]:
    found = made(authority, **spec)["ConfigMap", "main-security"]["data"]
    assert list(found) == [DOCUMENT]
    parse_document(found[DOCUMENT])  # a process takes it
    parsed: dict[str, Any] = yaml.safe_load(found[DOCUMENT])
    return parsed


def secret(kind: str = "kubernetes.io/tls", **files: bytes) -> dict[str, Any]:
    data = {name.replace("_", "."): b64encode(content).decode() for name, content in files.items()}
    return {"metadata": {"name": "s"}, "type": kind, "data": data}


def pair(names: tuple[str, ...] = NAMES, begun_ms: int = NOW_MS) -> Pair:
    return issue(AUTHORITY, Subject("main", names), begun_ms)


def tls_secret(
    names: tuple[str, ...] = NAMES, begun_ms: int = NOW_MS, authority: bytes = b""
) -> dict[str, Any]:
    issued = pair(names, begun_ms)
    files = {"tls_crt": issued.certificate, "tls_key": issued.key} | (
        {"ca_crt": authority} if authority else {}
    )
    return secret("kubernetes.io/tls", **files)


# --- what pods get --------------------------------------------------------------------------------


def test_without_tls_nothing_of_it_is_there() -> None:
    """No volume, argument or port more: an upgrade of the operator restarts nobody."""
    for template in (*templates().values(), *templates(auth=AUTH).values()):
        given = arguments(template)
        assert not {"--tls", "--plain", "--tls-port", "--https-port"} & set(given)
        assert given["--advertised-address"] == "$(POD_IP)"
        assert {port["containerPort"] for port in template["spec"]["containers"][0]["ports"]} == {
            6650,
            8080,
        }
        assert "tls" not in {volume["name"] for volume in template["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("component", "service"), [("broker", "main-brokers"), ("coordinator", "tx-coordinators")]
)
def test_with_tls_processes_are_known_by_name_and_open_both_kinds_of_port(
    component: str, service: str
) -> None:
    """A certificate cannot name pods' addresses."""
    template = templates(tls=TLS)[component]
    given = arguments(template)
    assert (given["--tls"], given["--tls-port"], given["--https-port"]) == (
        "/etc/magnetar/tls",
        "6651",
        "8443",
    )
    assert given["--plain"] == "open"
    assert given["--advertised-address"] == f"$(POD_NAME).{service}.shop.svc"
    container = template["spec"]["containers"][0]
    assert {port["containerPort"] for port in container["ports"]} == {6650, 8080, 6651, 8443}
    assert container["readinessProbe"]["httpGet"] == {
        "path": "/ready",
        "port": "http",
        "scheme": "HTTP",
    }
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "tls"]
    assert volume["secret"] == {"secretName": "main-tls", "defaultMode": 0o440}


@pytest.mark.parametrize("component", ["broker", "coordinator"])
def test_processes_take_the_arguments_that_their_pods_give(
    component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's own command line parses them."""
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr(serving, f"_{component}", taken.append)
    serving.serve(templates(tls=TLS, auth=AUTH)[component]["spec"]["containers"][0]["args"][1:])
    (given,) = taken
    assert (given.tls, given.tls_port, given.https_port, given.plain) == (
        "/etc/magnetar/tls",
        6651,
        8443,
        "open",
    )


@pytest.mark.parametrize(
    ("plain", "ports"),
    [
        ("Open", {6650, 8080, 6651, 8443}),
        ("Internal", {6650, 8080, 6651, 8443}),
        ("Closed", {6651, 8443}),
    ],
)
def test_ports_are_open_where_processes_listen_and_nowhere_else(
    plain: str, ports: set[int]
) -> None:
    """Containers, services and network policies agree; probes go where a process answers; the
    status names what clients may use."""
    resource = cluster(tls={**TLS, "plain": plain})
    found = [
        *desired(resource, DEFAULTS, 2, {}),
        *desired_coordinators(coordinators(), resource, DEFAULTS, 1, {}),
    ]
    objects = {identity_of(item): item for item in found}
    for name in ("main", "main-brokers", "tx-coordinators"):
        assert {port["port"] for port in objects["Service", name]["spec"]["ports"]} == ports
    for name in ("main-broker", "tx-coordinator"):
        own = objects["NetworkPolicy", name]["spec"]["ingress"][0]
        assert {port["port"] for port in own["ports"]} == ports
        container = objects["StatefulSet", name]["spec"]["template"]["spec"]["containers"][0]
        assert {port["containerPort"] for port in container["ports"]} == ports
        scheme = "HTTPS" if plain == "Closed" else "HTTP"
        probes = [
            container[probe]["httpGet"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        ]
        assert {probe["scheme"] for probe in probes} == {scheme}
        assert {probe["port"] for probe in probes} == {scheme.lower()}
        labels = objects["StatefulSet", name]["spec"]["template"]["metadata"]["labels"]
        assert labels.get("magnetar.io/plain", "") == ("closed" if plain == "Closed" else ""), (
            "metrics are scraped where they are"
        )
    endpoints = derive(resource, Observed({}, (), None), RollPlan(), ()).endpoints
    assert endpoints.service_url == ("pulsar://main.shop.svc:6650" if plain == "Open" else "")
    assert (endpoints.service_url_tls, endpoints.https_url) == (
        "pulsar+ssl://main.shop.svc:6651",
        "https://main.shop.svc:8443",
    )


def test_clients_of_a_listener_with_tls_get_addresses_of_tls() -> None:
    """The port, the addresses that a broker gets, and the status; a listener without TLS stays
    as it is."""
    listeners = [
        {"name": "mesh", "type": "ClusterIP", "tls": True},
        {"name": "old", "type": "ClusterIP"},
    ]
    resource = cluster(tls=TLS, listeners=listeners)
    first = {identity_of(item): item for item in desired(resource, DEFAULTS, 2, {})}
    observed = {identity_of(item): item for item in desired(resource, DEFAULTS, 2, first)}
    given = arguments(observed["StatefulSet", "main-broker"]["spec"]["template"])
    assert given["--bind-addresses"] == "mesh:pulsar+ssl://0.0.0.0:6660,old:pulsar://0.0.0.0:6661"
    assert len(parse_bind_addresses(given["--bind-addresses"])) == 2
    addresses = parse_listeners(
        observed["ConfigMap", "main-broker-listeners"]["data"]["main-broker-1"]
    )
    assert addresses["mesh"].service_url_tls == "pulsar+ssl://main-broker-1-mesh.shop.svc:6650"
    assert addresses["old"].service_url == "pulsar://main-broker-1-old.shop.svc:6650"
    urls = [status.service_url for status in listener_statuses(resource, observed, {})]
    assert urls == [
        "pulsar+ssl://main-broker-mesh.shop.svc:6650",
        "pulsar://main-broker-old.shop.svc:6650",
    ]


def test_processes_know_each_other_also_where_nobody_asks_clients() -> None:
    """With TLS alone everybody may do everything, and the cluster's own key is there for a plain
    port that is theirs."""
    alone = document(authority=True, tls=TLS)
    assert alone["authentication"] == {"anonymousRole": ANYBODY, "tls": False}
    assert alone["authorization"]["enabled"] is False
    assert alone["internal"]["caFile"] == AUTHORITY_PATH


def test_an_authority_that_cannot_be_read_now_stays_known() -> None:
    """A secret that is unavailable for a moment changes no document."""
    config = made(authority=True, tls=TLS)["ConfigMap", "main-security"]
    assert authority_known(SeenSecurity(authority=None), config)
    assert not authority_known(
        SeenSecurity(authority=None), made(tls=TLS)["ConfigMap", "main-security"]
    )
    assert not authority_known(SeenSecurity(authority=None), None)
    assert not authority_known(SeenSecurity(authority=False), config)


@pytest.mark.parametrize(
    "spec", [{"tls": TLS}, {"auth": {**AUTH, "clientCertificates": True}, "tls": TLS}]
)
def test_planning_against_what_was_just_applied_yields_nothing(spec: dict[str, Any]) -> None:
    observed = {name: copy.deepcopy(sealed(item)) for name, item in made(**spec).items()}
    assert plan(desired(cluster(**spec), DEFAULTS, 2, observed), observed, "u-1") == []


# --- what certificates must be --------------------------------------------------------------------


def bad_secrets() -> Iterator[tuple[dict[str, Any] | None, Reason, str]]:
    good, other = pair(), pair()
    yield None, Reason.TLS_SECRET_MISSING, "secret main-tls does not exist"
    yield (
        tls_secret() | {"type": "kubernetes.io/basic-auth"},
        Reason.TLS_SECRET_UNUSABLE,
        "has the type kubernetes.io/basic-auth",
    )
    yield secret(tls_crt=good.certificate), Reason.TLS_SECRET_UNUSABLE, "has no tls.key"
    yield secret("Opaque"), Reason.TLS_SECRET_UNUSABLE, "has no tls.crt and no tls.key"
    yield (
        secret(tls_crt=b"x", tls_key=good.key),
        Reason.TLS_SECRET_UNUSABLE,
        "tls.crt is not a PEM certificate",
    )
    yield (
        secret(tls_crt=good.certificate, tls_key=other.key),
        Reason.TLS_SECRET_UNUSABLE,
        "tls.key does not belong to tls.crt",
    )
    yield tls_secret(), Reason.CLIENT_AUTHORITY_MISSING, "has no ca.crt"
    yield tls_secret(authority=b"\n"), Reason.CLIENT_AUTHORITY_MISSING, "has no ca.crt"
    yield tls_secret(authority=b"x"), Reason.TLS_SECRET_UNUSABLE, "ca.crt is not a PEM certificate"


@pytest.mark.parametrize(("found", "reason", "said"), list(bad_secrets()))
def test_a_secret_that_will_not_do_is_reported_and_holds_restarts(
    found: dict[str, Any] | None, reason: Reason, said: str
) -> None:
    """A pod that were restarted now would not come back, or would not know its clients: even a
    sick one is left alone."""
    seen = judge(cluster(auth={"clientCertificates": True}, tls=TLS), found, None, NOW_MS)
    (problem,) = seen.blocking
    assert (problem.reason, seen.authority) == (reason, None)
    assert said in problem.message
    (finding,) = seen.findings
    assert (finding.type, finding.holds, finding.reason) == (Type.CERTIFICATE, False, reason)
    outdated = plan_roll(
        [BrokerPod("main-broker-0", "old", ready=False, terminating=False)], "new", 1, scaling=False
    )
    assert outdated.restart == "main-broker-0"
    assert held(outdated, seen.blocking) == RollPlan(
        "", outdated.pending, f"the end of this: {problem.message}"
    )
    assert held(outdated, ()) == outdated


def test_what_is_said_of_a_pair_holds_nothing_of_its_key() -> None:
    good, other = pair(), pair()
    seen = judge(
        cluster(tls=TLS), secret(tls_crt=good.certificate, tls_key=other.key), None, NOW_MS
    )
    text = json.dumps([problem.message for problem in seen.blocking])
    for key in (good.key, other.key):
        assert key.decode().splitlines()[1] not in text


def test_a_certificate_is_reported_before_it_ends_and_when_it_has() -> None:
    """Ending soon is said by its own condition and degrades nothing; a new one heals both."""
    resource, found = cluster(tls=TLS), tls_secret(authority=AUTHORITY.certificate)
    end_ms = NOW_MS + int(LEAF_LIFETIME.total_seconds() * 1000)

    def at(wall_ms: int, found: dict[str, Any] = found) -> tuple[bool, Reason, list[Problem]]:
        seen = judge(resource, found, None, wall_ms, broker_hosts(resource))
        assert seen.blocking == ()
        assert seen.authority is True
        (finding,) = seen.findings
        return finding.holds, finding.reason, list(seen.problems)

    assert at(NOW_MS) == (True, Reason.AS_DESIRED, [])
    assert at(end_ms - 15 * DAY_MS) == (True, Reason.AS_DESIRED, [])
    assert at(end_ms - 14 * DAY_MS) == (False, Reason.CERTIFICATE_EXPIRES, [])
    holds, reason, problems = at(end_ms)
    assert (holds, reason) == (False, Reason.CERTIFICATE_EXPIRED)
    assert [problem.reason for problem in problems] == [Reason.CERTIFICATE_EXPIRED]
    assert "it ended 2027-11-01 00:00 UTC" in problems[0].message
    assert at(NOW_MS - DAY_MS)[1] is Reason.CERTIFICATE_EXPIRED, "not valid yet"
    assert at(end_ms, tls_secret(begun_ms=end_ms, authority=AUTHORITY.certificate)) == (
        True,
        Reason.AS_DESIRED,
        [],
    )


def test_a_short_lived_certificate_is_not_reported_throughout_its_lifetime() -> None:
    """One of a day ends soon when a quarter of it is left: cert-manager renews with a third
    left."""
    begin = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    certificate = Certificate(begin, begin + timedelta(hours=24), NAMES)
    hosts = broker_hosts(cluster())
    said = [judged(certificate, hosts, NOW_MS + hour * 3_600_000)[0] for hour in (1, 17, 18, 24)]
    assert said == [
        Reason.AS_DESIRED,
        Reason.AS_DESIRED,
        Reason.CERTIFICATE_EXPIRES,
        Reason.CERTIFICATE_EXPIRED,
    ]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (NAMES, ""),
        (("main.shop.svc", "main-broker-0.main-brokers.shop.svc"), ""),
        (("*.shop.svc", "*.MAIN-brokers.shop.svc"), ""),
        (("main.shop.svc",), "main-broker-0.main-brokers.shop.svc"),
        (("*.shop.svc",), "main-broker-0.main-brokers.shop.svc"),
        (("example.com",), "main.shop.svc, main-broker-0.main-brokers.shop.svc"),
        ((), "main.shop.svc, main-broker-0.main-brokers.shop.svc"),
    ],
)
def test_host_names_that_clients_will_look_for_are_looked_for_first(
    names: tuple[str, ...], missing: str
) -> None:
    """As RFC 6125 has it: a star stands for one label."""
    resource = cluster(tls=TLS)
    (finding,) = judge(resource, tls_secret(names), None, NOW_MS, broker_hosts(resource)).findings
    assert finding.holds == (not missing)
    if missing:
        assert finding.reason is Reason.CERTIFICATE_NAMES
        assert f"it is not for {missing}." in finding.message


def test_names_of_coordinators_are_looked_for_by_their_own_resource() -> None:
    """What a coordinator advertises is what is looked for."""
    hosts = coordinator_hosts("tx", "shop")
    assert (
        arguments(templates(tls=TLS)["coordinator"])["--advertised-address"].replace(
            "$(POD_NAME)", "tx-coordinator-0"
        )
        in hosts
    )
    (lacking,) = judge(cluster(tls=TLS), tls_secret(), None, NOW_MS, hosts).findings
    assert lacking.reason is Reason.CERTIFICATE_NAMES
    (whole,) = judge(
        cluster(tls=TLS), tls_secret((*NAMES, "*.tx-coordinators.shop.svc")), None, NOW_MS, hosts
    ).findings
    assert whole.holds


# --- what a spec may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"auth": {"clientCertificates": True}}, "auth.clientCertificates needs spec.tls"),
        ({"tls": {}}, "secretName"),
        ({"tls": {"secretName": "a", "plain": "open"}}, "'Open', 'Internal' or 'Closed'"),
        ({"listeners": [{"name": "p", "tls": True}]}, "listeners: tls needs spec.tls"),
        (
            {"tls": {"secretName": "a", "plain": "Closed"}, "listeners": [{"name": "p"}]},
            "would admit no client",
        ),
    ],
)
def test_tls_that_cannot_be_meant_is_refused(spec: dict[str, Any], said: str) -> None:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": spec,
    }
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(manifest)
    assert said in str(refused.value)
