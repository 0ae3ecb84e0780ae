"""How consumers attach to a subscription.

Owns: the states of a subscription's attachment and their table. Imports: state_tables. Pure.
Source: Pulsar's SUBSCRIBE. Invariant: all connected consumers have one type; without consumers any
type may come.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from magnetar.state_tables import StateTable


class Attachment(enum.Enum):
    """Type of the connected consumers; names as in `SubscriptionType`."""

    DETACHED = "Detached"
    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class AttachmentEvent(enum.Enum):
    """What changes an attachment; SUBSCRIBE has the names of `SubscriptionType`."""

    EXCLUSIVE = "SUBSCRIBE as Exclusive"
    SHARED = "SUBSCRIBE as Shared"
    FAILOVER = "SUBSCRIBE as Failover"
    KEY_SHARED = "SUBSCRIBE as Key_Shared"
    LEFT = "a consumer leaves"
    LAST_LEFT = "the last consumer leaves"


_ATTACHED = tuple(found for found in Attachment if found is not Attachment.DETACHED)
_SEVERAL = tuple(found for found in _ATTACHED if found is not Attachment.EXCLUSIVE)

ATTACHMENTS: StateTable[Attachment, AttachmentEvent] = StateTable(
    Attachment.DETACHED,
    MappingProxyType(
        {(Attachment.DETACHED, AttachmentEvent[found.name]): found for found in _ATTACHED}
        | {(found, AttachmentEvent[found.name]): found for found in _SEVERAL}
        | {(found, AttachmentEvent.LEFT): found for found in _SEVERAL}
        | {(found, AttachmentEvent.LAST_LEFT): Attachment.DETACHED for found in _ATTACHED}
    ),
)
