"""What waits while a bundle is divided is bounded, in number and in bytes."""

from __future__ import annotations

from magnetar.server.parked import REQUEST_BYTES_MAX, REQUESTS_MAX, ParkedWork


def test_requests_are_refused_beyond_their_bytes_and_their_number() -> None:
    """One ACK may be megabytes; what is refused takes no room."""
    parked, large = ParkedWork(0), REQUEST_BYTES_MAX // 2

    def nothing() -> None: ...

    taken = [parked.request(size, nothing) for size in (large, large + 1, large, 1)]
    assert taken == [True, False, True, False]
    assert [parked.request(0, nothing) for _ in range(REQUESTS_MAX - 1)] == [True] * (REQUESTS_MAX - 2) + [False]
