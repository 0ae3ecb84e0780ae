"""Why a bundle is where it is, and what would happen if it moved: the words.

Owns: the sentences of `GET /magnetar/v1/explain`, made of the facts that `explain` has gathered.
Imports: amounts, balance.cluster. Pure. Invariants: equal facts, equal words; what is not known is
said to be not known; a reason without words here is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.amounts import age_text, size_text
from magnetar.balance.cluster import MOVE_REASON

Facts = Mapping[str, Any]
NAMES_MAX = 5
_GONE = re.compile(r"(?P<incarnation>\S+) is gone")
_STUCK = re.compile(r"Assigning by (?P<incarnation>\S+) for (?P<seconds>\d+) s")
_SPLIT = re.compile(r"split (?:of|from) (?P<parent>\S+)")
_MERGED = re.compile(r"merged from (?P<left>\S+) and (?P<right>\S+)")


def explain_in_words(facts: Facts) -> dict[str, list[str]]:
    """`summary` (what is), `why` (it is there), `if_owner_died`, `kept` (log files): a few
    sentences each."""
    return {
        "summary": _summary(facts),
        "why": _why(facts),
        "if_owner_died": _if_owner_died(facts),
        "kept": _kept(facts),
    }


# --- what is --------------------------------------------------------------------------------------


def _summary(facts: Facts) -> list[str]:
    found = []
    bundle = (
        f"bundle {facts['bundle']}, number {facts['number']} of {facts['bundles']} of namespace "
        f"{facts['namespace']}"
    )
    if facts["topic"] is not None:
        found.append(f"{facts['topic']} hashes to {facts['hash']}, which lies in {bundle}.")
        found += [*_topic(facts), *_compaction(facts["manifest"])]
    else:
        found.append(f"This is {bundle}.")
    found.append(_state(facts))
    owner = facts["owner"]
    if owner is not None and owner["alive"] and facts["owned"] is None:
        found.append(
            f"{owner['broker']} does not answer ({facts['owner_silent']}): what only it knows is "
            "left out here."
        )
    leader = facts["leader"]
    found.append(
        f"{leader['broker']} leads the cluster, in term {leader['term']}."
        if leader is not None
        else "The cluster has no leader now; one is elected within a lease."
    )
    return found


def _topic(facts: Facts) -> list[str]:
    """Whether the topic is there."""
    if facts["partitions"]:
        owners = {_broker_of(row["owner"]) for row in facts["partitions"] if row["owner"]}
        bundles = {row["bundle"] for row in facts["partitions"]}
        return [
            f"It is partitioned: its {_count(len(facts['partitions']), 'partition')} lie in "
            f"{_count(len(bundles), 'bundle')}, "
            f"served by {_names(sorted(owners)) or 'no broker yet'}.",
            "What follows is about the bundle of its own name; name a partition to see that of the "
            "partition.",
        ]
    stored = facts["topic"].startswith("persistent://")
    topic = facts["owned"]["topic"] if facts["owned"] is not None else None
    if topic is None and not facts["exists"]:
        if stored:
            return ["No such topic exists; this is where it would be."]
        return [
            "No such topic exists now; non-persistent topics live as long as they have clients."
        ]
    if topic is None or not topic["stored"]:
        return []
    what = f"It holds {_count(topic['entries'], 'entry', 'entries')} ({size_text(topic['bytes'])})"
    users = (
        f"{_count(topic['producers'], 'producer')} and "
        f"{_count(topic['subscriptions_total'], 'subscription')}"
    )
    ended = "; it is terminated" if topic["terminated"] else ""
    return [
        f"{what} in {_count(len(topic['ledgers']) + topic['ledgers_before'], 'ledger')}, and has "
        f"{users}{ended}."
    ]


def _compaction(manifest: Facts) -> list[str]:
    """How far its compacted view is, and what keeps the next one from going further."""
    found = []
    if manifest.get("compaction"):
        found.append(
            f"Its compacted view, generation {manifest['compaction']}, stands for everything up to "
            f"{manifest['compacted_to']}."
        )
    if manifest.get("complete_to"):
        found.append(
            "Transactions have used it: all that they have published up to "
            f"{manifest['complete_to']} is in segments, where compaction sees it."
        )
    return found


def _state(facts: Facts) -> str:
    record, owner = facts["record"], facts["owner"]
    if record is None:
        return (
            "No broker owns it or ever did: the first client that looks a topic of it up has "
            "it assigned."
        )
    who, state = (owner["broker"] if owner is not None else "no broker"), record["state"]
    term = f"epoch {record['epoch']}"
    if owner is not None and not owner["alive"]:
        return (
            f"Its record says {state} by {who}, which is gone: the leader gives it to another "
            "broker as soon as it can."
        )
    since = facts["owned"]["since_ms"] if facts["owned"] is not None else None
    age = f" for {age_text((facts['now_ms'] - since) / 1000)}" if since else ""
    if state == "Owned":
        return f"{who} ({owner['service_url']}) has served it{age}, in {term}."
    if state == "Assigning":
        damage = facts["owned"]["damage"] if facts["owned"] is not None else []
        held_up = (
            f" It cannot, so far: {damage[0]['error']}." if damage else " Clients wait until then."
        )
        return (
            f"{who} is taking it over: it seals the former owner's log and reads what the bundle "
            f"needs.{held_up}"
        )
    if state == "Releasing":
        successor = _broker_of(record["destination"]) or "the least loaded broker"
        return (
            f"{who} is transferring it to {successor}, which ends {term}. Clients wait until then."
        )
    if state == "Splitting":
        return f"{who} is splitting it; its children are served by {who} next."
    if state == "Merging":
        return f"{who} is merging it with its neighbour; both are one bundle of {who} next."
    if state == "Deleted":
        return (
            "It was split or merged: other bundles have its topics. Or its namespace was deleted, and no "
            "client has asked for it since."
        )
    return (
        "It is Free: its last owner released it without a successor. The leader, or the first client that "
        "looks a topic of it up, has it assigned."
    )


# --- why it is there ------------------------------------------------------------------------------


def _why(facts: Facts) -> list[str]:
    record = facts["record"]
    if record is None:
        return ["There is no record of it, so there is nothing to explain yet."]
    found = [
        reason_in_words(
            record["reason"], _broker_of(record["incarnation"]), _broker_of(record["source"])
        )
    ]
    if (left_ms := record["pinned_until_ms"] - facts["now_ms"]) > 0:
        kept = _broker_of(record["destination"] or record["incarnation"])
        found.append(
            f"It is pinned to {kept} for another {age_text(left_ms / 1000)}: load balancing leaves "
            f"it there, unless {kept} drains, stops or dies. "
            f"`magnetar bundles unpin {facts['bundle']}` takes that back."
        )
    if record["terms"][1:]:
        found.append(
            f"It has changed hands {_times(len(record['terms']) - 1)} since its last checkpoint."
        )
    owner = facts["owner"]
    if owner is not None and owner.get("cordon"):
        found.append(
            f"{owner['broker']} is cordoned ({owner['cordon']}): it takes no new bundles, and is "
            "to lose this one if the cordon drains."
        )
    if owner is not None and owner.get("draining"):
        found.append(f"{owner['broker']} is shutting down, and transfers it before it ends.")
    if record["restore"]:
        found.append(
            f"The metadata store was restored {_times(record['restore'])}: epochs carry that "
            "number, so that ids never repeat."
        )
    return found


def reason_in_words(reason: str, owner: str, source: str) -> str:
    """The record's reason as a sentence; `owner` is the owner or the destination, `source` the
    owner before ("" = not known)."""
    before = source or "its former owner"
    if gone := _GONE.fullmatch(reason):
        dead = _broker_of(gone["incarnation"]) or gone["incarnation"]
        return (
            f"{dead} had it and died: its lease ended, and {owner} was the least loaded of those "
            "left."
        )
    if stuck := _STUCK.fullmatch(reason):
        slow = _broker_of(stuck["incarnation"]) or stuck["incarnation"]
        return (
            f"{slow} was to take it over and had not after {stuck['seconds']} s, so the leader "
            f"gave it to {owner}."
        )
    if merged := _MERGED.fullmatch(reason):
        return (
            f"It was merged from {merged['left']} and {merged['right']}, which were served where it "
            "began."
        )
    if split := _SPLIT.fullmatch(reason):
        return (
            f"It is a part of {split['parent']}, which was split; children begin where their "
            "parent was served."
        )
    if reason.startswith(MOVE_REASON):
        return (
            f"The leader balances load: it moved this bundle from {before} to {owner} "
            f"({reason.removeprefix(MOVE_REASON)})."
        )
    known = {
        "lookup": f"No broker had it when a client looked up a topic of it, and {owner} was the "
        "least loaded broker then.",
        "unload requested": f"An administrator unloaded it from {before}, and {owner} was chosen or "
        "the least loaded.",
        "its namespace was deleted": "Its namespace was deleted: it is to be Free, with nothing in "
        "it.",
        "broker stops": f"{before[:1].upper()}{before[1:]} shut down and transferred it; {owner} "
        "was the least loaded.",
        "": "Its record gives no reason.",
    }
    if reason in known:
        return known[reason]
    drained = "drain" in reason or "scale-down" in reason
    if drained:
        return (
            f"{before[:1].upper()}{before[1:]} was drained ({reason}), and {owner} was the least "
            "loaded of the others."
        )
    return f'Its record gives as the reason: "{reason}".'


# --- what would happen ----------------------------------------------------------------------------


def _if_owner_died(facts: Facts) -> list[str]:
    owner, candidates, recovery = facts["owner"], facts["new owners"], facts["recovery"]
    if owner is None:
        if not candidates["all"]:
            return [
                "No broker takes bundles now: it cannot be served before one comes, or a cordon is "
                "lifted."
            ]
        return [f"It has no owner to lose. A lookup would give it to {candidates['first']}."]
    cost = f"{_count(recovery['files'], 'log file')}, {size_text(recovery['bytes'])}"
    about = "about" if recovery["exact"] else "at most about"
    if not candidates["all"]:
        return [
            "No other broker takes bundles now: it would wait for one, or for the same broker to "
            "start again.",
            f"A new owner reads {_checkpoint(recovery)}{about} {cost}: some "
            f"{recovery['estimated_ms']} ms.",
        ]
    others = [name for name in candidates["all"] if name != candidates["first"]]
    first = candidates["first"]
    choice = f"{first} (or another of {_names(others)}, if loads change)" if others else first
    begin = (
        f"Its lease ends {facts['lease_s']:g} s after its last renewal; the leader then gives the "
        f"bundle to {choice}."
    )
    return [
        begin
        if owner["alive"]
        else f"{owner['broker']} is gone already; the leader gives the bundle to {choice}.",
        f"{first} removes the claim of {owner['broker']} and seals its log: from then on nothing "
        "is acknowledged there.",
        f"It reads {_checkpoint(recovery)}{about} {cost} of log: some {recovery['estimated_ms']} "
        "ms.",
        "Then clients go on; what was acknowledged is there.",
    ]


def _checkpoint(recovery: Facts) -> str:
    return "the checkpoint and " if recovery["checkpoint"] is not None else ""


# --- what keeps files -----------------------------------------------------------------------------


def _kept(facts: Facts) -> list[str]:
    files, found = facts["log_files"], []
    if not files["count"]:
        found.append(
            "No sealed log file is kept for it"
            + ("; its messages are in the file that is being written." if facts["record"] else ".")
        )
    else:
        recovered = sum(
            1
            for row in files["files"]
            if any(by == {"bundle": facts["bundle"], "why": "recovery"} for by in row["kept_by"])
        )
        listed = sum(
            1
            for row in files["files"]
            if any(by == {"bundle": facts["bundle"], "why": "messages"} for by in row["kept_by"])
        )
        others = sorted(
            {by["bundle"] for row in files["files"] for by in row["kept_by"]} - {facts["bundle"]}
        )
        found.append(
            f"{_count(files['count'], 'sealed log file')} ({size_text(files['bytes'])}) "
            f"{'is' if files['count'] == 1 else 'are'} kept: {recovered} for its recovery, "
            f"{listed} for its messages."
        )
        if others:
            found.append(f"Other bundles need some of them too: {_names(others)}.")
    if facts["manifest"]["error"]:
        found.append(f"Its manifest cannot be read: {facts['manifest']['error']}.")
    found += [
        f"Job {job} works on it, and keeps all its files until it ends." for job in facts["jobs"]
    ]
    for pin in (facts["owned"] or {}).get("pins", ())[:NAMES_MAX]:
        found.append(pin_in_words(pin))
    return found


def pin_in_words(pin: Facts) -> str:
    """What keeps a topic's entries."""
    held = f"{pin['topic']} keeps {size_text(pin['bytes'])} from {pin['oldest']} on: "
    waiting = (
        f"subscription {pin['subscription']} has not acknowledged "
        f"{_count(pin['waiting_entries'], 'entry', 'entries')}"
    )
    if (found := pin.get("held")) is not None:
        waiting += (
            f", {found['entries']} of them held by "
            f"{_count(found['transactions'], 'open transaction')}, the longest by "
            f"{found['longest']}"
        )
    retained = (
        "retention, or trimming that is yet to come, holds "
        f"{_count(pin['retained_entries'], 'entry', 'entries')}"
    )
    parts = ([waiting] if pin["subscription"] is not None else []) + (
        [retained] if pin["retained_entries"] else []
    )
    return held + "; ".join(parts or ["nothing else is known"]) + "."


# --- words ----------------------------------------------------------------------------------------


def _broker_of(incarnation: str) -> str:
    return incarnation.rpartition(".")[0]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return f"{shown} and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else shown
