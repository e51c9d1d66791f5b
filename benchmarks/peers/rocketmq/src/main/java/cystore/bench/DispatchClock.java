package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Times dispatching from inside: start() only looks once a second whether it is done. One dispatcher at either end of
 * RocketMQ's list; they run one after the other in the thread that dispatches, and are read once start() has seen the end.
 */
final class DispatchClock {
    private volatile long first;
    private volatile long last;
    private volatile int count;

    DefaultMessageStore open(File root, JSONObject settings) throws IOException {
        DefaultMessageStore store = Stores.create(Stores.config(root, settings));
        attach(store);
        Stores.load(store);
        Stores.start(store);
        return store;
    }

    void attach(DefaultMessageStore store) {
        store.getDispatcherList().addFirst(request -> {
            if (first == 0) {
                first = System.nanoTime();
            }
        });
        store.getDispatcherList().addLast(request -> {
            count = count + 1;
            last = System.nanoTime();
        });
    }

    int count() {
        return count;
    }

    long nanos() {
        return last - first;
    }
}
