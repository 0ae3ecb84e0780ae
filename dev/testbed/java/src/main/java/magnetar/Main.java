package magnetar;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientSharedResources;

/**
 * The official Java client, driven over standard input: one JSON request a line, {"id", "op", ...}; each is answered on standard
 * output with {"id", "ok"} or {"id", "error": {"type", "message"}}, in the order in which they finish. The log goes to standard error.
 */
public final class Main {
    static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    static final AtomicLong HANDLES = new AtomicLong();

    /** Threads and timers of all clients: closing one is quick. */
    private static final PulsarClientSharedResources RESOURCES = PulsarClientSharedResources.builder().build();

    private static final Map<Long, Object> OBJECTS = new ConcurrentHashMap<>();

    /** What an operation does with the object of its "handle" and its other fields. */
    interface Operation {
        Object run(Request request) throws Exception;
    }

    private static final Map<String, Operation> OPERATIONS = new ConcurrentHashMap<>();

    static {
        OPERATIONS.put("client.create", Main::createClient);
        OPERATIONS.put("client.partitions", r -> find(r, PulsarClient.class).getPartitionsForTopic(r.text("topic")).get());
        OPERATIONS.put("client.close", r -> {
            drop(r, PulsarClient.class).close();
            return null;
        });
        OPERATIONS.put("version", r -> PulsarClient.class.getPackage().getImplementationVersion());
        Producers.register(OPERATIONS);
        Consumers.register(OPERATIONS);
        Readers.register(OPERATIONS);
        Transactions.register(OPERATIONS);
        Typed.register(OPERATIONS);
    }

    private Main() {}

    static long keep(Object object) {
        long handle = HANDLES.incrementAndGet();
        OBJECTS.put(handle, object);
        return handle;
    }

    static <T> T find(Request request, Class<T> type) {
        return find(request, "handle", type);
    }

    static <T> T find(Request request, String field, Class<T> type) {
        Object found = OBJECTS.get(request.big(field));
        if (found == null) {
            throw new IllegalArgumentException("no object " + request.big(field));
        }
        return type.cast(found);
    }

    static <T> T drop(Request request, Class<T> type) {
        T found = find(request, type);
        OBJECTS.remove(request.big("handle"));
        return found;
    }

    private static Object createClient(Request request) throws Exception {
        ClientBuilder builder = PulsarClient.builder();
        if (request.has("token_file")) {
            Path file = Path.of(request.text("token_file"));
            builder.authentication(AuthenticationFactory.token(() -> read(file)));
        }
        if (request.has("user")) {
            builder.authentication(AuthenticationFactory.create(
                "org.apache.pulsar.client.impl.auth.AuthenticationBasic",
                GSON.toJson(Map.of("userId", request.text("user"), "password", request.text("password")))));
        }
        if (request.has("trust_file")) {
            builder.tlsTrustCertsFilePath(request.text("trust_file"));
        }
        return keep(builder
            .serviceUrl(request.text("url"))
            .operationTimeout(request.number("operation_timeout_ms", 30_000), TimeUnit.MILLISECONDS)
            .lookupTimeout(request.number("operation_timeout_ms", 30_000), TimeUnit.MILLISECONDS)
            .startingBackoffInterval(50, TimeUnit.MILLISECONDS)
            .maxBackoffInterval(400, TimeUnit.MILLISECONDS)
            .memoryLimit(64, org.apache.pulsar.client.api.SizeUnit.MEGA_BYTES)
            .statsInterval(0, TimeUnit.SECONDS)
            .sharedResources(RESOURCES)
            .enableTransaction(request.flag("transactions", false))
            .build());
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static JsonObject answer(JsonObject line) {
        JsonObject answer = new JsonObject();
        answer.add("id", line.get("id"));
        try {
            String name = line.get("op").getAsString();
            Operation operation = OPERATIONS.get(name);
            if (operation == null) {
                throw new UnsupportedOperationException("no operation " + name);
            }
            Object result = operation.run(new Request(line));
            answer.add("ok", result instanceof JsonElement element ? element : GSON.toJsonTree(result));
        } catch (Throwable thrown) {
            answer.add("error", describe(thrown));
        }
        return answer;
    }

    static JsonObject describe(Throwable thrown) {
        Throwable cause = thrown;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return Request.object("type", cause.getClass().getSimpleName(), "message", String.valueOf(cause.getMessage()));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else prints must not break the protocol
        ExecutorService workers = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "request");
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            workers.execute(() -> {
                String text = GSON.toJson(answer(request));
                synchronized (output) {
                    output.println(text);
                    output.flush();
                }
            });
        }
        System.exit(0);
    }
}
