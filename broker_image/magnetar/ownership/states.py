"""States of a bundle's record.

Owns: which change each state allows, and the state after it. Imports: state_tables,
metadata.records. Pure. Source: PIP-192's bundle states. Invariant: every override passes through
Assigning.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from magnetar.metadata.records import BundleState
from magnetar.state_tables import StateTable


class Change(enum.Enum):
    """Changes of a record; functions of `rules` make them."""

    ASSIGN = "assign"
    OWN = "own"
    PIN = "pin"
    ADVANCE_CHECKPOINT = "advance the checkpoint"
    RELEASE = "release"
    TRANSFER = "RELEASE written, to a destination"
    FREE = "RELEASE written, to no destination"
    SPLIT = "split"
    DIVIDE = "RELEASE written, divide"
    MERGE = "merge"
    UNITE = "RELEASE written, merge"
    KEEP = "call the merge off"
    CALL_OFF = "RELEASE written, call it off"
    OVERRIDE = "override a dead owner"
    REASSIGN = "replace the destination"
    RETIRE = "the namespace is deleted"


BUNDLES: StateTable[BundleState | None, Change] = StateTable(
    None,  # no record
    MappingProxyType(
        {
            (None, Change.ASSIGN): BundleState.ASSIGNING,
            (BundleState.FREE, Change.ASSIGN): BundleState.ASSIGNING,
            (BundleState.FREE, Change.RETIRE): BundleState.DELETED,
            (BundleState.ASSIGNING, Change.OWN): BundleState.OWNED,
            (BundleState.ASSIGNING, Change.REASSIGN): BundleState.ASSIGNING,
            (BundleState.ASSIGNING, Change.OVERRIDE): BundleState.ASSIGNING,
            (BundleState.OWNED, Change.PIN): BundleState.OWNED,
            (BundleState.OWNED, Change.ADVANCE_CHECKPOINT): BundleState.OWNED,
            (BundleState.OWNED, Change.RELEASE): BundleState.RELEASING,
            (BundleState.OWNED, Change.SPLIT): BundleState.SPLITTING,
            (BundleState.OWNED, Change.MERGE): BundleState.MERGING,
            (BundleState.OWNED, Change.OVERRIDE): BundleState.ASSIGNING,
            (BundleState.RELEASING, Change.ADVANCE_CHECKPOINT): BundleState.RELEASING,
            (BundleState.RELEASING, Change.TRANSFER): BundleState.ASSIGNING,
            (BundleState.RELEASING, Change.FREE): BundleState.FREE,
            (BundleState.RELEASING, Change.OVERRIDE): BundleState.ASSIGNING,
            (BundleState.SPLITTING, Change.ADVANCE_CHECKPOINT): BundleState.SPLITTING,
            (BundleState.SPLITTING, Change.DIVIDE): BundleState.DELETED,
            (BundleState.SPLITTING, Change.CALL_OFF): BundleState.FREE,
            (BundleState.SPLITTING, Change.OVERRIDE): BundleState.ASSIGNING,
            (BundleState.MERGING, Change.UNITE): BundleState.DELETED,
            (BundleState.MERGING, Change.KEEP): BundleState.OWNED,
            (BundleState.MERGING, Change.CALL_OFF): BundleState.FREE,
            (BundleState.MERGING, Change.OVERRIDE): BundleState.ASSIGNING,
        }
    ),
)
"""Deleted is final: the record is removed, and a bundle of that range begins without one."""


def states_that_allow(change: Change) -> tuple[BundleState | None, ...]:
    return tuple(state for state, known in BUNDLES.transitions if known is change)
