package magnetar;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.TableView;

/** Operations on readers and table views. */
final class Readers {
    private Readers() {}

    /** Class literals for generic types. */
    record ReaderOf(Reader<?> reader) {}

    record TableOf(TableView<byte[]> table) {}

    static void register(Map<String, Main.Operation> operations) {
        operations.put("reader.create", Readers::create);
        operations.put("reader.read", Readers::read);
        operations.put("reader.has_next", r -> reader(r).hasMessageAvailable());
        operations.put("reader.last_id", r -> Request.describe(reader(r).getLastMessageIds().get(0)));
        operations.put("reader.seek", r -> {
            if (r.has("time_ms")) {
                reader(r).seek(r.big("time_ms"));
            } else {
                reader(r).seek(r.messageId("to"));
            }
            return null;
        });
        operations.put("reader.close", r -> {
            Main.drop(r, ReaderOf.class).reader.close();
            return null;
        });
        // values stay bytes: this client's view asks for a version on the thread that would get the answer
        operations.put("table.create", r -> Main.keep(
            new TableOf(Main.find(r, PulsarClient.class).newTableView(RawSchema.of(r)).topic(r.text("topic")).create())));
        operations.put("table.entries", r -> entries(Main.find(r, TableOf.class).table));
        operations.put("table.await", Readers::awaitEntry);
        operations.put("table.close", r -> {
            Main.drop(r, TableOf.class).table.close();
            return null;
        });
    }

    private static Reader<?> reader(Request request) {
        return Main.find(request, ReaderOf.class).reader;
    }

    private static Object create(Request request) throws Exception {
        ReaderBuilder<?> builder = Main.find(request, PulsarClient.class).newReader(RawSchema.reading(request)).topic(request.text("topic"));
        if (request.has("rollback_s")) {
            builder.startMessageFromRollbackDuration(request.big("rollback_s"), TimeUnit.SECONDS);
        } else {
            builder.startMessageId(request.messageId("start"));
        }
        if (request.flag("start_inclusive", false)) {
            builder.startMessageIdInclusive();
        }
        request.ifNumber("queue", builder::receiverQueueSize);
        request.ifText("name", builder::readerName);
        request.ifFlag("read_compacted", builder::readCompacted);
        if (request.has("keys")) {
            builder.cryptoKeyReader(Keys.of(request.nested("keys")));
        }
        return Main.keep(new ReaderOf(builder.create()));
    }

    private static Object read(Request request) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.big("timeout_ms"));
        JsonArray messages = new JsonArray();
        while (messages.size() < request.number("count", 1)) {
            long left = Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime()));
            Message<?> message = reader(request).readNext((int) left, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            messages.add(Request.describe(message, 0, request.flag("decode", false)));
        }
        return messages;
    }

    private static JsonObject entries(TableView<byte[]> table) {
        JsonObject found = new JsonObject();
        table.forEach((key, value) -> found.addProperty(key, Base64.getEncoder().encodeToString(value)));
        return found;
    }

    private static Object awaitEntry(Request request) throws Exception {
        TableView<byte[]> table = Main.find(request, TableOf.class).table;
        String wanted = request.text("value");
        Consumers.await(() -> table.get(request.text("key")) != null
            && wanted.equals(Base64.getEncoder().encodeToString(table.get(request.text("key")))), request.big("timeout_ms"));
        return entries(table);
    }
}
