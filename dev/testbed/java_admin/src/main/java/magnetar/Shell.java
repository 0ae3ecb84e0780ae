package magnetar;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * The official pulsar-admin, one JVM for many commands: each line of standard input is {"args": [...]}, answered on standard output
 * with {"ok", "out", "err"}: whether the command's exit code is 0, and what it printed.
 */
public final class Shell extends PulsarAdminTool {
    /** Some commands close what they print to. */
    private static final class Open extends PrintStream {
        Open(ByteArrayOutputStream target) {
            super(target, true, StandardCharsets.UTF_8);
        }

        @Override
        public void close() {
            flush();
        }
    }

    private Shell(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        // Before the tool exists: it keeps writers of what it finds here.
        System.setOut(new Open(out));
        System.setErr(new Open(err));
        Properties properties = new Properties();
        properties.put("webServiceUrl", arguments[0]);
        Shell shell = new Shell(properties);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonArray given = JsonParser.parseString(line).getAsJsonObject().getAsJsonArray("args");
            String[] command = new String[given.size()];
            for (int index = 0; index < command.length; index++) {
                command[index] = given.get(index).getAsString();
            }
            out.reset();
            err.reset();
            JsonObject answer = new JsonObject();
            answer.addProperty("ok", shell.run(command));
            System.out.flush();
            System.err.flush();
            answer.addProperty("out", out.toString(StandardCharsets.UTF_8));
            answer.addProperty("err", err.toString(StandardCharsets.UTF_8));
            answers.println(new Gson().toJson(answer));
            answers.flush();
        }
        System.exit(0);
    }
}
