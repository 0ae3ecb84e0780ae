"""Scenarios written by hand: what every kind of client relies on.

Owns: `SCENARIOS` by name. Imports: the type of a step. Invariants: each scenario is about one
thing; what Apache Pulsar answered to them is recorded in tests/differential/recorded.
"""

from __future__ import annotations

from typing import Any

from dev.differential.play import Step

EARLIEST: dict[str, Any] = {"position": "Earliest"}
RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
WIDER = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},'
    '{"name":"b","type":["null","int"],"default":null}]}'
)
OTHER = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'


def _of(kind: str, **options: Any) -> dict[str, Any]:
    return {"type": kind, **EARLIEST, **options}


SHARED, FAILOVER, KEYED = _of("Shared"), _of("Failover"), _of("Key_Shared")
P: Step = ["producer", 0, {"name": "p"}]
KEYS: list[Step] = [["send", 0, {"partition_key": key}] for key in "abcdefgh"]

SCENARIOS: dict[str, list[Step]] = {
    # --- subscription types
    "exclusive": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 3}],
        ["subscribe", 1, "s", EARLIEST], ["subscribe", 1, "s", SHARED], ["ack", 0, ["m1"]],
        ["redeliver", 0, []], ["ack", 0, ["m2"], {"cumulative": True}], ["last_id", 0],
        ["close_consumer", 0], ["subscribe", 2, "s", SHARED], ["stats"],
    ],
    "shared_one_consumer": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"count": 4}], ["ack", 0, ["m2"]],
        ["redeliver", 0, ["m0"]], ["redeliver", 0, ["m0", "m3"]], ["redeliver", 0, []],
        ["ack", 0, ["m1"], {"cumulative": True}], ["consumer_stats", 0], ["close_consumer", 0],
        ["backlog", "s"],
    ],
    "shared_several_consumers": [
        P, ["subscribe", 0, "s", SHARED], ["subscribe", 1, "s", SHARED],
        ["subscribe", 2, "s", FAILOVER], ["send", 0, {"count": 6}], ["ack", 0, ["m0", "m1"]],
        ["ack", 1, ["m4", "m5"]], ["unsubscribe", 0], ["close_consumers", [0, 1]],
        ["backlog", "s"],
    ],
    "shared_priorities": [
        P, ["subscribe", 0, "s", _of("Shared", priority=1, permits=2)],
        ["subscribe", 1, "s", _of("Shared", priority=0, permits=2)], ["send", 0, {"count": 6}],
        ["flow", 0, 1], ["flow", 1, 5],
    ],
    "failover": [
        P, ["subscribe", 0, "s", FAILOVER], ["send", 0, {"count": 2}],
        ["subscribe", 1, "s", FAILOVER], ["subscribe", 2, "s", FAILOVER], ["send", 0, {"count": 2}],
        ["ack", 0, ["m0"]], ["ack", 1, ["m1"]], ["close_consumer", 0], ["send", 0],
        ["close_consumer", 1], ["close_consumer", 2], ["backlog", "s"],
    ],
    "failover_priorities": [
        P, ["subscribe", 0, "s", _of("Failover", priority=1)],
        ["subscribe", 1, "s", _of("Failover", priority=0)], ["send", 0, {"count": 2}],
        ["close_consumer", 1],
    ],
    "key_shared_ring": [
        P, ["subscribe", 0, "s", KEYED], ["subscribe", 1, "s", KEYED], *KEYS,
        ["subscribe", 2, "s", KEYED], *KEYS, ["ack", 0, [f"m{number}" for number in range(8)]],
        ["close_consumer", 1], ["send", 0, {"messages": 2, "partition_key": "b"}],
        ["send", 0, {"ordering_key": "z", "partition_key": "a"}],
    ],
    "key_shared_same_names": [
        P, ["subscribe", 0, "s", _of("Key_Shared", name="twin")],
        ["subscribe", 1, "s", _of("Key_Shared", name="twin")], *KEYS,
    ],
    "key_shared_sticky": [
        P, ["subscribe", 0, "s", _of("Key_Shared", ranges=[[0, 20000]])],
        ["subscribe", 1, "s", _of("Key_Shared", ranges=[[15000, 65535]])],
        ["subscribe", 2, "s", KEYED], ["subscribe", 3, "s", _of("Key_Shared", ranges=[])],
        *KEYS, ["subscribe", 4, "s", _of("Key_Shared", ranges=[[20001, 65535]])],
    ],
    "reader": [
        P, ["send", 0, {"count": 4}],
        ["subscribe", 0, "r0", {"durable": False, "start": "earliest"}],
        ["subscribe", 1, "r1", {"durable": False, "start": "m2"}],
        ["subscribe", 2, "r2", {"durable": False, "start": "latest"}],
        ["subscribe", 3, "r0", {"durable": True}], ["send", 0], ["last_id", 1],
        ["close_consumer", 0], ["stats"],
    ],
    "reader_start_latest_position_earliest": [
        P, ["send", 0, {"count": 2}],
        ["subscribe", 0, "r", {"durable": False, "start": "latest", **EARLIEST}],
    ],
    "initial_positions": [
        P, ["send", 0, {"count": 2}], ["subscribe", 0, "late", {}],
        ["subscribe", 1, "early", EARLIEST], ["close_consumer", 1],
        ["subscribe", 2, "early", {"position": "Latest"}],
        ["subscribe", 3, "absent", {"create": False, "position": "Earliest"}],
    ],
    # --- permits and batches
    "permits": [
        P, ["subscribe", 0, "s", _of("Exclusive", permits=2)], ["send", 0, {"count": 4}],
        ["flow", 0, 1], ["redeliver", 0, []], ["flow", 0, 2], ["consumer_stats", 0],
    ],
    "permits_count_messages_of_batches": [
        P, ["send", 0, {"messages": 3, "count": 3}],
        ["subscribe", 0, "s", _of("Exclusive", permits=2)],
    ],
    "batches": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 3, "count": 2}],
        ["ack", 0, ["m0:1"]], ["redeliver", 0, []], ["ack", 0, ["m0:0"]], ["ack", 0, ["m0:2"]],
        ["redeliver", 0, []], ["last_id", 0], ["close_consumer", 0], ["rest", "PUT", "unload"],
        ["subscribe", 0, "s", SHARED], ["backlog", "s"],
    ],
    "parts_of_batches_and_a_seek": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 3, "count": 2}],
        ["ack", 0, ["m1:1"]], ["seek", 0, "m0"], ["subscribe", 0, "s", SHARED],
    ],
    "parts_of_batches_unloaded_for_an_auditor": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 3}], ["ack", 0, ["m0:1"]],
        ["close_consumer", 0], ["rest", "PUT", "unload"], ["backlog", "s"],
    ],
    "parts_of_batches_redelivered": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 3}], ["redeliver", 0, []],
        ["ack", 0, ["m0:1"]], ["redeliver", 0, []],
    ],
    "batches_cumulative": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"messages": 4, "count": 2}],
        ["ack", 0, ["m1:1"], {"cumulative": True}], ["redeliver", 0, []], ["last_id", 0],
    ],
    "chunks": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"chunk": [0, 3, "u"], "sequence": 1}],
        ["send", 0, {"chunk": [1, 3, "u"], "sequence": 1}],
        ["send", 0, {"chunk": [2, 3, "u"], "sequence": 1}], ["last_id", 0],
        ["ack", 0, ["m0", "m1", "m2"]], ["stats"],
    ],
    "delayed": [
        P, ["subscribe", 0, "s", SHARED], ["subscribe", 1, "e", EARLIEST],
        ["send", 0, {"delay_ms": 600_000}], ["send", 0], ["close_consumer", 0],
        ["subscribe", 2, "s", SHARED], ["stats"],
    ],
    # --- seeks
    "seek_by_id": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 4}],
        ["ack", 0, ["m3"], {"cumulative": True}], ["seek", 0, "m2"],
        ["subscribe", 0, "s", EARLIEST], ["last_id", 0], ["seek", 0, "latest"],
        ["subscribe", 0, "s", EARLIEST], ["seek", 0, "earliest"], ["subscribe", 0, "s", EARLIEST],
        ["seek", 0, "nowhere"],
    ],
    "seek_by_time": [
        P, ["subscribe", 0, "s", SHARED], ["subscribe", 1, "s", SHARED], ["send", 0, {"count": 4}],
        ["seek", 0, "time:m1"], ["subscribe", 0, "s", SHARED], ["seek", 0, "time:m3"],
        ["subscribe", 0, "s", SHARED],
    ],
    "seek_after_an_acknowledgement_in_a_batch": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 3}], ["ack", 0, ["m0:1"]],
        ["seek", 0, "earliest"], ["subscribe", 0, "s", SHARED],
    ],
    "seek_of_a_standby": [
        P, ["subscribe", 0, "s", FAILOVER], ["send", 0, {"count": 2}],
        ["subscribe", 1, "s", _of("Failover", priority=1)], ["seek", 1, "earliest"],
    ],
    "parts_of_batches_and_an_unload": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"messages": 4, "count": 2}],
        ["ack", 0, ["m0:1"]], ["rest", "PUT", "unload"], ["subscribe", 0, "s", SHARED],
    ],
    "reset_of_a_failover_subscription": [
        P, ["subscribe", 0, "s", FAILOVER], ["send", 0],
        ["subscribe", 1, "s", _of("Failover", priority=1)],
        ["rest", "POST", "subscription/s/resetcursor", "$m0"],
    ],
    # --- producers
    "producer_names": [
        P, ["producer", 1, {"name": "p"}], ["producer", 1, {"name": "p", "conn": 1}],
        ["send", 0], ["close_producer", 0], ["producer", 1, {"name": "p", "conn": 1}],
        ["close_producer", 7], ["send", 1],
    ],
    "exclusive_producers": [
        ["producer", 0, {"name": "p", "access": "Exclusive"}], ["producer", 1, {"name": "q"}],
        ["producer", 1, {"name": "q", "access": "Exclusive"}], ["close_producer", 0],
        ["producer", 2, {"name": "r", "access": "Exclusive", "conn": 1}],
        ["close_producer", 2], ["producer", 3, {"name": "o", "access": "Exclusive", "topic_epoch": 0}],
    ],
    "fencing": [
        P, ["send", 0], ["producer", 1, {"name": "q", "access": "ExclusiveWithFencing", "conn": 1}],
    ],
    "shared_after_exclusive": [
        ["producer", 0, {"name": "p", "access": "Exclusive"}], ["close_producer", 0],
        ["producer", 1, {"name": "q"}],
    ],
    "waiting_for_exclusive": [
        P, ["producer", 1, {"name": "q", "access": "WaitForExclusive", "conn": 1}],
        ["producer", 2, {"name": "r"}], ["close_producer", 0],
    ],
    "initial_subscription": [
        ["producer", 0, {"name": "p", "initial": "s"}], ["send", 0, {"count": 2}], ["backlog", "s"],
    ],
    "deduplication": [
        ["producer", 0, {"name": "p"}], ["rest", "POST", "deduplicationEnabled", True],
        ["wait", 1000], ["send", 0, {"sequence": 5}], ["send", 0, {"sequence": 5}],
        ["send", 0, {"sequence": 4}], ["send", 0, {"sequence": 6, "messages": 3}],
        ["send", 0, {"sequence": 7}], ["close_producer", 0], ["producer", 1, {"name": "p"}],
        ["subscribe", 0, "s", EARLIEST],
    ],
    # --- the life of a topic
    "unload": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 3}], ["ack", 0, ["m0", "m2"]],
        ["rest", "PUT", "unload"], ["producer", 0, {"name": "p"}],
        ["subscribe", 0, "s", EARLIEST], ["send", 0], ["last_id", 0],
    ],
    "unload_with_everything_acknowledged": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 2}],
        ["ack", 0, ["m1"], {"cumulative": True}], ["rest", "PUT", "unload"],
        ["producer", 0, {"name": "p"}], ["subscribe", 0, "s", EARLIEST], ["send", 0], ["last_id", 0],
    ],
    "terminate": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 2}],
        ["rest", "POST", "terminate"], ["producer", 1, {"name": "q"}],
        ["ack", 0, ["m1"], {"cumulative": True}], ["subscribe", 1, "t", EARLIEST],
        ["rest", "GET", "lastMessageId"],
    ],
    "terminate_after_an_unload": [
        P, ["send", 0, {"count": 2}], ["rest", "PUT", "unload"], ["rest", "POST", "terminate"],
    ],
    "failover_on_an_ended_topic": [
        P, ["rest", "POST", "terminate"], ["subscribe", 0, "s", FAILOVER],
    ],
    "terminate_and_redeliver": [
        ["subscribe", 0, "s", EARLIEST], ["rest", "POST", "terminate"], ["redeliver", 0, []],
    ],
    "terminate_and_skip": [
        P, ["subscribe", 0, "s", _of("Exclusive", permits=0)], ["send", 0, {"count": 2}],
        ["rest", "POST", "terminate"], ["rest", "POST", "subscription/s/skip_all"], ["flow", 0, 5],
    ],
    "last_id_of_an_empty_topic": [["subscribe", 0, "s", EARLIEST], ["last_id", 0]],
    "unsubscribe": [
        P, ["subscribe", 0, "s", SHARED], ["subscribe", 1, "s", SHARED], ["unsubscribe", 0],
        ["close_consumer", 1], ["unsubscribe", 0], ["unsubscribe", 0],
        ["rest", "GET", "subscriptions"], ["send", 0], ["subscribe", 2, "s", {"type": "Shared"}],
    ],
    "disconnect": [
        ["producer", 0, {"name": "p", "conn": 1}], ["subscribe", 0, "s", SHARED],
        ["subscribe", 1, "s", _of("Shared", conn=2, permits=0)], ["send", 0, {"count": 2}],
        ["disconnect", 0], ["wait", 300], ["flow", 1, 10], ["disconnect", 1], ["wait", 300],
        ["producer", 0, {"name": "p"}],
    ],
    "absent_topic": [
        ["partitions"], ["partitions", False], ["lookup"], ["schema"],
        ["subscribe", 0, "s", {"create": False}], ["create_schema", {"type": "String"}],
        ["rest", "GET", "subscriptions"],
    ],
    # --- schemas
    "schemas": [
        ["producer", 0, {"name": "p", "schema": {"type": "Avro", "definition": RECORD}}],
        ["producer", 1, {"name": "q", "schema": {"type": "Avro", "definition": WIDER}}],
        ["producer", 2, {"name": "r", "schema": {"type": "Avro", "definition": OTHER}}],
        ["producer", 2, {"name": "r"}], ["schema"], ["schema", "0000000000000000"],
        ["schema", "0000000000000007"], ["create_schema", {"type": "Json", "definition": RECORD}],
        ["subscribe", 0, "s", {"schema": {"type": "Avro", "definition": RECORD}}],
        ["subscribe", 1, "t", {"schema": {"type": "String"}}],
        ["subscribe", 2, "u", {"schema": {"type": "AutoConsume"}}],
    ],
    "bytes_are_a_schema": [
        ["producer", 0, {"name": "p", "schema": {"type": "None"}}], ["schema"],
        ["schema", "0000000000000000"], ["producer", 1, {"name": "q"}],
        ["producer", 2, {"name": "r", "schema": {"type": "String"}}],
        ["subscribe", 0, "s", {"schema": {"type": "None"}}],
        ["subscribe", 1, "t", {"schema": {"type": "String"}}], ["subscribe", 2, "u", {}],
        ["create_schema", {"type": "None"}], ["create_schema", {"type": "String"}],
    ],
    "bytes_come_to_a_topic_with_a_schema": [
        ["producer", 0, {"name": "p", "schema": {"type": "String"}}],
        ["producer", 1, {"name": "q", "schema": {"type": "None"}}],
        ["subscribe", 0, "s", {"schema": {"type": "None"}}], ["create_schema", {"type": "None"}],
    ],
    "bytes_come_to_a_topic_in_use": [
        P, ["send", 0], ["subscribe", 0, "s", {"schema": {"type": "None"}}],
        ["producer", 1, {"name": "q", "schema": {"type": "None"}}], ["schema"],
        ["subscribe", 0, "s", {"schema": {"type": "None"}}],
    ],
    "schema_comes_to_a_topic_in_use": [
        P, ["send", 0], ["subscribe", 0, "s", {"schema": {"type": "String"}}],
        ["producer", 1, {"name": "q", "schema": {"type": "String"}}], ["schema"],
    ],
    "schema_of_another_type_on_a_taken_subscription": [
        ["producer", 0, {"name": "p", "schema": {"type": "String"}}], ["subscribe", 0, "s", {}],
        ["subscribe", 1, "s", {"schema": {"type": "Json", "definition": RECORD}}],
    ],
    # --- the end of a topic
    "end_of_topic_for_each_consumer": [
        P, ["rest", "POST", "terminate"], ["subscribe", 0, "s", SHARED], ["close_consumer", 0],
        ["subscribe", 0, "s", SHARED], ["close_consumer", 0], ["backlog", "s"],
        ["subscribe", 1, "f", {"type": "Failover"}], ["close_consumer", 1],
        ["subscribe", 1, "f", {"type": "Failover"}],
    ],
    "an_ended_topic_has_an_exclusive_producer": [
        P, ["rest", "POST", "terminate"],
        ["producer", 1, {"name": "p", "access": "ExclusiveWithFencing"}],
        ["producer", 2, {"name": "q"}],
    ],
    "refused_producers_leave_nothing": [
        P, ["rest", "POST", "terminate"],
        ["producer", 1, {"name": "q", "schema": {"type": "Json", "definition": RECORD}}],
        ["schema"],
    ],
    "a_refused_producer_subscribes_nobody": [
        P, ["rest", "POST", "terminate"], ["producer", 1, {"name": "q", "initial": "s"}],
        ["rest", "POST", "subscription/s/skip_all", None],
    ],
    "limit_of_subscriptions": [
        P, ["rest", "POST", "maxSubscriptionsPerTopic", 1], ["wait", 1000],
        ["subscribe", 0, "s1", {}], ["subscribe", 1, "s2", {}],
        ["rest", "PUT", "subscription/s2", None], ["rest", "GET", "subscriptions"],
    ],
    "a_refused_producer_makes_no_subscription": [
        P, ["send", 0], ["subscribe", 0, "t", {}], ["rest", "POST", "terminate"],
        ["producer", 1, {"name": "q", "initial": "s"}], ["stats"],
    ],
    "end_of_topic_after_an_expiry": [
        P, ["send", 0, {"count": 3}], ["rest", "POST", "terminate"],
        ["subscribe", 0, "s", {"type": "Shared", "position": "Earliest"}],
        ["rest", "POST", "subscription/s/expireMessages", "$m2"],
    ],
    "an_ended_topic_opens_again": [
        P, ["rest", "POST", "terminate"], ["rest", "PUT", "unload"], ["backlog", "s"],
    ],
    "an_ended_topic_has_consumers_again": [
        P, ["rest", "POST", "terminate"], ["rest", "PUT", "unload"], ["subscribe", 0, "s", SHARED],
    ],
    "end_of_topic_once_after_acknowledgements": [
        P, ["send", 0], ["rest", "POST", "terminate"],
        ["subscribe", 0, "s", {"type": "Shared"}], ["ack", 0, ["m0"]],
    ],
    "end_of_topic_at_the_first_permits": [
        P, ["rest", "POST", "terminate"],
        ["subscribe", 0, "s", {"type": "Shared", "permits": 0}], ["flow", 0, 5],
    ],
    "end_of_topic_once": [
        P, ["subscribe", 1, "f", {"type": "Failover", "name": "c1"}],
        ["rest", "POST", "terminate"], ["subscribe", 3, "f", {"type": "Failover", "name": "c3"}],
        ["rest", "POST", "terminate"],
    ],
    "a_key_shared_consumer_without_permits_leaves": [
        ["producer", 0, {"name": "q"}], ["send", 0, {"count": 5}],
        ["subscribe", 1, "s", {"type": "Key_Shared", "name": "c1", "position": "Earliest", "permits": 3}],
        ["redeliver", 1, []], ["subscribe", 2, "s", {"type": "Key_Shared", "name": "c2"}],
        ["close_consumer", 1],
    ],
    "readers_are_subscriptions": [
        P, ["subscribe", 0, "r", {"durable": False, "start": "earliest"}], ["subscribe", 1, "s", {}],
        ["rest", "GET", "subscriptions"],
    ],
    "schema_before_type": [
        P, ["rest", "POST", "subscriptionTypesEnabled", ["Shared"]], ["wait", 1000],
        ["subscribe", 0, "s", {"schema": {"type": "String"}}],
    ],
    # --- policies
    "limits": [
        P, ["rest", "POST", "maxProducers", 1], ["rest", "POST", "maxConsumers", 1], ["wait", 1000],
        ["producer", 1, {"name": "q"}], ["subscribe", 0, "s", SHARED], ["subscribe", 1, "s", SHARED],
        ["rest", "GET", "maxProducers"], ["rest", "DELETE", "maxProducers"], ["wait", 1000],
        ["producer", 1, {"name": "q"}],
    ],
    "a_consumer_too_many_creates_no_subscription": [
        ["subscribe", 0, "s1", SHARED], ["rest", "POST", "maxConsumers", 1], ["wait", 1000],
        ["subscribe", 1, "s2", SHARED], ["rest", "GET", "subscriptions"],
    ],
    "subscription_types_enabled": [
        P, ["rest", "POST", "subscriptionTypesEnabled", ["Shared"]], ["wait", 1000],
        ["subscribe", 0, "s", EARLIEST], ["subscribe", 0, "s", SHARED],
    ],
    # --- REST on subscriptions
    "cursors_by_rest": [
        P, ["rest", "PUT", "subscription/s", None], ["send", 0, {"count": 5}],
        ["rest", "PUT", "subscription/s", None], ["rest", "POST", "subscription/s/skip/2"],
        ["subscribe", 0, "s", EARLIEST], ["close_consumer", 0],
        ["rest", "POST", "subscription/s/resetcursor", "$m3"], ["subscribe", 0, "s", EARLIEST],
        ["close_consumer", 0], ["rest", "POST", "subscription/s/expireMessages", "$m3"],
        ["subscribe", 0, "s", EARLIEST], ["rest", "DELETE", "subscription/s"],
        ["close_consumer", 0], ["rest", "DELETE", "subscription/s"],
        ["rest", "DELETE", "subscription/s"],
    ],
    "truncate": [
        P, ["send", 0, {"count": 2}], ["rest", "DELETE", "truncate"], ["send", 0],
        ["subscribe", 0, "s", EARLIEST],
    ],
    # --- transactions
    "transaction": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0, {"count": 2}], ["begin", 0], ["enlist", 0],
        ["send", 0, {"txn": 0, "count": 2}], ["enlist", 0, "s"], ["ack", 0, ["m0"], {"txn": 0}],
        ["begin", 1], ["enlist", 1, "s"], ["ack", 0, ["m0"], {"txn": 1}], ["end", 0, True],
        ["end", 1, False], ["redeliver", 0, []],
    ],
    "transaction_aborted": [
        P, ["subscribe", 0, "s", SHARED], ["send", 0], ["begin", 0], ["enlist", 0],
        ["send", 0, {"txn": 0}], ["enlist", 0, "s"], ["ack", 0, ["m0"], {"txn": 0}],
        ["end", 0, False], ["redeliver", 0, []],
    ],
    "transaction_aborted_on_an_exclusive_subscription": [
        P, ["subscribe", 0, "s", EARLIEST], ["send", 0, {"count": 3}], ["begin", 0],
        ["enlist", 0, "s"], ["ack", 0, ["m2"], {"txn": 0}], ["end", 0, False],
    ],
    "transaction_on_an_ended_topic": [
        P, ["rest", "POST", "terminate"], ["begin", 0], ["enlist", 0], ["end", 0, True],
    ],
    "acknowledged_up_to_a_marker": [
        P, ["subscribe", 0, "s", SHARED], ["begin", 0], ["enlist", 0],
        ["send", 0, {"txn": 0, "count": 2}], ["end", 0, False], ["last_id", 0],
    ],
    "receipts_of_a_transaction_name_messages": [
        P, ["begin", 0], ["enlist", 0], ["send", 0, {"txn": 0, "count": 3}], ["end", 0, True],
        ["rest", "GET", "lastMessageId"], ["rest", "PUT", "subscription/s", None],
        ["rest", "POST", "subscription/s/resetcursor", "$m1"], ["subscribe", 0, "s", {}],
    ],
    "last_message_of_a_transaction": [
        P, ["begin", 0], ["enlist", 0], ["send", 0, {"txn": 0, "count": 2}], ["end", 0, True],
        ["subscribe", 0, "s", {}], ["last_id", 0],
    ],
    "sequence_of_a_transactions_producer": [
        P, ["begin", 0], ["enlist", 0], ["send", 0, {"txn": 0, "count": 2}],
        ["close_producer", 0], ["producer", 0, {"name": "p"}],
    ],
    "transaction_on_a_reader": [
        P, ["send", 0], ["subscribe", 0, "r", {"durable": False, "start": "earliest"}],
        ["begin", 0], ["enlist", 0, "r"], ["ack", 0, ["m0"], {"txn": 0}],
    ],
    "transaction_ends_twice": [P, ["begin", 0], ["end", 0, True], ["end", 0, False]],
    "aborted_sequences_are_sent_again": [
        P, ["rest", "POST", "deduplicationEnabled", True], ["wait", 1000], ["begin", 0],
        ["enlist", 0], ["send", 0, {"txn": 0, "count": 2}], ["end", 0, False],
        ["rest", "PUT", "unload"], ["producer", 0, {"name": "p"}],
    ],
    "aborted_messages_have_no_position": [
        P, ["begin", 0], ["enlist", 0], ["send", 0, {"txn": 0, "count": 2}], ["end", 0, False],
        ["send", 0], ["subscribe", 0, "r", {"durable": False, "start": "m1", "permits": 0}],
        ["last_id", 0],
    ],
    "end_of_topic_once_behind_a_marker": [
        P, ["subscribe", 0, "s", EARLIEST], ["close_consumer", 0], ["begin", 0], ["enlist", 0],
        ["end", 0, True], ["rest", "POST", "terminate"], ["subscribe", 1, "s", EARLIEST],
    ],
    "ordinary_message_beside_a_transaction": [
        P, ["subscribe", 0, "s", SHARED], ["begin", 0], ["enlist", 0], ["send", 0, {"txn": 0}],
        ["send", 0],
    ],
}  # fmt: skip
