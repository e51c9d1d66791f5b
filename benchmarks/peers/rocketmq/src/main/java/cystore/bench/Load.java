package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/** The messages of every case: one topic, a tag, keys that number the message, a body of a fixed size. */
final class Load {
    static final String TOPIC = "BenchTopic";
    static final int QUEUE_ID = 0;
    /** Bytes of a record besides its body, rounded up: the fixed part, topic and properties. */
    private static final int AROUND_BODY_BYTES = 91 + 10 + 64;
    /** The same for the two properties of light queues, and for each of these queues. */
    private static final int LIGHT_BYTES = 48;
    private static final int LIGHT_QUEUE_BYTES = 24;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    final int bodyBytes;
    final int keys;
    /** Whether each message has two properties of its own, for a filter. */
    final boolean isFiltered;
    /** How many light queues each message is in beside its own queue: the same ones for all. */
    final int lightQueues;
    private final String lightNames;
    private final byte[] body;

    Load(int bodyBytes, int keys) {
        this(bodyBytes, keys, false);
    }

    Load(int bodyBytes, int keys, boolean isFiltered) {
        this(bodyBytes, keys, isFiltered, 0);
    }

    Load(int bodyBytes, int keys, boolean isFiltered, int lightQueues) {
        this.bodyBytes = bodyBytes;
        this.keys = keys;
        this.isFiltered = isFiltered;
        this.lightQueues = lightQueues;
        lightNames = IntStream.range(0, lightQueues).mapToObj(Load::lightQueue).collect(Collectors.joining(","));
        byte[] pattern = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
        body = new byte[bodyBytes];
        for (int i = 0; i < bodyBytes; i++) {
            body[i] = pattern[i % pattern.length];
        }
    }

    /** The key that only message {@code n} has. */
    static String key(int n) {
        return "key-" + n;
    }

    static String lightQueue(int n) {
        return MixAll.LMQ_PREFIX + "light-" + n;
    }

    /** Adds what light queues need to the settings of a store. */
    void enableLightQueues(JSONObject settings) {
        if (lightQueues > 0) {
            settings.put("enableLmq", true);
            settings.put("enableMultiDispatch", true);
        }
    }

    MessageExtBrokerInner message(int n) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TOPIC);
        message.setQueueId(QUEUE_ID);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        message.setTags("TagA");
        StringBuilder all = new StringBuilder(key(n));
        for (int k = 1; k < keys; k++) {
            all.append(" more").append(k).append('-').append(n);
        }
        message.setKeys(all.toString());
        if (isFiltered) {
            message.putUserProperty("a", Integer.toString(n % 100));
            message.putUserProperty("b", "xyz".substring(n % 3, n % 3 + 1));
        }
        if (lightQueues > 0) {
            message.putUserProperty(MessageConst.PROPERTY_INNER_MULTI_DISPATCH, lightNames);
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    static void put(DefaultMessageStore store, MessageExtBrokerInner message) {
        PutMessageResult result = store.putMessage(message);
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("put: " + Arrays.asList(result.getPutMessageStatus(), result));
        }
    }

    void fill(DefaultMessageStore store, int from, int to) {
        for (int n = from; n < to; n++) {
            put(store, message(n));
        }
    }

    long bytes(long count) {
        int light = lightQueues > 0 ? LIGHT_BYTES + lightQueues * LIGHT_QUEUE_BYTES : 0;
        return count * (bodyBytes + AROUND_BODY_BYTES + light + 20L * (keys - 1));
    }
}
