package magnetar;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Phaser;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Operations on producers. */
final class Producers {
    private Producers() {}

    static void register(Map<String, Main.Operation> operations) {
        operations.put("producer.create", Producers::create);
        operations.put("producer.send", Producers::send);
        operations.put("producer.stream", r -> Main.keep(new Stream(r)));
        operations.put("stream.progress", r -> Main.find(r, Stream.class).progress());
        operations.put("stream.end", r -> Main.drop(r, Stream.class).end());
        operations.put("producer.info", r -> describe(Main.find(r, ProducerOf.class).producer));
        operations.put("producer.close", r -> {
            Main.drop(r, ProducerOf.class).producer.close();
            return null;
        });
    }

    /** A class literal for a generic type. */
    record ProducerOf(Producer<byte[]> producer) {}

    /** Publishes "<prefix> <number><padding>" at a steady pace until it is ended, and notes when each receipt came (wall clock). */
    private static final class Stream extends Thread {
        private final Producer<byte[]> producer;
        private final String prefix;
        private final String padding;
        private final int intervalMs;
        private final List<JsonObject> answers = Collections.synchronizedList(new ArrayList<>());
        private final CountDownLatch ended = new CountDownLatch(1);
        private final Phaser pending = new Phaser(1);
        private volatile long sent;
        private volatile long lastReceiptMs;

        Stream(Request request) {
            super("stream");
            producer = Main.find(request, ProducerOf.class).producer;
            prefix = request.text("prefix");
            padding = " ".repeat(request.number("padding", 0));
            intervalMs = request.number("interval_ms", 10);
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try {
                while (!ended.await(intervalMs, TimeUnit.MILLISECONDS)) {
                    long number = sent++;
                    pending.register();
                    byte[] value = (prefix + " " + number + padding).getBytes(StandardCharsets.UTF_8);
                    producer.newMessage().value(value).sendAsync().whenComplete((id, thrown) -> receive(number, id, thrown));
                }
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        private void receive(long number, MessageId id, Throwable thrown) {
            long now = System.currentTimeMillis();
            JsonObject answer = Request.object("number", number, "at_ms", now);
            if (thrown == null) {
                answer.add("id", Request.describe(id));
                lastReceiptMs = now;
            } else {
                answer.add("error", Main.describe(thrown));
            }
            answers.add(answer);
            pending.arriveAndDeregister();
        }

        JsonObject progress() {
            return Request.object("sent", sent, "last_receipt_ms", lastReceiptMs);
        }

        /** Send nothing more; what became of every message, once it is known. */
        JsonObject end() throws Exception {
            ended.countDown();
            join();
            pending.arriveAndAwaitAdvance();
            JsonArray all = new JsonArray();
            synchronized (answers) {
                answers.forEach(all::add);
            }
            JsonObject told = Request.object("sent", sent);
            told.add("answers", all);
            return told;
        }
    }

    private static JsonObject describe(Producer<byte[]> producer) {
        return Request.object("name", producer.getProducerName(), "last_sequence_id", producer.getLastSequenceId(), "topic",
            producer.getTopic(), "connected", producer.isConnected());
    }

    private static Object create(Request request) throws Exception {
        ProducerBuilder<byte[]> builder = Main.find(request, PulsarClient.class).newProducer(RawSchema.of(request));
        builder.topic(request.text("topic"));
        builder.enableBatching(request.flag("batching", false));
        builder.blockIfQueueFull(true);
        builder.sendTimeout(request.number("send_timeout_ms", 30_000), TimeUnit.MILLISECONDS);
        request.ifText("name", builder::producerName);
        request.ifText("access_mode", mode -> builder.accessMode(ProducerAccessMode.valueOf(mode)));
        request.ifText("compression", kind -> builder.compressionType(CompressionType.valueOf(kind)));
        request.ifNumber("batching_max_messages", builder::batchingMaxMessages);
        request.ifNumber("batching_delay_ms", delay -> builder.batchingMaxPublishDelay(delay, TimeUnit.MILLISECONDS));
        request.ifBig("initial_sequence_id", builder::initialSequenceId);
        request.ifMap("properties", builder::properties);
        request.ifFlag("chunking", builder::enableChunking);
        request.ifNumber("chunk_max_size", builder::chunkMaxMessageSize);
        request.ifNumber("partitions_poll_s", seconds -> builder.autoUpdatePartitionsInterval(seconds, TimeUnit.SECONDS));
        if (request.flag("key_based_batches", false)) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        if (request.has("keys")) {
            builder.cryptoKeyReader(Keys.of(request.nested("keys")));
            builder.addEncryptionKey(request.nested("keys").text("name"));
        }
        Producer<byte[]> producer = builder.create();
        JsonObject made = describe(producer);
        made.addProperty("handle", Main.keep(new ProducerOf(producer)));
        return made;
    }

    /** All messages of the request without waiting, then a flush, then one answer each: its id or its error. */
    private static Object send(Request request) throws Exception {
        Producer<byte[]> producer = Main.find(request, ProducerOf.class).producer;
        List<CompletableFuture<MessageId>> pending = new ArrayList<>();
        for (Request message : request.objects("messages")) {
            pending.add(build(start(producer, request), message).sendAsync());
        }
        producer.flushAsync();
        JsonArray answers = new JsonArray();
        for (CompletableFuture<MessageId> receipt : pending) {
            try {
                answers.add(Request.object("id", Request.describe(receipt.get())));
            } catch (Exception thrown) {
                answers.add(Request.object("error", Main.describe(thrown)));
            }
        }
        return answers;
    }

    private static TypedMessageBuilder<byte[]> start(Producer<byte[]> producer, Request request) {
        if (request.has("schema")) {
            Schema<byte[]> schema = RawSchema.of(request);
            return request.has("transaction") ? producer.newMessage(schema, Transactions.of(request)) : producer.newMessage(schema);
        }
        return request.has("transaction") ? producer.newMessage(Transactions.of(request)) : producer.newMessage();
    }

    private static TypedMessageBuilder<byte[]> build(TypedMessageBuilder<byte[]> builder, Request message) {
        builder.value(message.bytes("value"));
        message.ifText("key", builder::key);
        message.ifText("ordering_key", key -> builder.orderingKey(key.getBytes(StandardCharsets.UTF_8)));
        message.ifMap("properties", builder::properties);
        message.ifBig("event_time_ms", builder::eventTime);
        message.ifBig("sequence_id", builder::sequenceId);
        message.ifBig("deliver_after_ms", delay -> builder.deliverAfter(delay, TimeUnit.MILLISECONDS));
        message.ifBig("deliver_at_ms", builder::deliverAt);
        return builder;
    }
}
