package magnetar;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMessageId;

/** Operations on consumers. Messages stay here under a handle, since some acknowledgements need the client's own object. */
final class Consumers {
    private static final int POLL_MS = 20;

    private Consumers() {}

    /** A consumer, what it has received and is not done with, and whether it is the active one of a Failover subscription. */
    static final class Received implements ConsumerEventListener {
        Consumer<?> consumer;
        boolean queueless;
        private CompletableFuture<? extends Message<?>> open;
        final Map<Long, Message<?>> messages = new ConcurrentHashMap<>();
        final Map<Integer, Boolean> active = new ConcurrentHashMap<>();

        @Override
        public synchronized void becameActive(Consumer<?> which, int partition) {
            active.put(partition, true);
            notifyAll();
        }

        @Override
        public synchronized void becameInactive(Consumer<?> which, int partition) {
            active.put(partition, false);
            notifyAll();
        }

        /** The next message, or null after a while. A client without a queue has no receive with a time-out: its request stays open. */
        Message<?> next(long timeoutMs) throws Exception {
            if (!queueless) {
                return consumer.receive((int) timeoutMs, TimeUnit.MILLISECONDS);
            }
            if (open == null) {
                open = consumer.receiveAsync();
            }
            try {
                Message<?> message = open.get(timeoutMs, TimeUnit.MILLISECONDS);
                open = null;
                return message;
            } catch (TimeoutException thrown) {
                return null;
            }
        }

        JsonObject describe(Message<?> message, boolean decoded) {
            long handle = Main.HANDLES.incrementAndGet();
            messages.put(handle, message);
            return Request.describe(message, handle, decoded);
        }
    }

    static void register(Map<String, Main.Operation> operations) {
        operations.put("consumer.create", Consumers::create);
        operations.put("consumer.receive", Consumers::receive);
        operations.put("consumer.ack", Consumers::acknowledge);
        operations.put("consumer.ack_cumulative", r -> {
            Received received = received(r);
            MessageId id = received.messages.get(r.numbers("handles").get(0).longValue()).getMessageId();
            if (r.has("transaction")) {
                return received.consumer.acknowledgeCumulativeAsync(id, Transactions.of(r)).get();
            }
            received.consumer.acknowledgeCumulative(id);
            return null;
        });
        operations.put("consumer.nack", r -> {
            each(r, (received, message) -> received.consumer.negativeAcknowledge(message));
            return null;
        });
        operations.put("consumer.reconsume", r -> {
            each(r, (received, message) -> received.consumer.reconsumeLater(message, r.big("delay_ms"), TimeUnit.MILLISECONDS));
            return null;
        });
        operations.put("consumer.redeliver", r -> {
            received(r).consumer.redeliverUnacknowledgedMessages();
            return null;
        });
        operations.put("consumer.seek", r -> {
            if (r.has("time_ms")) {
                received(r).consumer.seek(r.big("time_ms"));
            } else {
                received(r).consumer.seek(r.messageId("to"));
            }
            return null;
        });
        operations.put("consumer.unsubscribe", r -> {
            received(r).consumer.unsubscribe(r.flag("force", false));
            return null;
        });
        operations.put("consumer.last_ids", Consumers::lastIds);
        operations.put("consumer.await_active", Consumers::awaitActive);
        operations.put("consumer.forget_active", r -> {
            received(r).active.clear();
            return null;
        });
        operations.put("consumer.await_end", r -> {
            await(() -> received(r).consumer.hasReachedEndOfTopic(), r.big("timeout_ms"));
            return received(r).consumer.hasReachedEndOfTopic();
        });
        operations.put("consumer.close", r -> {
            Main.drop(r, Received.class).consumer.close();
            return null;
        });
    }

    private static Received received(Request request) {
        return Main.find(request, Received.class);
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** The client offers no event for some conditions; they are looked at again and again. */
    static void await(Condition condition, long timeoutMs) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        while (!condition.holds() && System.nanoTime() < deadline) {
            Thread.sleep(POLL_MS);
        }
    }

    private static Object create(Request request) throws Exception {
        Received received = new Received();
        received.queueless = request.number("queue", 1) == 0;
        ConsumerBuilder<?> builder = Main.find(request, PulsarClient.class).newConsumer(RawSchema.reading(request));
        builder.subscriptionName(request.text("subscription"));
        if (request.text("type", "Exclusive").equals("Failover")) {
            builder.consumerEventListener(received); // the client refuses it for other types
        }
        builder.acknowledgmentGroupTime(request.number("ack_group_ms", 0), TimeUnit.MILLISECONDS);
        request.ifText("topic", builder::topic);
        if (request.has("topics")) {
            builder.topics(request.texts("topics"));
        }
        request.ifText("pattern", builder::topicsPattern);
        request.ifText("pattern_mode", mode -> builder.subscriptionTopicsMode(RegexSubscriptionMode.valueOf(mode)));
        request.ifNumber("pattern_poll_s", seconds -> builder.patternAutoDiscoveryPeriod(seconds, TimeUnit.SECONDS));
        request.ifNumber("partitions_poll_s", seconds -> builder.autoUpdatePartitionsInterval(seconds, TimeUnit.SECONDS));
        request.ifText("type", type -> builder.subscriptionType(SubscriptionType.valueOf(type)));
        request.ifText("mode", mode -> builder.subscriptionMode(SubscriptionMode.valueOf(mode)));
        request.ifText("position", where -> builder.subscriptionInitialPosition(SubscriptionInitialPosition.valueOf(where)));
        request.ifText("name", builder::consumerName);
        request.ifNumber("queue", builder::receiverQueueSize);
        request.ifNumber("priority", builder::priorityLevel);
        request.ifNumber("ack_timeout_ms", delay -> builder.ackTimeout(delay, TimeUnit.MILLISECONDS));
        request.ifNumber("nack_delay_ms", delay -> builder.negativeAckRedeliveryDelay(delay, TimeUnit.MILLISECONDS));
        request.ifFlag("ack_receipt", builder::isAckReceiptEnabled);
        request.ifFlag("batch_index_ack", builder::enableBatchIndexAcknowledgment);
        request.ifFlag("read_compacted", builder::readCompacted);
        request.ifFlag("retry", builder::enableRetry);
        request.ifMap("properties", builder::properties);
        request.ifMap("subscription_properties", builder::subscriptionProperties);
        if (request.flag("start_inclusive", false)) {
            builder.startMessageIdInclusive();
        }
        addPolicies(builder, request);
        received.consumer = builder.subscribe();
        return Request.object("handle", Main.keep(received), "name", received.consumer.getConsumerName());
    }

    private static void addPolicies(ConsumerBuilder<?> builder, Request request) {
        if (request.has("dead_letter")) {
            Request policy = request.nested("dead_letter");
            var made = DeadLetterPolicy.builder().maxRedeliverCount(policy.number("max_redeliver", 2));
            policy.ifText("topic", made::deadLetterTopic);
            policy.ifText("retry_topic", made::retryLetterTopic);
            policy.ifText("initial_subscription", made::initialSubscriptionName);
            builder.deadLetterPolicy(made.build());
        }
        if (request.has("sticky_ranges")) {
            List<Integer> bounds = request.numbers("sticky_ranges");
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < bounds.size(); i += 2) {
                ranges.add(Range.of(bounds.get(i), bounds.get(i + 1)));
            }
            builder.keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(ranges));
        } else if (request.flag("out_of_order", false)) {
            builder.keySharedPolicy(KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true));
        }
        if (request.has("keys")) {
            builder.cryptoKeyReader(Keys.of(request.nested("keys")));
        }
    }

    /** Up to "count" messages; fewer when "timeout_ms" has passed before. */
    private static Object receive(Request request) throws Exception {
        Received received = received(request);
        boolean acknowledges = request.flag("ack", false);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.big("timeout_ms"));
        JsonArray messages = new JsonArray();
        while (messages.size() < request.number("count", 1)) {
            Message<?> message = received.next(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())));
            if (message == null) {
                break;
            }
            if (!acknowledges || acknowledged(received, message)) {
                messages.add(received.describe(message, request.flag("decode", false)));
            }
        }
        return messages;
    }

    /** False if the connection is gone: the message comes again. */
    private static boolean acknowledged(Received received, Message<?> message) throws Exception {
        try {
            received.consumer.acknowledge(message);
            return true;
        } catch (PulsarClientException.ConnectException thrown) {
            return false;
        }
    }

    private static Object acknowledge(Request request) throws Exception {
        Received received = received(request);
        List<MessageId> ids = new ArrayList<>();
        boolean within = request.has("transaction"); // what a transaction acknowledges may be acknowledged again
        for (long handle : request.numbers("handles")) {
            ids.add((within ? received.messages.get(handle) : received.messages.remove(handle)).getMessageId());
        }
        if (within) {
            return Transactions.acknowledge(received.consumer, ids, Transactions.of(request));
        }
        if (ids.size() == 1) {
            received.consumer.acknowledge(ids.get(0));
        } else {
            received.consumer.acknowledge(ids);
        }
        return null;
    }

    interface Use {
        void with(Received received, Message<?> message) throws Exception;
    }

    private static void each(Request request, Use use) throws Exception {
        Received received = received(request);
        for (int handle : request.numbers("handles")) {
            use.with(received, received.messages.remove((long) handle));
        }
    }

    private static Object lastIds(Request request) throws Exception {
        JsonArray ids = new JsonArray();
        for (TopicMessageId id : received(request).consumer.getLastMessageIds()) {
            JsonObject described = Request.describe(id);
            described.addProperty("topic", id.getOwnerTopic());
            ids.add(described);
        }
        return ids;
    }

    private static Object awaitActive(Request request) throws Exception {
        Received received = received(request);
        boolean wanted = request.flag("active", true);
        int partition = request.number("partition", -1);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.big("timeout_ms"));
        synchronized (received) {
            while (received.active.getOrDefault(partition, !wanted) != wanted && System.nanoTime() < deadline) {
                received.wait(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())));
            }
            return received.active.getOrDefault(partition, !wanted) == wanted;
        }
    }
}
