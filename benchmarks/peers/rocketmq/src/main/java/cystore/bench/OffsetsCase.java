package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;

/** commitOffset and queryOffset of the broker's ConsumerOffsetManager, which saves its table every five seconds elsewhere. */
final class OffsetsCase {
    private static final String GROUP = "bench";

    private OffsetsCase() {
    }

    static JSONObject run(int count, Options options) {
        int warmUp = options.integer("warm-up", Math.max(200_000, count / 10));
        options.allKnown();
        ConsumerOffsetManager offsets = new ConsumerOffsetManager();
        move(offsets, warmUp);
        JSONObject result = new JSONObject(true);
        long start = System.nanoTime();
        move(offsets, count);
        Peer.rate(result, "", count, System.nanoTime() - start);
        return result;
    }

    private static void move(ConsumerOffsetManager offsets, int count) {
        for (int n = 0; n < count; n++) {
            offsets.commitOffset("127.0.0.1", GROUP, Load.TOPIC, Load.QUEUE_ID, n);
            if (offsets.queryOffset(GROUP, Load.TOPIC, Load.QUEUE_ID) != n) {
                throw new IllegalStateException("committed " + n);
            }
        }
    }
}
