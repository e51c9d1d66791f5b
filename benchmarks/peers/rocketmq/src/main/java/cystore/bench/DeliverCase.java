package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * Delivery of delayed messages by ScheduleMessageService, which starts when all of them are due, until they are dispatched.
 * The warm-up has a store of its own: 4.9.3 saves the offset near which a run began, so a second start would deliver again.
 */
final class DeliverCase {
    private static final int LEVEL = 1;
    private static final long DELAY_MS = 1000;

    private DeliverCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        int warmUp = options.integer("warm-up", Math.max(50_000, count / 10));
        // Each message is written twice, with the properties of a delayed one.
        JSONObject settings = Peer.settings(options, 2 * (load.bytes(count) + 64L * count));
        options.allKnown();
        measure(new File(root, "warm-up"), load, warmUp, settings);

        JSONObject result = new JSONObject(true);
        result.put("body_bytes", load.bodyBytes);
        result.put("keys", load.keys);
        result.put("config", settings);
        Peer.rate(result, "", count, measure(new File(root, "store"), load, count, settings));
        return result;
    }

    private static long measure(File root, Load load, int count, JSONObject settings)
        throws IOException, InterruptedException {
        DefaultMessageStore store = Peer.open(root, settings);
        store.getScheduleMessageService().shutdown();
        for (int n = 0; n < count; n++) {
            MessageExtBrokerInner message = load.message(n);
            message.setDelayTimeLevel(LEVEL);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            Load.put(store, message);
        }
        Stores.waitDispatched(store);
        Peer.waitAllocated();
        Thread.sleep(DELAY_MS + 1);
        store.getScheduleMessageService().start();
        long nanos = delivered(store, count);
        Stores.close(store);
        return nanos;
    }

    /** The time of {@code count} deliveries. The clock starts with the first look that finds some. */
    private static long delivered(DefaultMessageStore store, int count) throws InterruptedException {
        long first = 0;
        while (first == 0) {
            Thread.sleep(1);
            first = store.getMaxOffsetInQueue(Load.TOPIC, Load.QUEUE_ID);
        }
        long start = System.nanoTime();
        if (first == count) {
            throw new IllegalStateException("too few messages: all were delivered at the first look");
        }
        while (store.getMaxOffsetInQueue(Load.TOPIC, Load.QUEUE_ID) < count) {
            Thread.sleep(1);
        }
        return (System.nanoTime() - start) * count / (count - first);
    }
}
