"""Checkpoints for tests of their format.

Owns: the encoder that holds all topics of a checkpoint. Imports: storage.
"""

from __future__ import annotations

from magnetar.storage.checkpoint import (
    Checkpoint,
    CheckpointEncoder,
)


def encoder_of(checkpoint: Checkpoint) -> CheckpointEncoder:
    """With all topics of a checkpoint."""
    made = CheckpointEncoder(
        checkpoint.bundle, checkpoint.epoch, checkpoint.incarnation, checkpoint.position
    )
    for name, topic in sorted(checkpoint.topics.items()):
        made.add(name, topic)
    return made
