"""Kubernetes quantities.

Owns: their value. Imports: the standard library. Pure.
"""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+)([a-zA-Z]*)")
_SCALES = {
    "m": Decimal("0.001"), "": Decimal(1), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip


def amount(quantity: object) -> Decimal | None:
    """Value of a quantity, or None if it is none of the common forms. The API server rewrites 1024Mi as 1Gi: compare values, not texts."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or match[2] not in _SCALES:
        return None
    return Decimal(match[1]) * _SCALES[match[2]]
