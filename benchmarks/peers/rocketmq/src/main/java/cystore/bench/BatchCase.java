package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageStatus;

/** putMessages from one thread: the batch of a producer, encoded beforehand and again for each call. The median of rounds. */
final class BatchCase {
    private static final int ROUNDS = 5;

    private BatchCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1));
        int batch = options.integer("batch", 100);
        int warmUp = Math.max(200_000, count / 10);
        JSONObject settings = Peer.settings(options, load.bytes(2L * count + warmUp));
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        Stores.stopReput(store);
        List<Message> members = new ArrayList<>();
        for (int n = 0; n < batch; n++) {
            members.add(member(load.message(n)));
        }
        MessageExtBatch encoded = encoded(load, members);
        for (int n = 0; n < warmUp / batch; n++) {
            put(store, n % 2 == 0 ? encoded : encoded(load, members));
        }
        Peer.waitAllocated();

        JSONObject result = new JSONObject(true);
        result.put("body_bytes", load.bodyBytes);
        result.put("keys", load.keys);
        result.put("batch", batch);
        result.put("config", settings);
        long[] encodedNanos = new long[ROUNDS];
        long[] builtNanos = new long[ROUNDS];
        int calls = Math.max(1, count / ROUNDS / batch);
        for (int round = 0; round < ROUNDS; round++) {
            long start = System.nanoTime();
            for (int n = 0; n < calls; n++) {
                put(store, encoded);
            }
            long between = System.nanoTime();
            for (int n = 0; n < calls; n++) {
                put(store, encoded(load, members));
            }
            builtNanos[round] = System.nanoTime() - between;
            encodedNanos[round] = between - start;
        }
        Peer.rate(result, "", (long) calls * batch, Peer.median(encodedNanos));
        Peer.rate(result, "built_", (long) calls * batch, Peer.median(builtNanos));
        Stores.giveUpReput(store);
        Stores.close(store);
        return result;
    }

    private static Message member(MessageExtBrokerInner like) {
        Message member = new Message(like.getTopic(), like.getTags(), like.getBody());
        member.setKeys(like.getKeys());
        return member;
    }

    private static MessageExtBatch encoded(Load load, List<Message> members) {
        MessageExtBrokerInner like = load.message(0);
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(like.getTopic());
        batch.setQueueId(like.getQueueId());
        batch.setBornTimestamp(like.getBornTimestamp());
        batch.setBornHost(like.getBornHost());
        batch.setStoreHost(like.getStoreHost());
        batch.setBody(MessageDecoder.encodeMessages(members));
        return batch;
    }

    private static void put(DefaultMessageStore store, MessageExtBatch batch) {
        PutMessageStatus status = store.putMessages(batch).getPutMessageStatus();
        if (status != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("put of a batch: " + status);
        }
    }
}
