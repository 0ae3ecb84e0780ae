"""What a scenario may do.

Owns: `OPERATIONS` by name: each sends what a client sends and returns what answered. Imports:
play, naming, magnetar.wire. Invariants: arguments are JSON; an operation on a producer, consumer
or message that the scenario does not have sends nothing and says `absent`, on both servers;
publish times are made up, equal on both.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from google.protobuf.message import Message

from dev.differential.bodies import Options, acknowledged_id, id_of, next_entry, schema_of
from dev.differential.naming import Published, shown_body
from dev.differential.peer import Peer
from dev.differential.play import Consumer, Operation, Play, Producer, Txn
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry

ABSENT = "absent"
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


async def _look_up(play: Play, peer: Peer, topic: str) -> None:
    """As clients do before a producer or consumer: the answer of that says what is wrong."""
    await peer.ask(api.CommandLookupTopic(topic=topic, request_id=next(play.numbers)))


async def producer(play: Play, number: int, options: Options | None = None) -> Any:
    """PRODUCER, on a connection of its own choice."""
    options = options or {}
    peer = await play.peer(options.get("conn", 0))
    body = api.CommandProducer(
        topic=play.full_topic, producer_id=number, request_id=next(play.numbers)
    )
    if "name" in options:
        body.producer_name = options["name"]
    if "access" in options:
        body.producer_access_mode = api.ProducerAccessMode.Value(options["access"])
    if "initial" in options:
        body.initial_subscription_name = options["initial"]
    if "schema" in options:
        body.schema.CopyFrom(schema_of(options["schema"]))
    for key in ("epoch", "topic_epoch", "encrypted", "txn_enabled", "user_provided_producer_name"):
        if key in options:
            setattr(body, key, options[key])
    await _look_up(play, peer, play.full_topic)
    play.producers[number] = Producer(peer, number, open=False)
    answer = await peer.ask(body)
    if answer.type == api.BaseCommand.PRODUCER_SUCCESS:
        success = answer.producer_success
        play.producers[number] = Producer(peer, number, success.producer_name)
    return answer


async def send(play: Play, number: int, options: Options | None = None) -> Any:
    """SEND, as often as `count` says, one after another."""
    options = options or {}
    return [await _send(play, number, options) for _ in range(options.get("count", 1))]


async def _send(play: Play, number: int, options: Options) -> Any:
    found = play.producers.get(number)
    if found is None or not found.open:
        return ABSENT
    sequence = options.get("sequence", found.sequence)
    messages = options.get("messages", 1)
    found.sequence = sequence + messages
    metadata, payload = next_entry(play, options, sequence, found.name)
    body = api.CommandSend(producer_id=number, sequence_id=sequence, num_messages=messages)
    if "messages" in options:
        body.highest_sequence_id = sequence + messages - 1
    if "chunk" in options:
        body.is_chunk = True
    if "txn" in options:
        txn = play.txns.get(options["txn"])
        if txn is None:
            return ABSENT
        body.txnid_most_bits = metadata.txnid_most_bits = txn.most
        body.txnid_least_bits = metadata.txnid_least_bits = txn.least

    def answers(command: api.BaseCommand, answer: Message) -> bool:
        if command.type not in (api.BaseCommand.SEND_RECEIPT, api.BaseCommand.SEND_ERROR):
            return False
        return getattr(answer, "producer_id", None) == number

    answer = await found.peer.ask(body, answers, encode_entry(metadata, payload))
    if answer.type == api.BaseCommand.SEND_ERROR:
        play.texts.append(f"SEND_ERROR: {answer.send_error.message}")
        return f"SEND_ERROR {api.ServerError.Name(answer.send_error.error)}"
    identity = answer.send_receipt.message_id
    if identity.ledgerId == 2**64 - 1:
        play.names.duplicates = True
        return "duplicate"
    return play.names.add(
        Published(
            identity.ledgerId,
            identity.entryId,
            messages,
            metadata.publish_time,
            payload,
            "txn" in options,
        )
    )


async def close_producer(play: Play, number: int) -> Any:
    found = play.producers.get(number)
    if found is None or not found.open:
        return ABSENT
    found.open = False
    return await found.peer.ask(
        api.CommandCloseProducer(producer_id=number, request_id=next(play.numbers))
    )


async def subscribe(play: Play, number: int, sub: str, options: Options | None = None) -> Any:
    """SUBSCRIBE, and FLOW for `permits` messages after a success."""
    options = options or {}
    peer = await play.peer(options.get("conn", 0))
    kind, durable = options.get("type", "Exclusive"), options.get("durable", True)
    body = api.CommandSubscribe(
        topic=play.full_topic, subscription=sub, consumer_id=number,
        request_id=next(play.numbers), consumer_name=options.get("name", f"c{number}"),
        subType=api.CommandSubscribe.SubType.Value(kind), durable=durable,
        initialPosition=api.CommandSubscribe.InitialPosition.Value(
            options.get("position", "Latest")
        ),
    )  # fmt: skip
    if "start" in options:
        start = id_of(play, options["start"])
        if start is None:
            return ABSENT
        body.start_message_id.CopyFrom(start)
    for key, field in (
        ("priority", "priority_level"), ("compacted", "read_compacted"),
        ("create", "force_topic_creation"), ("epoch", "consumer_epoch"),
        ("rollback_s", "start_message_rollback_duration_sec"),
    ):  # fmt: skip
        if key in options:
            setattr(body, field, options[key])
    if "schema" in options:
        body.schema.CopyFrom(schema_of(options["schema"]))
    if "ranges" in options:
        body.keySharedMeta.keySharedMode = api.STICKY
        for low, high in options["ranges"]:
            body.keySharedMeta.hashRanges.append(api.IntRange(start=low, end=high))
    if "out_of_order" in options:
        body.keySharedMeta.keySharedMode = api.AUTO_SPLIT
        body.keySharedMeta.allowOutOfOrderDelivery = options["out_of_order"]
    await _look_up(play, peer, play.full_topic)
    earlier = play.consumers.get(number)
    play.consumers[number] = Consumer(peer, number, sub, kind, durable)
    answer = await peer.ask(body)
    if answer.type != api.BaseCommand.SUCCESS:
        play.consumers[number].open = False
        if earlier is not None:
            play.consumers[number] = earlier
    elif options.get("permits", 1000):
        peer.send(api.CommandFlow(consumer_id=number, messagePermits=options.get("permits", 1000)))
    return answer


def _consumer(play: Play, number: int) -> Consumer | None:
    found = play.consumers.get(number)
    return found if found is not None and found.open else None


async def flow(play: Play, number: int, permits: int) -> Any:
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    found.peer.send(api.CommandFlow(consumer_id=number, messagePermits=permits))
    return None


async def ack(play: Play, number: int, messages: list[str], options: Options | None = None) -> Any:
    """ACK with a request id: it is answered when it has taken effect."""
    found, options = _consumer(play, number), options or {}
    cumulative = options.get("cumulative", False)
    ids = [acknowledged_id(play, name, cumulative) for name in messages]
    if found is None or None in ids:
        return ABSENT
    body = api.CommandAck(
        consumer_id=number, request_id=next(play.numbers), message_id=[id for id in ids if id],
        ack_type=api.CommandAck.Cumulative if cumulative else api.CommandAck.Individual,
    )  # fmt: skip
    if "txn" in options:
        txn = play.txns.get(options["txn"])
        if txn is None:
            return ABSENT
        body.txnid_most_bits, body.txnid_least_bits = txn.most, txn.least
    if not cumulative:
        play.acknowledged.add(found.sub)
    return await found.peer.ask(body)


async def redeliver(
    play: Play, number: int, messages: list[str], options: Options | None = None
) -> Any:
    found = _consumer(play, number)
    ids = [id_of(play, name) for name in messages]
    if found is None or None in ids:
        return ABSENT
    body = api.CommandRedeliverUnacknowledgedMessages(
        consumer_id=number, message_ids=[id for id in ids if id]
    )
    if options and "epoch" in options:
        body.consumer_epoch = options["epoch"]
    found.peer.send(body)
    return None


async def seek(play: Play, number: int, target: str) -> Any:
    """SEEK to a message, `earliest`, `latest`, `time:m3` (when it was published) or `nowhere`."""
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    body = api.CommandSeek(consumer_id=number, request_id=next(play.numbers))
    kind, _, name = target.rpartition(":")
    if kind == "time":
        published = play.names.find(name)
        if published is None:
            return ABSENT
        body.message_publish_time = published.publish_ms
    elif target != "nowhere":
        identity = id_of(play, target)
        if identity is None:
            return ABSENT
        body.message_id.CopyFrom(identity)
    return await found.peer.ask(body)


async def unsubscribe(play: Play, number: int, force: bool = False) -> Any:
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    body = api.CommandUnsubscribe(consumer_id=number, request_id=next(play.numbers))
    if force:
        body.force = True
    answer = await found.peer.ask(body)
    if answer.type == api.BaseCommand.SUCCESS:
        found.open = False
    return answer


async def close_consumer(play: Play, number: int) -> Any:
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    found.open = False
    return await found.peer.ask(
        api.CommandCloseConsumer(consumer_id=number, request_id=next(play.numbers))
    )


async def close_consumers(play: Play, numbers: list[int]) -> Any:
    """All of them; what the broker sent to the others in the meantime is its own choice."""
    answers = [await close_consumer(play, number) for number in numbers]
    await play.settle(play.quiet_s)
    return answers


async def last_id(play: Play, number: int) -> Any:
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    return await found.peer.ask(
        api.CommandGetLastMessageId(consumer_id=number, request_id=next(play.numbers))
    )


async def consumer_stats(play: Play, number: int) -> Any:
    found = _consumer(play, number)
    if found is None:
        return ABSENT
    return await found.peer.ask(
        api.CommandConsumerStats(consumer_id=number, request_id=next(play.numbers))
    )


async def lookup(play: Play) -> Any:
    peer = await play.peer(0)
    return await peer.ask(
        api.CommandLookupTopic(topic=play.full_topic, request_id=next(play.numbers))
    )


async def partitions(play: Play, create: bool = True) -> Any:
    peer = await play.peer(0)
    return await peer.ask(
        api.CommandPartitionedTopicMetadata(
            topic=play.full_topic, request_id=next(play.numbers),
            metadata_auto_creation_enabled=create,
        )
    )  # fmt: skip


async def schema(play: Play, version: str | None = None) -> Any:
    """GET_SCHEMA; `version` in hexadecimal digits."""
    peer = await play.peer(0)
    body = api.CommandGetSchema(topic=play.full_topic, request_id=next(play.numbers))
    if version is not None:
        body.schema_version = bytes.fromhex(version)
    return await peer.ask(body)


async def create_schema(play: Play, options: Options) -> Any:
    """GET_OR_CREATE_SCHEMA."""
    peer = await play.peer(0)
    body = api.CommandGetOrCreateSchema(
        topic=play.full_topic, request_id=next(play.numbers), schema=schema_of(options)
    )
    return await peer.ask(body)


async def disconnect(play: Play, number: int) -> Any:
    """Drop a connection silently."""
    peer = play.lost(number)
    if peer is None:
        return ABSENT
    await peer.close()
    return None


async def begin(play: Play, number: int) -> Any:
    """NEW_TXN at the first coordinator."""
    peer = await play.peer(0)
    await _look_up(play, peer, COORDINATOR)
    await peer.ask(api.CommandTcClientConnectRequest(request_id=next(play.numbers), tc_id=0))
    answer = await peer.ask(
        api.CommandNewTxn(request_id=next(play.numbers), tc_id=0, txn_ttl_seconds=600_000)
    )
    made = answer.new_txn_response
    if not made.HasField("error"):
        play.txns[number] = Txn(made.txnid_most_bits, made.txnid_least_bits)
    return answer


def _in(play: Play, body: Any, number: int) -> Any:
    """The body with the bits of a transaction."""
    txn = play.txns[number]
    body.request_id, body.txnid_most_bits, body.txnid_least_bits = (
        next(play.numbers), txn.most, txn.least,
    )  # fmt: skip
    return body


async def enlist(play: Play, number: int, sub: str | None = None) -> Any:
    """ADD_PARTITION_TO_TXN, or ADD_SUBSCRIPTION_TO_TXN for a subscription."""
    if number not in play.txns:
        return ABSENT
    peer, play.names.transactional = await play.peer(0), True
    if sub is None:
        body = api.CommandAddPartitionToTxn(request_id=0, partitions=[play.full_topic])
        return await peer.ask(_in(play, body, number))
    subscription = api.Subscription(topic=play.full_topic, subscription=sub)
    added = api.CommandAddSubscriptionToTxn(request_id=0, subscription=[subscription])
    return await peer.ask(_in(play, added, number))


async def end(play: Play, number: int, commit: bool) -> Any:
    """END_TXN."""
    if number not in play.txns:
        return ABSENT
    peer, play.txns[number].open = await play.peer(0), False
    body = api.CommandEndTxn(request_id=0, txn_action=api.COMMIT if commit else api.ABORT)
    return await peer.ask(_in(play, body, number))


async def rest(play: Play, method: str, operation: str, body: Any = None) -> Any:
    """A REST request on the scenario's topic; `"$m3"` in the body stands for an id."""
    text = json.dumps(body)
    for number, published in enumerate(play.names.published):
        if published is not None:
            identity = {
                "ledgerId": published.ledger, "entryId": published.entry, "partitionIndex": -1,
            }  # fmt: skip
            text = text.replace(f'"$m{number}"', json.dumps(identity))
    if '"$m' in text:
        return ABSENT
    path = f"{play.rest_topic}{'/' if operation else ''}{operation}"
    if operation.startswith("/"):
        path = operation.removeprefix("/").replace("TOPIC", play.place.topic)
    answer = await play.server.rest(method, path, json.loads(text))
    if answer.status >= 400:
        if isinstance(answer.body, dict) and "reason" in answer.body:
            play.texts.append(f"{method} {operation}: {answer.status} {answer.body['reason']}")
        return [answer.status]
    return [answer.status, shown_body(answer.body, play.names, play.place.topic)]


async def wait(_play: Play, milliseconds: int) -> Any:
    await asyncio.sleep(milliseconds / 1000)
    return None


async def backlog(play: Play, sub: str) -> Any:
    """What a subscription still has: a new consumer on a connection of its own gets it."""
    number = 900 + len(play.consumers)
    options = {"conn": number, "name": "auditor", "position": "Earliest", "create": False}
    return await subscribe(play, number, sub, options)


STATS = ("msgBacklog", "isDurable", "blockedSubscriptionOnUnackedMsgs")


async def stats(play: Play) -> Any:
    """What the topic's statistics say of its subscriptions, as far as it does not move."""
    answer = await play.server.rest("GET", f"{play.rest_topic}/stats")
    if answer.status >= 400:
        return [answer.status]
    body = answer.body
    counted = {} if play.txns or play.names.duplicates else {"in": body["msgInCounter"]}
    keys = STATS[1:] if play.names.transactional else STATS
    return counted | {
        "producers": len(body["publishers"]),
        "subscriptions": {
            name: {key: found.get(key) for key in keys}
            | {"unacked": found["unackedMessages"], "consumers": len(found["consumers"])}
            | ({"type": found["type"]} if found["consumers"] else {})
            for name, found in sorted(body["subscriptions"].items())
        },
    }


OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        producer, send, close_producer, subscribe, flow, ack, redeliver, seek, unsubscribe,
        close_consumer, close_consumers, last_id, consumer_stats, lookup, partitions, schema, create_schema,
        disconnect, begin, enlist, end, rest, wait, backlog, stats,
    )
}  # fmt: skip
