package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.util.Random;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;

/** queryMessage by keys chosen at random, each of which one message has. */
final class QueryCase {
    private static final int RESULTS_MAX = 32;

    private QueryCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        int queries = options.integer("queries", 200_000);
        int warmUp = options.integer("warm-up", 100_000);
        int seed = options.integer("seed", 1);
        JSONObject settings = Peer.settings(options, load.bytes(count));
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        load.fill(store, 0, count);
        Stores.waitDispatched(store);
        Peer.waitAllocated();
        Random random = new Random(seed);
        query(store, random, count, warmUp);

        JSONObject result = new JSONObject(true);
        result.put("queries", queries);
        result.put("seed", seed);
        result.put("config", settings);
        long start = System.nanoTime();
        query(store, random, count, queries);
        Peer.rate(result, "", queries, System.nanoTime() - start);
        Stores.close(store);
        return result;
    }

    private static void query(DefaultMessageStore store, Random random, int count, int queries) {
        for (int i = 0; i < queries; i++) {
            String key = Load.key(random.nextInt(count));
            QueryMessageResult found = store.queryMessage(Load.TOPIC, key, RESULTS_MAX, 0, Long.MAX_VALUE);
            if (found.getMessageBufferList().isEmpty()) {
                throw new IllegalStateException("not found: " + key);
            }
            found.release();
        }
    }
}
