package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * putMessage from one thread, with messages built beforehand and with messages built on the way. Both in turn, in rounds, of
 * which the median counts: the kernel writes back the pages of the segments prepared ahead meanwhile, now more, now less.
 */
final class PutCase {
    private static final int RING = 1024;
    private static final int ROUNDS = 5;

    private PutCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(
            options.integer("body-bytes", 100), options.integer("keys", 1), false, options.integer("light-queues", 0));
        int warmUp = options.integer("warm-up", Math.max(200_000, count / 10));
        boolean dispatch = options.flag("dispatch", false);
        JSONObject settings = Peer.settings(options, load.bytes(2L * count + warmUp));
        load.enableLightQueues(settings);
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        if (!dispatch) {
            Stores.stopReput(store);
        }
        MessageExtBrokerInner[] ring = new MessageExtBrokerInner[RING];
        for (int n = 0; n < RING; n++) {
            ring[n] = load.message(n);
        }
        prepared(store, ring, warmUp / 2);
        load.fill(store, 0, warmUp - warmUp / 2);
        Peer.waitAllocated();

        JSONObject result = new JSONObject(true);
        result.put("body_bytes", load.bodyBytes);
        result.put("keys", load.keys);
        result.put("light_queues", load.lightQueues);
        result.put("dispatch", dispatch);
        result.put("config", settings);
        long[] preparedNanos = new long[ROUNDS];
        long[] builtNanos = new long[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            long start = System.nanoTime();
            prepared(store, ring, count / ROUNDS);
            long between = System.nanoTime();
            load.fill(store, 0, count / ROUNDS);
            builtNanos[round] = System.nanoTime() - between;
            preparedNanos[round] = between - start;
        }
        Peer.rate(result, "", count / ROUNDS, Peer.median(preparedNanos));
        Peer.rate(result, "built_", count / ROUNDS, Peer.median(builtNanos));
        if (!dispatch) {
            Stores.giveUpReput(store);
        }
        Stores.close(store);
        return result;
    }

    private static void prepared(DefaultMessageStore store, MessageExtBrokerInner[] ring, int count) {
        for (int n = 0; n < count; n++) {
            Load.put(store, ring[n % RING]);
        }
    }
}
