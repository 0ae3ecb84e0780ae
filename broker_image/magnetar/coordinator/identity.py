"""Who a transaction coordinator is.

Owns: the number that a pod's name gives it, what one incarnation of it is called, and which numbers
there may be. Imports: errors, records. Pure. Invariants: the ordinal of the pod is the number
(TCID): a StatefulSet never has two pods of one ordinal; a transaction of a number beyond the limit
is a peer's invention, and nothing is kept of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.errors import InvalidRequest, NotAllowed
from magnetar.metadata.records import COORDINATORS_MAX, ListenerAddress
from magnetar.transactions.ids import TxnId

_ORDINAL = re.compile(r"-(0|[1-9][0-9]*)\Z")


@dataclass(frozen=True, slots=True)
class CoordinatorIdentity:
    """One incarnation of a coordinator: its number, name and addresses, `listeners` at the start;
    `incarnation` is the unit of fencing."""

    tcid: int
    name: str
    incarnation: str
    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""
    listeners: Mapping[str, ListenerAddress] = field(default_factory=dict)


def tcid_of(name: str) -> int:
    """The number at the end of a pod's name. Raises InvalidRequest if there is none or it is
    beyond the limit."""
    match = _ORDINAL.search(name)
    if match is None:
        raise InvalidRequest(
            f"name: {name!r} has no ordinal; a coordinator's number is the end of its name, for "
            "example main-coordinator-0"
        )
    tcid = int(match[1])
    if tcid >= COORDINATORS_MAX:
        raise InvalidRequest(
            f"name: {name!r} is number {tcid}; a cluster has at most {COORDINATORS_MAX} "
            "coordinators, from 0 on"
        )
    return tcid


def check_coordinator(tcid: int) -> None:
    """Raises NotAllowed for a number that no coordinator can have: of the protocol's errors the
    one that makes no client try again."""
    if tcid >= COORDINATORS_MAX:
        raise NotAllowed(
            f"txnid_most_bits: {tcid} is no transaction coordinator's number, they are "
            f"0..{COORDINATORS_MAX - 1}; use the id that NEW_TXN was "
            "answered with"
        )


def txn_of(request: Any) -> TxnId:
    """The transaction that a request names. Raises NotAllowed for one of a number that no
    coordinator can have."""
    check_coordinator(request.txnid_most_bits)
    return TxnId(request.txnid_most_bits, request.txnid_least_bits)
