"""Who a transaction coordinator is.

Owns: the number that a pod's name gives it, and what one life of it is called. Imports: errors. Pure.
Invariant: the ordinal of the pod is the number (TCID): a StatefulSet never has two pods of one ordinal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.errors import InvalidRequest
from magnetar.metadata.records import COORDINATORS_MAX

_ORDINAL = re.compile(r"-(0|[1-9][0-9]*)$")


@dataclass(frozen=True, slots=True)
class CoordinatorIdentity:
    """One life of a coordinator: its number, name and addresses; `incarnation` is the unit of fencing."""

    tcid: int
    name: str
    incarnation: str
    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""


def tcid_of(name: str) -> int:
    """The number at the end of a pod's name. Raises InvalidRequest if there is none or it is beyond the limit."""
    match = _ORDINAL.search(name)
    if match is None:
        raise InvalidRequest(
            f"name: {name!r} has no ordinal; a coordinator's number is the end of its name, for example main-coordinator-0"
        )
    tcid = int(match[1])
    if tcid >= COORDINATORS_MAX:
        raise InvalidRequest(f"name: {name!r} is number {tcid}; a cluster has at most {COORDINATORS_MAX} coordinators, from 0 on")
    return tcid
