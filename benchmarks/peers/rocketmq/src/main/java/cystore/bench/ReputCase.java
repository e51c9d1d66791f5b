package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;

/** Builds consume queue and index of a log that is already there: what RocketMQ's reput thread does, and how fast. */
final class ReputCase {
    private ReputCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(
            options.integer("body-bytes", 100), options.integer("keys", 2), false, options.integer("light-queues", 0));
        int warmUp = options.integer("warm-up", Math.max(200_000, count / 10));
        JSONObject settings = Peer.settings(options, load.bytes(count));
        // A restart would warm the segment behind the log's end while the clock runs.
        settings.put("warmMapedFileEnable", false);
        load.enableLightQueues(settings);
        options.allKnown();
        measure(new File(root, "warm-up"), load, warmUp, settings);

        JSONObject result = new JSONObject(true);
        result.put("body_bytes", load.bodyBytes);
        result.put("keys", load.keys);
        result.put("light_queues", load.lightQueues);
        result.put("config", settings);
        Peer.rate(result, "", count, measure(new File(root, "store"), load, count, settings));
        return result;
    }

    private static long measure(File root, Load load, int count, JSONObject settings) throws IOException {
        DefaultMessageStore store = Peer.open(root, settings);
        Stores.stopReput(store);
        load.fill(store, 0, count);
        Stores.giveUpReput(store);
        Stores.close(store);
        Peer.delete(new File(root, "consumequeue"));
        Peer.delete(new File(root, "index"));

        DispatchClock clock = new DispatchClock();
        store = clock.open(root, settings);
        for (int n = 0; n < load.lightQueues; n++) {
            long found = store.getMaxOffsetInQueue(Load.lightQueue(n), 0);
            if (found != count) {
                throw new IllegalStateException("dispatched " + found + " of " + count + " to " + Load.lightQueue(n));
            }
        }
        Stores.close(store);
        if (clock.count() != count) {
            throw new IllegalStateException("dispatched " + clock.count() + " of " + count);
        }
        return clock.nanos();
    }
}
