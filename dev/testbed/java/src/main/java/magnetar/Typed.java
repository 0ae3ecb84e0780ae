package magnetar;

import com.google.protobuf.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;

/** Operations on values that this client's own schemas encode and decode: some of every type. Answers have values as texts. */
final class Typed {
    private Typed() {}

    /** A record. */
    public static final class User {
        public String name;
        public long age;
        public List<String> tags;

        public User() {}

        User(String name, long age, List<String> tags) {
            this.name = name;
            this.age = age;
            this.tags = tags;
        }
    }

    record Kind<T>(Schema<T> schema, List<T> values) {
        @SafeVarargs
        static <T> Kind<T> of(Schema<T> schema, T... values) {
            return new Kind<>(schema, List.of(values));
        }
    }

    private static final User[] USERS = {new User("Åse", 41, List.of("a", "")), new User("", -1, List.of())};
    private static final Schema<User> AVRO = Schema.AVRO(User.class);
    private static final Map<String, Kind<?>> KINDS = new TreeMap<>(Map.ofEntries(
        Map.entry("BYTES", Kind.of(Schema.BYTES, new byte[] {0, -1}, new byte[] {7})),
        Map.entry("STRING", Kind.of(Schema.STRING, "Åse", "b")),
        Map.entry("BOOLEAN", Kind.of(Schema.BOOL, true, false)),
        Map.entry("INT8", Kind.of(Schema.INT8, Byte.MIN_VALUE, Byte.MAX_VALUE)),
        Map.entry("INT16", Kind.of(Schema.INT16, Short.MIN_VALUE, Short.MAX_VALUE)),
        Map.entry("INT32", Kind.of(Schema.INT32, Integer.MIN_VALUE, Integer.MAX_VALUE)),
        Map.entry("INT64", Kind.of(Schema.INT64, Long.MIN_VALUE, Long.MAX_VALUE)),
        Map.entry("FLOAT", Kind.of(Schema.FLOAT, -0.5f, Float.MAX_VALUE)),
        Map.entry("DOUBLE", Kind.of(Schema.DOUBLE, -0.1, Double.MIN_VALUE)),
        Map.entry("DATE", Kind.of(Schema.DATE, new Date(0), new Date(1_795_867_200_000L))),
        Map.entry("TIME", Kind.of(Schema.TIME, new java.sql.Time(0), new java.sql.Time(3_600_000L))),
        Map.entry("TIMESTAMP", Kind.of(Schema.TIMESTAMP, new java.sql.Timestamp(0), new java.sql.Timestamp(1_795_867_200_123L))),
        Map.entry("INSTANT", Kind.of(Schema.INSTANT, Instant.EPOCH, Instant.ofEpochSecond(1_795_867_200L, 5_000))),
        Map.entry("LOCAL_DATE", Kind.of(Schema.LOCAL_DATE, LocalDate.EPOCH, LocalDate.of(2026, 11, 29))),
        Map.entry("LOCAL_TIME", Kind.of(Schema.LOCAL_TIME, LocalTime.MIDNIGHT, LocalTime.of(23, 59, 59, 1))),
        Map.entry("LOCAL_DATE_TIME", Kind.of(Schema.LOCAL_DATE_TIME, LocalDateTime.of(2026, 11, 29, 12, 0, 0, 7))),
        Map.entry("JSON", Kind.of(Schema.JSON(User.class), USERS)),
        Map.entry("AVRO", Kind.of(AVRO, USERS)),
        Map.entry("PROTOBUF", Kind.of(Schema.PROTOBUF(Timestamp.class), Timestamp.newBuilder().setSeconds(7).setNanos(5).build())),
        Map.entry("PROTOBUF_NATIVE", Kind.of(Schema.PROTOBUF_NATIVE(Timestamp.class), Timestamp.newBuilder().setSeconds(-7).build())),
        Map.entry("KEY_VALUE_INLINE", pairs(KeyValueEncodingType.INLINE)),
        Map.entry("KEY_VALUE_SEPARATED", pairs(KeyValueEncodingType.SEPARATED))));

    private static Kind<KeyValue<String, User>> pairs(KeyValueEncodingType encoding) {
        return Kind.of(Schema.KeyValue(Schema.STRING, AVRO, encoding), new KeyValue<>("k", USERS[0]), new KeyValue<>("ü", USERS[1]),
            new KeyValue<>("gone", null));
    }

    static void register(Map<String, Main.Operation> operations) {
        operations.put("typed.kinds", r -> KINDS.keySet());
        operations.put("typed.publish", r -> publish(r, KINDS.get(r.text("kind"))));
        operations.put("typed.copy", Typed::copy);
        operations.put("typed.read", r -> texts(read(r, KINDS.get(r.text("kind")).schema)));
        operations.put("typed.any", r -> texts(read(r, Schema.AUTO_CONSUME())));
    }

    /** All values of a kind, without waiting in between. */
    private static <T> Object publish(Request request, Kind<T> kind) throws Exception {
        PulsarClient client = Main.find(request, PulsarClient.class);
        try (Producer<T> producer = client.newProducer(kind.schema).topic(request.text("topic"))
            .enableBatching(request.flag("batching", false)).create()) {
            List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
            for (T value : kind.values) {
                receipts.add(producer.newMessage().value(value).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> receipt : receipts) {
                receipt.get();
            }
        }
        return kind.values.stream().map(Typed::text).toList();
    }

    /** Publishes payloads again, as a producer that takes the topic's schema whatever it is. */
    private static Object copy(Request request) throws Exception {
        PulsarClient client = Main.find(request, PulsarClient.class);
        List<Message<byte[]>> found = read(request, Schema.BYTES);
        try (Producer<byte[]> producer = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(request.text("topic"))
            .enableBatching(false).create()) {
            for (Message<byte[]> message : found) {
                var copy = producer.newMessage().value(message.getData());
                if (message.hasKey()) {
                    copy.keyBytes(message.getKeyBytes());
                }
                copy.send();
            }
        }
        return found.size();
    }

    private static <T> List<Message<T>> read(Request request, Schema<T> schema) throws Exception {
        PulsarClient client = Main.find(request, PulsarClient.class);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.big("timeout_ms"));
        List<Message<T>> found = new ArrayList<>();
        try (Reader<T> reader = client.newReader(schema).topic(request.text("topic")).startMessageId(MessageId.earliest).create()) {
            while (found.size() < request.number("count", 1)) {
                long left = Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime()));
                Message<T> message = reader.readNext((int) left, TimeUnit.MILLISECONDS);
                if (message == null) {
                    break;
                }
                message.getValue(); // asks for the version of the schema while the reader can still do so
                found.add(message);
            }
        }
        return found;
    }

    private static <T> List<String> texts(List<Message<T>> messages) {
        return messages.stream().map(message -> text(message.getValue())).toList();
    }

    private static String text(Object value) {
        if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        }
        if (value instanceof KeyValue<?, ?> pair) {
            return text(pair.getKey()) + " = " + text(pair.getValue());
        }
        if (value instanceof User user) {
            return "age: " + user.age + ", name: " + user.name + ", tags: " + user.tags;
        }
        if (value instanceof Timestamp time) {
            return "nanos: " + time.getNanos() + ", seconds: " + time.getSeconds();
        }
        if (value instanceof GenericRecord record && !record.getFields().isEmpty()) {
            return record.getFields().stream().map(field -> field.getName() + ": " + text(record.getField(field))).sorted()
                .collect(Collectors.joining(", "));
        }
        if (value instanceof GenericObject object) {
            return text(object.getNativeObject());
        }
        if (value instanceof JsonNode node && node.isTextual()) {
            return node.asText();
        }
        if (value instanceof Iterable<?> list) {
            List<String> parts = new ArrayList<>();
            list.forEach(part -> parts.add(text(part)));
            return parts.toString();
        }
        return String.valueOf(value);
    }
}
