"""Bundles of one namespace, as tests of garbage collection know them.

Owns: the names of two neighbours and of the children of the first, records of a bundle that is
owned and of one that is deleted. Imports: records of the metadata store.
"""

from __future__ import annotations

from magnetar.metadata.records import BundleRecord, BundleState, LogPosition, LogRange

BUNDLES = ("t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff")
CHILDREN = ("t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000")
DEAD = BundleRecord(BundleState.DELETED, 5)


def owned(epoch: int = 9) -> BundleRecord:
    return BundleRecord(
        BundleState.OWNED,
        epoch,
        "b.1",
        chain=(LogRange("b.1", LogPosition(0, 4096), None),),
        epochs=(epoch,),
    )
