package cystore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** The filter bitmaps of RocketMQ's broker: its bits of a group, its bitmap of a message, and what its reads make of it. */
final class Bitmaps {
    private Bitmaps() {
    }

    /** A broker's manager for {@code expectConsumerNumUseFilter} consumers; its public constructor wants a whole broker. */
    private static ConsumerFilterManager manager(int consumers) {
        ConsumerFilterManager manager = new ConsumerFilterManager();
        try {
            Field field = ConsumerFilterManager.class.getDeclaredField("bloomFilter");
            field.setAccessible(true);
            field.set(manager, BloomFilter.createByFn(new BrokerConfig().getMaxErrorRateOfBloomFilter(), consumers));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("RocketMQ 4.9.3 has ConsumerFilterManager.bloomFilter", e);
        }
        return manager;
    }

    private static ConsumerFilterManager registered(JSONObject request) {
        ConsumerFilterManager manager = manager(request.getIntValue("consumers"));
        for (Object each : request.getJSONArray("filters")) {
            JSONArray filter = (JSONArray) each;
            String topic = filter.getString(0);
            if (!manager.register(topic, filter.getString(1), filter.getString(2), "SQL92", 1)) {
                throw new IllegalArgumentException("not registered: " + filter);
            }
            manager.get(topic, filter.getString(1)).setBornTime(0);
        }
        return manager;
    }

    /** The length of a bitmap in bits, and the positions of each name. */
    static JSONObject positions(JSONObject request) {
        BloomFilter filter = manager(request.getIntValue("consumers")).getBloomFilter();
        JSONObject answer = new JSONObject(true);
        answer.put("bits", filter.getM());
        JSONArray rows = new JSONArray();
        for (Object name : request.getJSONArray("names")) {
            rows.add(filter.calcBitPositions((String) name));
        }
        answer.put("positions", rows);
        return answer;
    }

    /** What the broker's dispatcher sets as the bitmap of each message, in hexadecimal digits; null for none. */
    static JSONArray compute(JSONObject request) {
        BrokerConfig config = new BrokerConfig();
        config.setEnableCalcFilterBitMap(true);
        CommitLogDispatcherCalcBitMap dispatcher = new CommitLogDispatcherCalcBitMap(config, registered(request));
        JSONArray answers = new JSONArray();
        for (Object each : request.getJSONArray("messages")) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) each).forEach((name, value) -> properties.put(name, (String) value));
            DispatchRequest one = new DispatchRequest(request.getString("topic"), 0, 0, 100, 0, 1, 0, "", null, 0, 0, properties);
            dispatcher.dispatch(one);
            answers.add(one.getBitMap() == null ? null : hex(one.getBitMap()));
        }
        return answers;
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    /** The broker's filter, which counts the records that it has to look at. */
    private static final class Counting extends ExpressionMessageFilter {
        private int records;

        Counting(SubscriptionData subscription, ConsumerFilterData data, ConsumerFilterManager manager) {
            super(subscription, data, manager);
        }

        @Override
        public boolean isMatchedByCommitLog(ByteBuffer buffer, Map<String, String> properties) {
            records++;
            return super.isMatchedByCommitLog(buffer, properties);
        }
    }

    /** Queue offsets that a group gets from a queue with its registered filter, and how many records were looked at. */
    static JSONObject read(DefaultMessageStore store, JSONObject request) {
        ConsumerFilterManager manager = registered(request);
        String topic = request.getString("topic");
        String group = request.getString("group");
        ConsumerFilterData data = manager.get(topic, group);
        SubscriptionData subscription = new SubscriptionData(topic, data.getExpression());
        subscription.setExpressionType("SQL92");
        Counting filter = new Counting(subscription, data, manager);
        JSONArray offsets = new JSONArray();
        long end = store.getMaxOffsetInQueue(topic, 0);
        for (long offset = 0; offset < end; ) {
            GetMessageResult got = store.getMessage(group, topic, 0, offset, 32, filter);
            for (SelectMappedBufferResult each : got.getMessageMapedList()) {
                offsets.add(each.getByteBuffer().getLong(20));
            }
            long next = got.getNextBeginOffset();
            got.release();
            if (next <= offset) {
                throw new IllegalStateException("no way on from " + offset + ": " + got.getStatus());
            }
            offset = next;
        }
        JSONObject answer = new JSONObject(true);
        answer.put("offsets", offsets);
        answer.put("records", filter.records);
        return answer;
    }
}
