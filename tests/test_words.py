"""The project writes as its field writes: words that only this project used in their sense.

Owns: the table of such words and what to say instead. Checked over product code (identifiers,
texts, docstrings and comments), custom resource definitions, the chart, examples and documents.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = (
    "broker_image/magnetar",
    "operator/magnetar_operator",
    "spark_jobs/magnetar_jobs",
    "crds",
    "charts",
    "docs",
    "examples",
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
)
KINDS = frozenset({".py", ".yaml", ".yml", ".json", ".md", ".tpl", ".txt"})
INSTEAD = {
    r"told|tells": "notified, reported; notifies, reports, shows",
    r"hears|heard": "learns; learned, received",
    r"without a word": "silently",
    r"whoever|whomever|somebody": "the actor: the new owner, callers, another process",
    r"(?:is|are|was|were|be) away": "unavailable; reachable again",
    r"anew": "again",
    r"for ever": "permanently",
    r"meanwhile": "concurrently",
    r"in (?:its|their) place": "the condition, or `instead`",
    r"hand(?:s|ed|ing)? over|hand overs?|handover": "transfer, unload",
    r"takers?": "the new owner, candidates",
    r"put(?:s|ting)? out": "fence, remove",
    r"tidier|shortener": "manifest compaction, checkpointer",
    r"parked|withheld|held back": "buffered, deferred",
    r"doors?|ways in": "listeners",
    r"grave(?:ly)?": "irreversible",
    r"even(?:s|ing) out": "rebalancing",
    r"lives on|(?:former|current|earlier|next|one|own|whichever) li(?:fe|ves)|life after": (
        "session; incarnation, previous incarnation"
    ),
    r"words? of yours": "restore token",
}
"""By pattern. Of an identifier each word counts: `_told` and `PARTICIPANTS_TOLD` are `told`."""
_BANNED = re.compile("|".join(rf"(?<![a-z])(?:{pattern})(?![a-z])" for pattern in INSTEAD))
_PUBLIC = re.compile("MagnetarHandOverSlow")
"""Public names, which stay as they are."""
NOT_YET: frozenset[str] = frozenset(
    {
        "broker_image/magnetar/broker/bundles/assigning.py",
        "broker_image/magnetar/broker/bundles/bundle.py",
        "broker_image/magnetar/broker/bundles/checkpointer.py",
        "broker_image/magnetar/broker/bundles/events.py",
        "broker_image/magnetar/broker/bundles/leader.py",
        "broker_image/magnetar/broker/bundles/log_rolling.py",
        "broker_image/magnetar/broker/bundles/ownership.py",
        "broker_image/magnetar/broker/bundles/preloading.py",
        "broker_image/magnetar/broker/bundles/records.py",
        "broker_image/magnetar/broker/bundles/recovery/bundle_recovery.py",
        "broker_image/magnetar/broker/bundles/recovery/log_scans.py",
        "broker_image/magnetar/broker/bundles/recovery/retries.py",
        "broker_image/magnetar/broker/bundles/releasing.py",
        "broker_image/magnetar/broker/bundles/split_buffer.py",
        "broker_image/magnetar/broker/bundles/splitting.py",
        "broker_image/magnetar/broker/commands/acknowledgements.py",
        "broker_image/magnetar/broker/commands/consuming.py",
        "broker_image/magnetar/broker/commands/partitioning.py",
        "broker_image/magnetar/broker/commands/seeking.py",
        "broker_image/magnetar/broker/commands/service.py",
        "broker_image/magnetar/broker/commands/sessions.py",
        "broker_image/magnetar/broker/commands/statistics.py",
        "broker_image/magnetar/broker/commands/topic_watchers.py",
        "broker_image/magnetar/broker/commands/transaction_ends.py",
        "broker_image/magnetar/broker/connections/connection.py",
        "broker_image/magnetar/broker/connections/heartbeat.py",
        "broker_image/magnetar/broker/context.py",
        "broker_image/magnetar/broker/draining.py",
        "broker_image/magnetar/broker/incarnation.py",
        "broker_image/magnetar/broker/reading/catalog.py",
        "broker_image/magnetar/broker/reading/entry_index.py",
        "broker_image/magnetar/broker/reading/log_keys.py",
        "broker_image/magnetar/broker/standalone_coordinator.py",
        "broker_image/magnetar/broker/topics/deletion_marks.py",
        "broker_image/magnetar/broker/topics/effective_policies.py",
        "broker_image/magnetar/broker/topics/entry_metadata.py",
        "broker_image/magnetar/broker/topics/non_persistent.py",
        "broker_image/magnetar/broker/topics/publishing.py",
        "broker_image/magnetar/broker/topics/subscription_host.py",
        "broker_image/magnetar/broker/topics/topic_host.py",
        "broker_image/magnetar/broker/topics/topic_limits.py",
        "broker_image/magnetar/broker/topics/topic_registry.py",
        "broker_image/magnetar/broker/transactions/committing.py",
        "broker_image/magnetar/broker/transactions/linked.py",
        "broker_image/magnetar/broker/transactions/positions.py",
        "broker_image/magnetar/broker/transactions/sending.py",
        "broker_image/magnetar/broker/upkeep/expiry.py",
        "broker_image/magnetar/broker/upkeep/garbage_collection.py",
        "broker_image/magnetar/broker/upkeep/inquiring.py",
        "broker_image/magnetar/broker/upkeep/manifest_compaction.py",
        "broker_image/magnetar/cli/conditions.py",
        "broker_image/magnetar/cli/kubectl.py",
        "broker_image/magnetar/client/__init__.py",
        "broker_image/magnetar/client/attachment.py",
        "broker_image/magnetar/client/client.py",
        "broker_image/magnetar/client/connection.py",
        "broker_image/magnetar/client/coordinators.py",
        "broker_image/magnetar/client/failures.py",
        "broker_image/magnetar/client/incoming.py",
        "broker_image/magnetar/client/transactions.py",
        "broker_image/magnetar/hosting/settings.py",
        "broker_image/magnetar/metadata/backends/embedded.py",
        "broker_image/magnetar/metadata/backends/etcd.py",
        "broker_image/magnetar/metadata/backends/journal.py",
        "broker_image/magnetar/metadata/election.py",
        "broker_image/magnetar/metadata/keys.py",
        "broker_image/magnetar/metadata/leases.py",
        "broker_image/magnetar/metadata/owned_fields.py",
        "broker_image/magnetar/metadata/records.py",
        "broker_image/magnetar/ownership/rules.py",
        "broker_image/magnetar/ownership/stuck.py",
        "broker_image/magnetar/policies.py",
        "broker_image/magnetar/resources/broker_settings.json",
        "broker_image/magnetar/storage/checkpoint.py",
        "broker_image/magnetar/storage/document.py",
        "broker_image/magnetar/storage/gc.py",
        "broker_image/magnetar/storage/log/fencing.py",
        "broker_image/magnetar/storage/log/files.py",
        "broker_image/magnetar/storage/log/index.py",
        "broker_image/magnetar/storage/log/seals.py",
        "broker_image/magnetar/storage/log/space.py",
        "broker_image/magnetar/storage/log/writer.py",
        "broker_image/magnetar/storage/manifest.py",
        "broker_image/magnetar/storage/restore/coordinator_copies.py",
        "broker_image/magnetar/storage/restore/log_copies.py",
        "broker_image/magnetar/storage/restore/rebuilding.py",
        "broker_image/magnetar/storage/segments/level_one.py",
        "broker_image/magnetar/storage/transactions/coordinator_format.py",
        "broker_image/magnetar/storage/turns.py",
        "broker_image/magnetar/storage/volumes/faulty.py",
        "broker_image/magnetar/storage/volumes/linked.py",
        "broker_image/magnetar/storage/volumes/objects.py",
        "broker_image/magnetar/storage/volumes/s3.py",
        "broker_image/magnetar/storage/volumes/slot_format.py",
        "broker_image/magnetar/storage/volumes/slots.py",
        "broker_image/magnetar/storage/volumes/worker.py",
        "broker_image/magnetar/topics/cursor.py",
        "broker_image/magnetar/topics/deduplication.py",
        "broker_image/magnetar/topics/dispatch/base.py",
        "broker_image/magnetar/topics/dispatch/chunks.py",
        "broker_image/magnetar/topics/dispatch/delayed.py",
        "broker_image/magnetar/topics/dispatch/exclusive.py",
        "broker_image/magnetar/topics/dispatch/failover.py",
        "broker_image/magnetar/topics/dispatch/hash_ranges.py",
        "broker_image/magnetar/topics/dispatch/key_shared.py",
        "broker_image/magnetar/topics/dispatch/shared.py",
        "broker_image/magnetar/topics/producers.py",
        "broker_image/magnetar/topics/state.py",
        "broker_image/magnetar/topics/subscription.py",
        "broker_image/magnetar/topics/topic.py",
        "broker_image/magnetar/transactions/coordinator/core.py",
        "broker_image/magnetar/transactions/records.py",
        "broker_image/magnetar/transactions/topic/fences.py",
        "broker_image/magnetar/transactions/topic/limits.py",
        "broker_image/magnetar/transactions/topic/parts.py",
        "broker_image/magnetar/transactions/topic/pending_acks.py",
        "broker_image/magnetar/wire/commands.py",
        "broker_image/magnetar/wire/frames.py",
        "broker_image/magnetar/wire/runs.py",
        "broker_image/magnetar/wire/send_runs.py",
        "broker_image/magnetar/wire/transactions.py",
        "charts/magnetar/files/crds/brokerclusters.magnetar.io.yaml",
        "crds/brokerclusters.magnetar.io.yaml",
        "docs/metrics.md",
        "docs/reference/brokercluster.md",
        "docs/reference/conditions.md",
        "docs/settings.md",
        "operator/magnetar_operator/brokers/autoscaler.py",
        "operator/magnetar_operator/brokers/autoscaling.py",
        "operator/magnetar_operator/brokers/autoscaling_metrics.py",
        "operator/magnetar_operator/brokers/client_security.py",
        "operator/magnetar_operator/brokers/moves.py",
        "operator/magnetar_operator/brokers/previewing.py",
        "operator/magnetar_operator/brokers/reconciler.py",
        "operator/magnetar_operator/brokers/scale_story.py",
        "operator/magnetar_operator/brokers/scaling.py",
        "operator/magnetar_operator/brokers/state.py",
        "operator/magnetar_operator/brokers/storage_credentials.py",
        "operator/magnetar_operator/builders/client_tls.py",
        "operator/magnetar_operator/builders/coordinator_set.py",
        "operator/magnetar_operator/builders/etcd_set.py",
        "operator/magnetar_operator/builders/listeners.py",
        "operator/magnetar_operator/builders/message_storage.py",
        "operator/magnetar_operator/builders/object.py",
        "operator/magnetar_operator/conditions.py",
        "operator/magnetar_operator/coordinators/reconciler.py",
        "operator/magnetar_operator/coordinators/scaling.py",
        "operator/magnetar_operator/coordinators/status.py",
        "operator/magnetar_operator/coordinators/withdrawing.py",
        "operator/magnetar_operator/engine/children.py",
        "operator/magnetar_operator/engine/controller.py",
        "operator/magnetar_operator/engine/planning.py",
        "operator/magnetar_operator/engine/work_queue.py",
        "operator/magnetar_operator/engine/world.py",
        "operator/magnetar_operator/etcd/access.py",
        "operator/magnetar_operator/etcd/admin.py",
        "operator/magnetar_operator/etcd/certificates.py",
        "operator/magnetar_operator/etcd/members.py",
        "operator/magnetar_operator/etcd/secrets.py",
        "operator/magnetar_operator/etcd/versions.py",
        "operator/magnetar_operator/jobs/plan.py",
        "operator/magnetar_operator/jobs/reconciler.py",
        "operator/magnetar_operator/kube/api.py",
        "operator/magnetar_operator/kube/cache.py",
        "operator/magnetar_operator/kube/events.py",
        "operator/magnetar_operator/kube/informers.py",
        "operator/magnetar_operator/kube/leadership.py",
        "operator/magnetar_operator/kube/watching.py",
        "operator/magnetar_operator/main.py",
        "operator/magnetar_operator/metrics.py",
        "operator/magnetar_operator/names.py",
        "operator/magnetar_operator/namespaces/deletion.py",
        "operator/magnetar_operator/namespaces/reconciler.py",
        "operator/magnetar_operator/namespaces/record.py",
        "operator/magnetar_operator/settings.py",
        "operator/magnetar_operator/stores/connections.py",
        "operator/magnetar_operator/stores/outages.py",
        "operator/magnetar_operator/stores/record_view.py",
        "operator/magnetar_operator/stores/restore.py",
        "operator/magnetar_operator/stores/restoring.py",
    }
)
"""Files that still use such words. Entries are only ever removed."""


def _files() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*"))
    return [path for path in found if path.suffix in KINDS and "_pb2" not in path.name]


def _plain(text: str) -> str:
    """Words of identifiers apart, line breaks and the marks of comments as blanks, lower case."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", _PUBLIC.sub("", text))
    return re.sub(r"\s*\n[ \t]*(?:#:? ?|> ?)?", "\n", apart).lower()


def findings(text: str) -> list[str]:
    """What to change in a text, by line."""
    plain = _plain(text)
    found = []
    for match in _BANNED.finditer(plain.replace("\n", " ")):
        line = plain.count("\n", 0, match.start()) + 1
        instead = next(say for pattern, say in INSTEAD.items() if re.fullmatch(pattern, match[0]))
        found.append(f"about line {line}: {match[0]!r}: say {instead}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "clients are told",
        "PARTICIPANTS_TOLD = 1",
        "def _putOut(self): ...",
        "# a store that is\n    # away",
    ],
)
def test_words_are_found_in_prose_identifiers_and_across_lines(text: str) -> None:
    assert len(findings(text)) == 1


def test_ordinary_words_are_left_alone() -> None:
    assert findings("hand the toldness a lifetime; outdoors, retold, life cycle, indoors") == []


def test_nothing_is_said_in_words_of_our_own() -> None:
    offenders = {
        str(path.relative_to(ROOT)): found
        for path in _files()
        if (found := findings(path.read_text()))
    }
    assert {name: found for name, found in offenders.items() if name not in NOT_YET} == {}
    assert sorted(NOT_YET - set(offenders)) == [], "these are good now: take them off the list"
