package cystore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.CommitLogDispatcher;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;

/** Builds a store from a spec: settings, then messages and actions in order. */
final class SpecWriter {
    private final DefaultMessageStore store;
    private final List<Map<String, Object>> results = new ArrayList<>();

    SpecWriter(DefaultMessageStore store) {
        this.store = store;
    }

    /**
     * Writes {@code spec} into {@code root} and finishes as it says. With {@code finish.mode = "halt"} the store is left
     * open: the caller must halt the JVM.
     */
    static List<Map<String, Object>> write(JSONObject spec, File root) throws IOException, InterruptedException {
        Map<String, Object> settings = Stores.settings(spec);
        CommitLogDispatcher[] first = spec.getBooleanValue("bitmap")
            ? new CommitLogDispatcher[] {bitmaps(Stores.config(root, settings).getBitMapLengthConsumeQueueExt())}
            : new CommitLogDispatcher[0];
        DefaultMessageStore store = Stores.open(root, settings, BrokerRole.ASYNC_MASTER, first);
        SpecWriter writer = new SpecWriter(store);
        writer.put(spec.getJSONArray("messages"), spec.getIntValue("putIntervalMs"));
        if (!isHalt(spec)) {
            Stores.waitDispatched(store);
            Stores.close(store);
        }
        return writer.results;
    }

    static boolean isHalt(JSONObject spec) {
        JSONObject finish = spec.getJSONObject("finish");
        String mode = finish == null ? "shutdown" : finish.getString("mode");
        if (!Arrays.asList("shutdown", "halt").contains(mode)) {
            throw new IllegalArgumentException("finish.mode " + mode);
        }
        return mode.equals("halt");
    }

    /** What became of each message, in order; a batch is one result. */
    List<Map<String, Object>> put(JSONArray items, int intervalMs) throws InterruptedException {
        for (int i = 0; i < items.size(); i++) {
            JSONObject item = items.getJSONObject(i);
            if (item.containsKey("action")) {
                act(item);
                continue;
            }
            PutMessageResult result = item.containsKey("batch")
                ? store.putMessages(batch(item)) : store.putMessage(message(item));
            String expect = item.containsKey("expect") ? item.getString("expect") : "PUT_OK";
            if (!result.getPutMessageStatus().name().equals(expect)) {
                throw new IllegalStateException("message " + i + ": " + result.getPutMessageStatus() + ", not " + expect);
            }
            results.add(row(result));
            Thread.sleep(intervalMs);
        }
        return results;
    }

    private void act(JSONObject item) throws InterruptedException {
        switch (item.getString("action")) {
            case "sleep":
                Thread.sleep(item.getLongValue("ms"));
                break;
            case "waitDispatch":
                Stores.waitDispatched(store);
                break;
            case "stopReput":
                Stores.stopReput(store);
                break;
            case "flushCommitLog":
                store.flush();
                break;
            default:
                throw new IllegalArgumentException("action " + item.getString("action"));
        }
    }

    private static Map<String, Object> row(PutMessageResult result) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("status", result.getPutMessageStatus().name());
        AppendMessageResult append = result.getAppendMessageResult();
        if (append != null) {
            row.put("physicalOffset", append.getWroteOffset());
            row.put("queueOffset", append.getLogicsOffset());
            row.put("size", append.getWroteBytes());
            row.put("storeTimestamp", append.getStoreTimestamp());
        }
        return row;
    }

    private static MessageExtBrokerInner message(JSONObject item) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        outer(message, item);
        message.setBody(body(item));
        if (item.containsKey("delayTimeLevel")) {
            message.setDelayTimeLevel(item.getIntValue("delayTimeLevel"));
        }
        message.setPropertiesString(item.containsKey("propertiesString") ? item.getString("propertiesString")
            : MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private static MessageExtBatch batch(JSONObject item) {
        List<Message> members = new ArrayList<>();
        JSONArray batch = item.getJSONArray("batch");
        for (int i = 0; i < batch.size(); i++) {
            Message member = new Message();
            member.setTopic(item.getString("topic"));
            member.setBody(body(batch.getJSONObject(i)));
            inner(member, batch.getJSONObject(i));
            members.add(member);
        }
        MessageExtBatch message = new MessageExtBatch();
        outer(message, item);
        message.setBody(MessageDecoder.encodeMessages(members));
        return message;
    }

    private static void outer(MessageExt message, JSONObject item) {
        message.setTopic(item.getString("topic"));
        message.setQueueId(item.getIntValue("queueId"));
        message.setSysFlag(item.getIntValue("sysFlag"));
        message.setBornTimestamp(item.getLongValue("bornTimestamp"));
        message.setBornHost(Hosts.parse(item.getOrDefault("bornHost", "127.0.0.1:5000").toString()));
        message.setStoreHost(Hosts.parse(item.getOrDefault("storeHost", "127.0.0.1:10911").toString()));
        message.setReconsumeTimes(item.getIntValue("reconsumeTimes"));
        message.setPreparedTransactionOffset(item.getLongValue("preparedTransactionOffset"));
        inner(message, item);
    }

    private static void inner(Message message, JSONObject item) {
        message.setFlag(item.getIntValue("flag"));
        if (item.containsKey("properties")) {
            item.getJSONObject("properties").forEach(
                (name, value) -> MessageAccessor.putProperty(message, name, (String) value));
        }
        if (item.containsKey("tags")) {
            message.setTags(item.getString("tags"));
        }
        if (item.containsKey("keys")) {
            message.setKeys(item.getString("keys"));
        }
        if (item.containsKey("uniqKey")) {
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                item.getString("uniqKey"));
        }
    }

    private static byte[] body(JSONObject item) {
        return Base64.getDecoder().decode(item.getString("bodyB64"));
    }

    /** Stands in for the broker's filter: two of three messages get a bitmap, all of whose bytes are queue offset + 1. */
    private static CommitLogDispatcher bitmaps(int bits) {
        return request -> {
            if (request.getConsumeQueueOffset() % 3 != 0) {
                byte[] bitmap = new byte[bits / Byte.SIZE];
                Arrays.fill(bitmap, (byte) (request.getConsumeQueueOffset() + 1));
                request.setBitMap(bitmap);
            }
        };
    }
}
