"""Kubernetes quantities.

Owns: their value. Imports: the standard library. Pure.
"""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+)(?:[eE]([0-9]{1,3})|([a-zA-Z]*))")
_SCALES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "": Decimal(1), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def amount(quantity: object) -> Decimal | None:
    """Value of a quantity, or None if it is none. The API server rewrites 1024Mi as 1Gi: compare
    values, not texts."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or (match[3] or "") not in _SCALES:
        return None
    return Decimal(match[1]).scaleb(int(match[2] or 0)) * _SCALES[match[3] or ""]
