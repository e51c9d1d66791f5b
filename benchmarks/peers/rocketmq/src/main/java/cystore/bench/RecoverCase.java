package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.store.DefaultMessageStore;

/** Loads a store whose JVM was halted. The log is written, and the halt suffered, by a JVM of its own. */
final class RecoverCase {
    static final String FILL_AND_HALT = "fill-and-halt";

    private RecoverCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        int bodyBytes = options.integer("body-bytes", 100);
        int keys = options.integer("keys", 1);
        int warmUp = options.integer("warm-up", 200_000);
        Load load = new Load(bodyBytes, keys);
        JSONObject settings = Peer.settings(options, load.bytes(count));
        settings.put("warmMapedFileEnable", false);
        options.allKnown();
        if (warmUp > 0) {
            measure(new File(root, "warm-up"), load, warmUp, settings);
        }
        JSONObject result = measure(new File(root, "store"), load, count, settings);
        result.put("body_bytes", bodyBytes);
        result.put("keys", keys);
        result.put("config", settings);
        return result;
    }

    private static JSONObject measure(File root, Load load, int count, JSONObject settings)
        throws IOException, InterruptedException {
        halt(root, load, count, settings);
        DispatchClock clock = new DispatchClock();
        DefaultMessageStore store = Stores.create(Stores.config(root, settings));
        clock.attach(store);
        long start = System.nanoTime();
        Stores.load(store);
        long loaded = System.nanoTime();
        int redispatched = clock.count();
        Stores.start(store);
        long started = System.nanoTime();
        if (store.getMaxOffsetInQueue(Load.TOPIC, Load.QUEUE_ID) != count) {
            throw new IllegalStateException("recovered " + store.getMaxOffsetInQueue(Load.TOPIC, Load.QUEUE_ID) + " of " + count);
        }
        JSONObject result = new JSONObject(true);
        result.put("log_bytes", store.getMaxPhyOffset());
        result.put("redispatched", redispatched);
        result.put("start_seconds", (started - loaded) / 1e9);
        Peer.rate(result, "", count, loaded - start);
        Stores.close(store);
        return result;
    }

    private static void halt(File root, Load load, int count, JSONObject settings) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(Arrays.asList(
            new File(System.getProperty("java.home"), "bin/java").getPath(), "-cp", System.getProperty("java.class.path"),
            Main.class.getName(), FILL_AND_HALT, "--dir", root.getPath(), "--count", Integer.toString(count),
            "--body-bytes", Integer.toString(load.bodyBytes), "--keys", Integer.toString(load.keys),
            "--segment-bytes", settings.getString("mappedFileSizeCommitLog"), "--warm", "false"));
        int exit = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT)
            .redirectOutput(ProcessBuilder.Redirect.INHERIT).start().waitFor();
        if (exit != 0 || !new File(root, "abort").exists()) {
            throw new IllegalStateException("the JVM that fills the log ended with " + exit);
        }
    }

    /** The other JVM's part: all is dispatched and in the page cache, nothing is closed. */
    static void fillAndHalt(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        JSONObject settings = Peer.settings(options, load.bytes(count));
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        load.fill(store, 0, count);
        Stores.waitDispatched(store);
        Runtime.getRuntime().halt(0);
    }
}
