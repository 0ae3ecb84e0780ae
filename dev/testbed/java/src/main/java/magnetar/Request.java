package magnetar;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.TopicMessageIdImpl;

/** One request's fields, or a nested object of it, read with the type that the operation expects; and values on their way back. */
record Request(JsonObject json) {
    boolean has(String name) {
        return json.has(name) && !json.get(name).isJsonNull();
    }

    String text(String name) {
        return json.get(name).getAsString();
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    int number(String name, int otherwise) {
        return has(name) ? json.get(name).getAsInt() : otherwise;
    }

    long big(String name) {
        return json.get(name).getAsLong();
    }

    boolean flag(String name, boolean otherwise) {
        return has(name) ? json.get(name).getAsBoolean() : otherwise;
    }

    Request nested(String name) {
        return new Request(json.getAsJsonObject(name));
    }

    List<Request> objects(String name) {
        List<Request> found = new ArrayList<>();
        for (JsonElement element : json.getAsJsonArray(name)) {
            found.add(new Request(element.getAsJsonObject()));
        }
        return found;
    }

    List<String> texts(String name) {
        List<String> found = new ArrayList<>();
        for (JsonElement element : json.getAsJsonArray(name)) {
            found.add(element.getAsString());
        }
        return found;
    }

    List<Integer> numbers(String name) {
        List<Integer> found = new ArrayList<>();
        for (JsonElement element : json.getAsJsonArray(name)) {
            found.add(element.getAsInt());
        }
        return found;
    }

    Map<String, String> map(String name) {
        Map<String, String> found = new LinkedHashMap<>();
        for (Map.Entry<String, JsonElement> entry : json.getAsJsonObject(name).entrySet()) {
            found.put(entry.getKey(), entry.getValue().getAsString());
        }
        return found;
    }

    byte[] bytes(String name) {
        return Base64.getDecoder().decode(text(name));
    }

    void ifText(String name, Consumer<String> use) {
        if (has(name)) {
            use.accept(text(name));
        }
    }

    void ifNumber(String name, Consumer<Integer> use) {
        if (has(name)) {
            use.accept(json.get(name).getAsInt());
        }
    }

    void ifBig(String name, Consumer<Long> use) {
        if (has(name)) {
            use.accept(big(name));
        }
    }

    void ifFlag(String name, Consumer<Boolean> use) {
        if (has(name)) {
            use.accept(json.get(name).getAsBoolean());
        }
    }

    void ifMap(String name, Consumer<Map<String, String>> use) {
        if (has(name)) {
            use.accept(map(name));
        }
    }

    /** "earliest", "latest" or a serialized id. */
    MessageId messageId(String name) throws Exception {
        return switch (text(name)) {
            case "earliest" -> MessageId.earliest;
            case "latest" -> MessageId.latest;
            default -> MessageId.fromByteArray(bytes(name));
        };
    }

    static JsonObject object(Object... namesAndValues) {
        JsonObject made = new JsonObject();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            made.add((String) namesAndValues[i], Main.GSON.toJsonTree(namesAndValues[i + 1]));
        }
        return made;
    }

    static JsonObject describe(MessageId id) {
        MessageId inner = id instanceof TopicMessageIdImpl topical ? topical.getInnerMessageId() : id;
        MessageIdImpl known = (MessageIdImpl) inner;
        int batchIndex = inner instanceof BatchMessageIdImpl batched ? batched.getBatchIndex() : -1;
        return object("raw", Base64.getEncoder().encodeToString(id.toByteArray()), "ledger", known.getLedgerId(), "entry",
            known.getEntryId(), "partition", known.getPartitionIndex(), "batch_index", batchIndex);
    }

    static JsonObject describe(Message<?> message, long handle, boolean decoded) {
        byte[] version = message.getSchemaVersion();
        JsonObject described = object("handle", handle, "id", describe(message.getMessageId()), "value",
            Base64.getEncoder().encodeToString(message.getData()), "key", message.hasKey() ? message.getKey() : null, "ordering_key",
            message.hasOrderingKey() ? new String(message.getOrderingKey(), StandardCharsets.UTF_8) : null, "properties",
            message.getProperties(), "topic", message.getTopicName(), "redelivery_count", message.getRedeliveryCount(),
            "publish_time_ms", message.getPublishTime(), "event_time_ms", message.getEventTime(), "producer", message.getProducerName(),
            "sequence_id", message.getSequenceId(), "index", message.getIndex().orElse(null), "broker_publish_time_ms",
            message.getBrokerPublishTime().orElse(null), "schema_version", version == null ? null : ByteBuffer.wrap(version).getLong());
        if (decoded) {
            GenericRecord record = (GenericRecord) message.getValue();
            JsonObject fields = new JsonObject();
            record.getFields().forEach(field -> fields.add(field.getName(), Main.GSON.toJsonTree(record.getField(field))));
            described.add("decoded", fields);
        }
        return described;
    }
}
