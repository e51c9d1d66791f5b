package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** getMessage over a whole queue, in batches: the raw buffers that a broker would send on, and decoded messages. */
final class GetCase {
    private static final String GROUP = "bench";

    private GetCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        int batch = options.integer("batch", 32);
        int passes = options.integer("passes", 3);
        JSONObject settings = Peer.settings(options, load.bytes(count));
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        load.fill(store, 0, count);
        Stores.waitDispatched(store);
        Peer.waitAllocated();
        pass(store, count, batch, false);
        pass(store, count, batch, true);

        JSONObject result = new JSONObject(true);
        result.put("body_bytes", load.bodyBytes);
        result.put("batch", batch);
        result.put("passes", passes);
        result.put("config", settings);
        measure(result, "", store, count, batch, passes, false);
        measure(result, "decoded_", store, count, batch, passes, true);
        Stores.close(store);
        return result;
    }

    private static void measure(JSONObject result, String prefix, DefaultMessageStore store, int count, int batch, int passes,
        boolean decode) {
        long[] nanos = new long[passes];
        for (int i = 0; i < passes; i++) {
            long start = System.nanoTime();
            pass(store, count, batch, decode);
            nanos[i] = System.nanoTime() - start;
        }
        Peer.rate(result, prefix, count, Peer.median(nanos));
    }

    private static void pass(DefaultMessageStore store, int count, int batch, boolean decode) {
        long seen = 0;
        for (long offset = 0; offset < count; ) {
            GetMessageResult got = store.getMessage(GROUP, Load.TOPIC, Load.QUEUE_ID, offset, batch, null);
            for (SelectMappedBufferResult one : got.getMessageMapedList()) {
                boolean isThere = decode ? MessageDecoder.decode(one.getByteBuffer(), true, false).getBody() != null
                    : one.getByteBuffer().remaining() > 0;
                seen += isThere ? 1 : 0;
            }
            offset = got.getNextBeginOffset();
            got.release();
        }
        if (seen != count) {
            throw new IllegalStateException("read " + seen + " of " + count);
        }
    }
}
