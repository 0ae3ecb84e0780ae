"""The client's small parts: ids, acknowledgement words, back-off, addresses, error
codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import EARLIEST, LATEST, MessageId
from magnetar.client.backoff import Backoff
from magnetar.client.failures import BrokerRefused, failure_of
from magnetar.client.messages import ack_mask, ack_words
from magnetar.client.pool import Endpoint, parse_service_url
from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest, MagnetarError, Retry, WireCode


def test_ids_order_as_the_log_does() -> None:
    """Ledger, entry, index in the batch."""
    ids = [
        EARLIEST,
        MessageId(1, 9),
        MessageId(2, 0, 0),
        MessageId(2, 0, 5),
        MessageId(2, 1),
        LATEST,
    ]
    assert sorted(set(ids)) == ids
    assert [MessageId.from_wire(message_id.to_wire()) for message_id in ids] == ids


@given(st.integers(1, 300), st.data())
def test_acknowledgement_words_round_trip_as_signed_64_bits(size: int, data: st.DataObject) -> None:
    """Any mask of any batch."""
    mask = data.draw(st.integers(0, (1 << size) - 1))
    words = ack_words(mask, size)
    assert len(words) == (size + 63) // 64
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert ack_mask(words) == mask


def test_backoff_doubles_with_jitter_up_to_its_limit_and_starts_again() -> None:
    """0.1, 0.2, 0.4 ... 60 seconds, each at most a fifth shorter."""
    backoff = Backoff(SystemClock())
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    assert all(0.8 * full <= backoff.next() <= full for full in expected)
    backoff.reset()
    assert backoff.next() <= 0.1


def test_service_urls() -> None:
    """Several hosts, default ports, IPv6, TLS; what is none says so."""
    assert parse_service_url("pulsar://a:1,b,[::1]:2") == (
        Endpoint("a", 1),
        Endpoint("b", 6650),
        Endpoint("::1", 2),
    )
    assert str(Endpoint("::1", 2)) == "[::1]:2"
    assert parse_service_url("pulsar+ssl://a,b:1") == (
        Endpoint("a", 6651, True),
        Endpoint("b", 1, True),
    )
    for bad in ("http://a:1", "ssl://a:6651", "pulsar://", "pulsar://a:x"):
        with pytest.raises(InvalidRequest, match="pulsar://host:6650"):
            parse_service_url(bad)


def test_every_wire_code_becomes_a_typed_error_and_new_ones_are_retried() -> None:
    """Codes that stock clients treat as final are final here."""
    errors = {code: failure_of(code, "m") for code in WireCode}
    assert all(isinstance(error, MagnetarError) and "m" in str(error) for error in errors.values())
    final = {int(code) for code, error in errors.items() if error.retry is Retry.NEVER}
    assert {3, 4, 5, 8, 9, 11, 15, 16, 18, 19, 22, 25} <= final
    assert final.isdisjoint({0, 1, 2, 6, 14})
    assert failure_of(999, "new").retry is Retry.AFTER_BACKOFF
    fenced = errors[WireCode.PRODUCER_FENCED]
    assert isinstance(fenced, BrokerRefused)
    assert fenced.code is WireCode.PRODUCER_FENCED
