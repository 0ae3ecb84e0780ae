"""Rotating the authority of a managed etcd: any history of passes that end halfway, of files
that come late and of members that restart."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from itertools import pairwise, permutations

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import EtcdAuthorityStatus
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.etcd_tls import authorities_of, content
from magnetar_operator.builders.object import Manifest
from magnetar_operator.etcd import rotation as etcd_rotation
from magnetar_operator.etcd.certificates import fingerprint, make_authority
from magnetar_operator.etcd.rotation import SETTLE_MS, Authorities, Phase
from magnetar_operator.etcd.secrets import Write, plan_secrets, secret_names
from tests.support.samples import DEFAULTS, cluster

NOW_MS = 1_800_000_000_000
SECOND_MS = 1000
LATE_MS = 120 * SECOND_MS
"""A kubelet brings files at the latest after this."""
CLIENTS = ("operator", "broker", "coordinator", "job")


def asking(authority: str) -> BrokerCluster:
    """A cluster whose annotation asks for another authority in the place of this one."""
    made = cluster()
    metadata = made.metadata.model_copy(update={"annotations": {names.ROTATE_ETCD: authority}})
    return made.model_copy(update={"metadata": metadata})


@dataclass
class Party:
    """One process: the certificate that it shows and the authorities that it trusts. A member
    reads the latter when it starts only."""

    part: str
    is_member: bool
    certificate: bytes = b""
    bundle: bytes = b""
    trust: str = ""
    stale_since_ms: int | None = None


@dataclass
class Etcd:
    """Secrets, the members and their clients."""

    chance: random.Random
    now_ms: int = NOW_MS
    secrets: dict[str, Manifest | None] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.secrets = dict.fromkeys(secret_names(cluster()))
        self.parties = [Party(part, is_member=False) for part in CLIENTS] + [
            Party("server", is_member=True) for _ in range(3)
        ]
        self.reconcile(cluster())
        for party in self.parties:
            self.start(party)
        self.first = fingerprint(self.authorities.current.certificate)

    @property
    def authorities(self) -> Authorities:
        secret = self.secrets["main-etcd-ca"]
        assert secret is not None
        return authorities_of(secret)

    def _file(self, party: Party, file: str) -> bytes:
        return content(self.secrets[f"main-etcd-{party.part}"] or {}, file)

    def start(self, party: Party) -> None:
        party.bundle = self._file(party, "ca.crt")
        party.trust = self.authorities.name_of(party.bundle)
        self._see(party)

    def _see(self, party: Party) -> None:
        """The kubelet has brought the files: a party that is no member takes both for its next
        connection."""
        party.certificate, party.stale_since_ms = self._file(party, "tls.crt"), None
        if not party.is_member:
            party.bundle = self._file(party, "ca.crt")

    def reconcile(self, resource: BrokerCluster, writes_until_it_ends: int = 100) -> int:
        """One pass, which may end before it has written everything; how much there was to write."""
        held = {party.trust for party in self.parties if party.is_member}
        steps = plan_secrets(
            resource, self.secrets, self.now_ms, held.pop() if len(held) == 1 else None
        )
        for step in steps[:writes_until_it_ends]:
            assert isinstance(step, Write)
            self.secrets[step.manifest["metadata"]["name"]] = step.manifest
        for party in self.parties:
            files = self._file(party, "tls.crt"), self._file(party, "ca.crt")
            known = party.certificate, party.bundle if not party.is_member else files[1]
            if files != known and party.stale_since_ms is None:
                party.stale_since_ms = self.now_ms
        self.phases.append(self.authorities.phase)
        return len(steps)

    def pass_time(self) -> None:
        """Files reach some pods, and all that have waited for long; a member with an old
        template is restarted."""
        self.now_ms += self.chance.randrange(1, 20) * SECOND_MS
        for party in self.parties:
            since_ms = party.stale_since_ms
            if since_ms is not None and (
                self.chance.random() < 0.2 or self.now_ms - since_ms >= LATE_MS - 20 * SECOND_MS
            ):
                self._see(party)
        newest = self.authorities.name_of(content(self.secrets["main-etcd-server"] or {}, "ca.crt"))
        outdated = [party for party in self.parties if party.is_member and party.trust != newest]
        if outdated and self.chance.random() < 0.3:
            self.start(outdated[0])

    def check(self) -> None:
        """Every two of them that may connect trust each other."""
        for one, other in permutations(self.parties, 2):
            if one.is_member or other.is_member:
                assert _trusts(one.bundle, other.certificate), (
                    f"{one.part} does not trust {other.part} in phase {self.authorities.phase!r}"
                )


@functools.cache
def _trusts(bundle: bytes, certificate: bytes) -> bool:
    shown = x509.load_pem_x509_certificate(certificate)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            shown.verify_directly_issued_by(authority)
        except InvalidSignature:
            continue
        return True
    return False


def rotate(seed: int) -> Etcd:
    """A rotation from its request to its end, checked at every moment."""
    etcd = Etcd(random.Random(seed))
    resource = asking(etcd.first)
    for _ in range(2000):
        steps = etcd.reconcile(resource, etcd.chance.choice((0, 1, 2, 4, 100)))
        etcd.pass_time()
        etcd.check()
        settled = all(
            party.trust == etcd.authorities.trust for party in etcd.parties if party.is_member
        )
        if (
            steps == 0
            and settled
            and etcd.authorities.number
            and etcd.authorities.phase is Phase.NONE
        ):
            return etcd
    raise AssertionError(f"not over in phase {etcd.authorities.phase!r}")


@pytest.mark.parametrize("seed", range(8))
def test_everybody_trusts_everybody_at_every_moment_of_a_rotation(seed: int) -> None:
    """Passes end after any of their writes, files come up to two minutes late, members restart
    one by one when they like."""
    etcd = rotate(seed)
    changes = [later for earlier, later in pairwise(etcd.phases) if earlier is not later]
    assert changes == [Phase.TRUSTING, Phase.ISSUING, Phase.NONE]
    now = etcd.authorities
    assert (now.number, fingerprint(now.current.certificate) != etcd.first) == (1, True)
    for part in CLIENTS:
        secret = etcd.secrets[f"main-etcd-{part}"]
        assert secret is not None
        assert content(secret, "ca.crt") == now.current.certificate, (
            "the former authority is trusted by nobody"
        )
    assert etcd.reconcile(asking(etcd.first)) == 0, (
        "a request is over with the authority that it names"
    )


def test_the_check_notices_a_rotation_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the time to see files some party is not trusted."""
    monkeypatch.setattr(etcd_rotation, "SETTLE_MS", 0)
    with pytest.raises(AssertionError, match="does not trust"):
        [rotate(seed) for seed in range(12)]


def step_of(etcd: Etcd, resource: BrokerCluster) -> list[str]:
    """Names of the secrets that one whole pass wrote."""
    before = dict(etcd.secrets)
    etcd.reconcile(resource)
    return [name for name, secret in etcd.secrets.items() if secret != before[name]]


def test_a_request_for_another_authority_and_a_member_that_lags_begin_nothing() -> None:
    etcd = Etcd(random.Random(0))
    assert step_of(etcd, asking("0123456789abcdef")) == []
    etcd.parties[-1].trust = "else"
    assert step_of(etcd, asking(etcd.first)) == []
    etcd.parties[-1].trust = ""
    assert "main-etcd-ca" in step_of(etcd, asking(etcd.first))
    etcd.now_ms += 10 * SETTLE_MS
    assert step_of(etcd, asking(etcd.first)) == [], "members do not run with the bundle yet"


def test_an_old_authority_is_rotated_unasked() -> None:
    etcd = Etcd(random.Random(0))
    etcd.now_ms += 8 * 365 * 86_400_000 + 86_400_000
    etcd.reconcile(cluster())  # the certificates had ended long ago
    etcd.reconcile(cluster())
    assert etcd.authorities.phase is Phase.TRUSTING


def test_a_secret_that_is_repaired_within_a_phase_gets_its_time_too() -> None:
    etcd = Etcd(random.Random(0))
    etcd.reconcile(asking(etcd.first))
    for party in etcd.parties:
        etcd.start(party)
    etcd.now_ms += SETTLE_MS - 1
    etcd.secrets["main-etcd-job"] = None
    etcd.reconcile(asking(etcd.first))
    etcd.now_ms += SETTLE_MS - 1
    assert etcd.reconcile(asking(etcd.first)) == 0
    etcd.now_ms += 1
    etcd.reconcile(asking(etcd.first))
    assert etcd.authorities.phase is Phase.ISSUING


def test_what_cannot_be_read_of_a_rotation_is_as_if_it_were_not_there() -> None:
    good = make_authority("shop/main etcd", NOW_MS)
    for file in ("upcoming.crt", "former.crt"):
        etcd = Etcd(random.Random(0))
        secret = etcd.secrets["main-etcd-ca"]
        assert secret is not None
        secret["data"] |= {file: "eA==", "rotation": "eA=="}
        etcd.reconcile(cluster())
        assert etcd_rotation.understood(etcd.authorities, NOW_MS).phase is Phase.NONE
    assert Authorities(good).trust == ""


def test_pods_carry_whom_they_trust_only_after_a_rotation() -> None:
    """So that an upgrade of the operator restarts no etcd."""

    def template(trust: str) -> Manifest:
        made = cluster()
        status = made.status.model_copy(update={"etcd_authority": EtcdAuthorityStatus(trust=trust)})
        children = desired(made.model_copy(update={"status": status}), DEFAULTS, 1, {})
        found: Manifest = {identity_of(child): child for child in children}[
            "StatefulSet", "main-etcd"
        ]["spec"]["template"]
        return found

    assert "annotations" not in template("")["metadata"]
    assert template("ab")["metadata"]["annotations"] == {names.ETCD_TRUST: "ab"}
