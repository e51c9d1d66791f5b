package cystore.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;

/**
 * One JVM for many requests: a JSON object a line in, one a line out, matched by {@code id}. Requests run side by side,
 * because most of one's time is RocketMQ waiting for its own threads.
 */
final class Server {
    private final Map<String, DefaultMessageStore> open = new ConcurrentHashMap<>();
    private final PrintStream replies;

    Server(PrintStream replies) {
        this.replies = replies;
    }

    /** Serves until the end of {@code requests}; stores that are still open then are shut down. */
    void run(InputStream requests) throws IOException, InterruptedException {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line, Feature.OrderedField);
            workers.execute(() -> reply(request));
        }
        workers.shutdown();
        open.values().forEach(Stores::close);
    }

    private void reply(JSONObject request) {
        JSONObject reply = new JSONObject(true);
        reply.put("id", request.get("id"));
        try {
            reply.put("result", handle(request));
        } catch (Exception e) {
            // The other side turns this into its own exception; here there is nobody to tell.
            reply.put("error", e.toString());
        }
        synchronized (replies) {
            replies.println(reply.toJSONString());
            replies.flush();
        }
    }

    private static BrokerRole role(JSONObject request) {
        String role = request.getString("role");
        return role == null ? BrokerRole.ASYNC_MASTER : BrokerRole.valueOf(role);
    }

    private Object handle(JSONObject request) throws IOException, InterruptedException {
        String store = request.getString("store");
        File root = store == null ? null : new File(store);
        switch (request.getString("op")) {
            case "write":
                JSONObject spec = request.getJSONObject("spec");
                if (SpecWriter.isHalt(spec)) {
                    throw new IllegalArgumentException("a halt would end every other request: use the write command");
                }
                return SpecWriter.write(spec, root);
            case "dump":
                try (Writer out = Files.newBufferedWriter(Paths.get(request.getString("out")))) {
                    return Dumper.dump(root, Stores.settings(request), out);
                }
            case "after":
                StringWriter list = new StringWriter();
                AfterList.write(root.toPath(), list);
                return list.toString();
            case "filter":
                return Filters.evaluate(request);
            case "bitPositions":
                return Bitmaps.positions(request);
            case "bitmaps":
                return Bitmaps.compute(request);
            case "readByBitmaps":
                return Bitmaps.read(open.get(store), request);
            case "consumerOffsets":
                ConsumerOffsetManager offsets = new ConsumerOffsetManager();
                offsets.decode(request.getString("text"));
                return offsets.encode(true);
            case "open":
                open.put(store, Stores.open(root, Stores.settings(request), role(request)));
                String master = Stores.settings(request).getString("haMasterAddress");
                if (master != null) {
                    open.get(store).updateHaMasterAddress(master);
                }
                return store;
            case "reach":
                return Stores.reach(open.get(store), request.getLongValue("position"), request.getLongValue("ms"));
            case "put":
                return new SpecWriter(open.get(store)).put(request.getJSONArray("messages"), 0);
            case "close":
                Stores.close(open.remove(store));
                return store;
            default:
                throw new IllegalArgumentException("op " + request.getString("op"));
        }
    }
}
