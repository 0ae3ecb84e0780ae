"""Which topics a `DataJob` works on.

Owns: `JobTopics`, one topic or all of a namespace, with its rules; the types of job that are said by
them. Imports: resources.base, magnetar.names.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from magnetar.errors import InvalidTopicName
from magnetar.names import NAME_LENGTH_MAX, PART_LENGTH_MAX, PART_PATTERN, TopicName
from magnetar.resources.base import Model, Rule

TOPIC_PATTERN = f"^(persistent://)?{PART_PATTERN}/{PART_PATTERN}/.+$"
NAMESPACE_LENGTH_MAX = 2 * PART_LENGTH_MAX + 1


def is_topic(name: str) -> bool:
    """Whether it is the full name of a persistent topic."""
    try:
        return re.fullmatch(TOPIC_PATTERN, name) is not None and TopicName.parse(name).persistent
    except InvalidTopicName:
        return False


class JobTopics(Model):
    """One topic, or all of a namespace."""

    topic: str | None = Field(
        default=None,
        min_length=1,
        max_length=NAME_LENGTH_MAX,
        description="Full name of a persistent topic; a partitioned topic stands for all its "
        "partitions.",
    )
    namespace: str | None = Field(
        default=None,
        min_length=3,
        max_length=NAMESPACE_LENGTH_MAX,
        pattern=f"^{PART_PATTERN}/{PART_PATTERN}$",
        description="Or tenant/namespace: all its persistent topics.",
    )


def _rules_of(field: str) -> tuple[Rule, ...]:
    return (
        Rule(
            "has(self.topic) != has(self.namespace)",
            f"{field}: write either topic or namespace",
            lambda found: (found.topic is None) != (found.namespace is None),
        ),
        Rule(
            f"!has(self.topic) || self.topic.matches('{TOPIC_PATTERN}')",
            f"{field}.topic: write persistent://tenant/namespace/topic",
            lambda found: found.topic is None or is_topic(found.topic),
        ),
    )


class Compaction(JobTopics):
    """Topic compaction: keep the latest message of every key."""

    RULES: ClassVar[tuple[Rule, ...]] = _rules_of("compaction")

    retain_keyless: bool = Field(
        default=False, description="Keep messages without a key instead of dropping them."
    )


class TransactionLogCompaction(JobTopics):
    """Compaction of transaction logs (PIP-31): messages in the order of commits, aborted ones
    dropped."""

    RULES: ClassVar[tuple[Rule, ...]] = _rules_of("transactionLogCompaction")
