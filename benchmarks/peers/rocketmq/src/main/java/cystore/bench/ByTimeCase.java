package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.util.Random;
import org.apache.rocketmq.store.DefaultMessageStore;

/** getOffsetInQueueByTime by times chosen at random between the first and the last message of a queue. */
final class ByTimeCase {
    private ByTimeCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        int batch = options.integer("batch", 100);
        int queries = options.integer("queries", 200_000);
        int warmUp = options.integer("warm-up", 100_000);
        int seed = options.integer("seed", 1);
        JSONObject settings = Peer.settings(options, load.bytes(count));
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        for (int n = 0; n < count; n += batch) {
            load.fill(store, n, Math.min(n + batch, count));
            nextMillisecond();
        }
        Stores.waitDispatched(store);
        Peer.waitAllocated();
        long first = time(store, 0);
        long last = time(store, count - 1);
        Random random = new Random(seed);
        search(store, random, count, first, last, warmUp);

        JSONObject result = new JSONObject(true);
        result.put("queries", queries);
        result.put("milliseconds", last - first + 1);
        result.put("seed", seed);
        result.put("config", settings);
        long start = System.nanoTime();
        search(store, random, count, first, last, queries);
        Peer.rate(result, "", queries, System.nanoTime() - start);
        Stores.close(store);
        return result;
    }

    private static void nextMillisecond() {
        long now = System.currentTimeMillis();
        while (System.currentTimeMillis() == now) {
            Thread.yield();
        }
    }

    private static long time(DefaultMessageStore store, long offset) {
        return store.getMessageStoreTimeStamp(Load.TOPIC, Load.QUEUE_ID, offset);
    }

    private static void search(
        DefaultMessageStore store, Random random, int count, long first, long last, int queries) {
        for (int i = 0; i < queries; i++) {
            long time = first + random.nextInt((int) (last - first + 1));
            long found = store.getOffsetInQueueByTime(Load.TOPIC, Load.QUEUE_ID, time);
            if (found < 0 || found >= count) {
                throw new IllegalStateException("found " + found + " for the time " + time);
            }
        }
    }
}
