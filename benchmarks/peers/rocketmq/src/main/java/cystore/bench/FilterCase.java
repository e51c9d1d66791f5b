package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;

/** getMessage over a whole queue with the broker's filter for a SQL92 expression. */
final class FilterCase {
    private FilterCase() {
    }

    static JSONObject run(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 100), options.integer("keys", 1), true);
        int batch = options.integer("batch", 32);
        int passes = options.integer("passes", 5);
        String expression = options.text("filter", "a > 89 AND b IN ('x', 'y')");
        JSONObject settings = Peer.settings(options, load.bytes(count) + 16L * count);
        options.allKnown();
        DefaultMessageStore store = Peer.open(root, settings);
        load.fill(store, 0, count);
        Stores.waitDispatched(store);
        Peer.waitAllocated();
        MessageFilter filter = filter(expression);
        long found = 0;
        for (int i = 0; i < passes; i++) {
            found = pass(store, count, batch, filter);
        }
        long[] nanos = new long[passes];
        for (int i = 0; i < passes; i++) {
            long start = System.nanoTime();
            pass(store, count, batch, filter);
            nanos[i] = System.nanoTime() - start;
        }
        JSONObject result = new JSONObject(true);
        result.put("batch", batch);
        result.put("passes", passes);
        result.put("found", found);
        result.put("config", settings);
        Peer.rate(result, "", count, Peer.median(nanos));
        Stores.close(store);
        return result;
    }

    private static MessageFilter filter(String expression) {
        SubscriptionData subscription = new SubscriptionData(Load.TOPIC, expression);
        subscription.setExpressionType("SQL92");
        ConsumerFilterData data = new ConsumerFilterData();
        data.setExpression(expression);
        data.setExpressionType("SQL92");
        try {
            data.setCompiledExpression(new SqlFilter().compile(expression));
        } catch (MQFilterException e) {
            throw new IllegalArgumentException(expression, e);
        }
        return new ExpressionMessageFilter(subscription, data, new ConsumerFilterManager());
    }

    private static long pass(DefaultMessageStore store, int count, int batch, MessageFilter filter) {
        long seen = 0;
        for (long offset = 0; offset < count; ) {
            GetMessageResult got = store.getMessage("bench", Load.TOPIC, Load.QUEUE_ID, offset, batch, filter);
            seen += got.getMessageCount();
            offset = got.getNextBeginOffset();
            got.release();
        }
        return seen;
    }
}
