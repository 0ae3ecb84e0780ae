"""Work that fails: refused messages come back with growing delays; what never succeeds ends in a
dead-letter topic, and can be looked at there.

python examples/client/retries.py [pulsar://127.0.0.1:6650]
"""

import asyncio
import sys
import uuid

from magnetar.client import Client, DeadLetterPolicy, Message, RedeliveryBackoff


def work(message: Message) -> None:
    """Fails twice for "flaky", always for "poison"."""
    if message.value == b"poison" or (message.value == b"flaky" and message.redelivery_count < 2):
        raise ValueError(f"cannot do {message.value.decode()} yet")


async def main(service_url: str) -> None:
    topic = f"persistent://public/default/example-jobs-{uuid.uuid4().hex[:8]}"
    async with Client(service_url) as client:
        consumer = await client.subscribe(
            topic,
            "workers",
            type="Shared",
            negative_ack_backoff=RedeliveryBackoff(first_s=0.05, last_s=1),
            ack_timeout_s=30,  # a worker that hangs is not waited for longer
            dead_letter=DeadLetterPolicy(redeliveries_max=3, initial_subscription="operators"),
        )
        producer = await client.create_producer(topic)
        for job in (b"easy", b"flaky", b"poison"):
            await producer.send(job)
        done: set[bytes] = set()
        attempts = 0
        while attempts < 1 + 3 + 4:  # easy once, flaky three times, poison until its dead letter
            message = await consumer.receive(timeout_s=30)
            attempts += 1
            try:
                work(message)
            except ValueError:
                consumer.negative_acknowledge(message)
            else:
                done.add(message.value)
                await consumer.acknowledge(message)
        graves = await client.subscribe(
            f"{topic}-workers-DLQ", "operators", initial_position="Earliest"
        )
        letter = await graves.receive(timeout_s=30)
        assert done == {b"easy", b"flaky"}
        print(
            f"done: {sorted(done)}; dead: {letter.value!r}, once "
            f"{letter.properties['ORIGIN_MESSAGE_ID']} of {letter.properties['REAL_TOPIC']}"
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "pulsar://127.0.0.1:6650"))
