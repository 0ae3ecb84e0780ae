package magnetar;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Operations on producers. */
final class Producers {
    private Producers() {}

    static void register(Map<String, Main.Operation> operations) {
        operations.put("producer.create", Producers::create);
        operations.put("producer.send", Producers::send);
        operations.put("producer.info", r -> describe(Main.find(r, ProducerOf.class).producer));
        operations.put("producer.close", r -> {
            Main.drop(r, ProducerOf.class).producer.close();
            return null;
        });
    }

    /** A class literal for a generic type. */
    record ProducerOf(Producer<byte[]> producer) {}

    private static JsonObject describe(Producer<byte[]> producer) {
        return Request.object("name", producer.getProducerName(), "last_sequence_id", producer.getLastSequenceId(), "topic",
            producer.getTopic(), "connected", producer.isConnected());
    }

    private static Object create(Request request) throws Exception {
        ProducerBuilder<byte[]> builder = Main.find(request, PulsarClient.class).newProducer().topic(request.text("topic"));
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
            pending.add(build(producer, message).sendAsync());
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

    private static TypedMessageBuilder<byte[]> build(Producer<byte[]> producer, Request message) {
        TypedMessageBuilder<byte[]> builder = producer.newMessage().value(message.bytes("value"));
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
