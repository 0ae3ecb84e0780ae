"""Certificates of the managed etcd: that they verify, and when they are made again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from magnetar_operator.builders.etcd_tls import subjects
from magnetar_operator.etcd.certificates import (
    Pair,
    Subject,
    authority_problem,
    end_ms,
    is_old,
    issue,
    leaf_problem,
    make_authority,
    material_problem,
)
from tests.support.samples import cluster

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
AUTHORITY = make_authority("shop/main etcd", NOW_MS)
MEMBERS = subjects(cluster())["server"]
LEAF = issue(AUTHORITY, MEMBERS, NOW_MS)
BROKER = Subject("broker")


def loaded(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def at(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms // 1000, UTC)


@pytest.mark.parametrize(
    "host",
    [
        "main-etcd.shop.svc",
        "main-etcd.shop.svc.cluster.local",
        "main-etcd-0.main-etcd.shop.svc",
        "main-etcd-2.main-etcd.shop.svc",
        "localhost",
    ],
)
def test_a_members_certificate_verifies_for_every_name_it_is_reached_under(host: str) -> None:
    """By a verifier that is not ours."""
    verifier = (
        PolicyBuilder()
        .store(Store([loaded(AUTHORITY)]))
        .time(at(NOW_MS))
        .build_server_verifier(x509.DNSName(host))
    )
    assert [found.subject for found in verifier.verify(loaded(LEAF), [])] == [
        loaded(LEAF).subject,
        loaded(AUTHORITY).subject,
    ]


def test_a_members_certificate_is_for_no_other_cluster() -> None:
    for host in (
        "other-etcd.shop.svc",
        "main-etcd.elsewhere.svc",
        "main-etcd-3.main-etcd.shop.svc",
    ):
        verifier = (
            PolicyBuilder()
            .store(Store([loaded(AUTHORITY)]))
            .time(at(NOW_MS))
            .build_server_verifier(x509.DNSName(host))
        )
        with pytest.raises(x509.verification.VerificationError):
            verifier.verify(loaded(LEAF), [])


def test_keys_are_p256_and_lives_are_one_year_and_ten() -> None:
    for pair, days in ((AUTHORITY, 3650), (LEAF, 365)):
        key = serialization.load_pem_private_key(pair.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)
        assert (loaded(pair).not_valid_after_utc - at(NOW_MS)).days == days
    with pytest.raises(x509.ExtensionNotFound):
        loaded(issue(AUTHORITY, BROKER, NOW_MS)).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )


@given(st.integers(-10 * 60_000, 400 * DAY_MS))
def test_a_certificate_is_renewed_when_two_thirds_of_its_life_are_over_and_not_before(
    age_ms: int,
) -> None:
    problem = leaf_problem(LEAF, AUTHORITY, MEMBERS, NOW_MS + age_ms)
    due = age_ms >= 365 * DAY_MS * 2 / 3 - 10 * 60_000 / 3
    assert bool(problem) == due
    assert not due or problem.startswith("two thirds of its lifetime are over")


def test_whatever_is_wrong_with_a_certificate_is_noticed() -> None:
    stranger = make_authority("shop/main etcd", NOW_MS)
    other = issue(AUTHORITY, BROKER, NOW_MS)
    found = {
        "another authority": leaf_problem(
            issue(stranger, MEMBERS, NOW_MS), AUTHORITY, MEMBERS, NOW_MS
        ),
        "common name": leaf_problem(other, AUTHORITY, Subject("job"), NOW_MS),
        "host names": leaf_problem(LEAF, AUTHORITY, Subject("member", ("localhost",)), NOW_MS),
        "cannot be read": leaf_problem(Pair(b"", b""), AUTHORITY, BROKER, NOW_MS),
        "another certificate": leaf_problem(
            Pair(other.certificate, LEAF.key), AUTHORITY, BROKER, NOW_MS
        ),
        "not valid yet": leaf_problem(other, AUTHORITY, BROKER, NOW_MS - DAY_MS),
        "purpose is missing": leaf_problem(AUTHORITY, AUTHORITY, Subject("shop/main etcd"), NOW_MS),
    }
    for sentence, problem in found.items():
        assert sentence in problem
    assert leaf_problem(other, AUTHORITY, BROKER, NOW_MS) == ""


def test_an_authority_issues_nothing_that_outlives_it() -> None:
    last_year = NOW_MS + (3650 - 100) * DAY_MS
    assert authority_problem(AUTHORITY, last_year) == ""
    assert (
        loaded(issue(AUTHORITY, BROKER, last_year)).not_valid_after_utc
        == loaded(AUTHORITY).not_valid_after_utc
    )
    assert "it has ended" in authority_problem(AUTHORITY, NOW_MS + 3650 * DAY_MS)
    assert "not a certificate authority" in authority_problem(LEAF, NOW_MS)
    assert "cannot be read" in authority_problem(Pair(AUTHORITY.certificate, b"x"), NOW_MS)


def test_an_authority_is_old_two_years_before_its_end() -> None:
    assert not is_old(AUTHORITY, NOW_MS + (3650 - 730) * DAY_MS)
    assert is_old(AUTHORITY, NOW_MS + (3650 - 729) * DAY_MS)


def test_the_end_of_a_bundle_is_that_of_its_first_certificate_to_end() -> None:
    ends = int(loaded(LEAF).not_valid_after_utc.timestamp() * 1000)
    assert end_ms(AUTHORITY.certificate + LEAF.certificate) == ends
    assert end_ms(b"x") is None
    assert end_ms(b"") is None


def test_material_of_others_is_checked_before_it_is_used() -> None:
    good = (AUTHORITY.certificate, LEAF.certificate, LEAF.key)
    assert material_problem(*good) == ""
    assert material_problem(b"", *good[1:]).startswith("ca.crt")
    assert material_problem(good[0], b"x", good[2]).startswith("tls.crt")
    assert material_problem(*good[:2], b"x").startswith("tls.key")
    assert material_problem(*good[:2], AUTHORITY.key) == "tls.key does not belong to tls.crt"


def test_no_text_of_a_pair_shows_its_key() -> None:
    assert "PRIVATE" not in f"{LEAF!r} {LEAF}"
