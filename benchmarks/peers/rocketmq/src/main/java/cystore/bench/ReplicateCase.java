package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;

/**
 * HAService on loopback, master and slave in one JVM, both dispatching. `ship`: the backlog that a new slave gets, and puts
 * of one thread beside it until it has them, in turns with puts into a store without a slave. `replicated`: puts of many
 * threads that wait for the master's disk and for the slave.
 */
final class ReplicateCase {
    private static final int ROUNDS = 3;
    private static final int ROUNDS_BEFORE = 3;
    private static final long LOOK_NANOS = 50_000;
    private static final int SLAVE_TIMEOUT_MS = 60_000;

    private ReplicateCase() {
    }

    static JSONObject ship(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 1024), options.integer("keys", 1));
        int rounds = options.integer("rounds", ROUNDS);
        JSONObject settings = Peer.settings(options, load.bytes((long) (ROUNDS_BEFORE + rounds) * count));
        options.allKnown();
        int port = freePort();
        DefaultMessageStore alone = master(new File(root, "alone"), settings, 0, BrokerRole.ASYNC_MASTER);
        DefaultMessageStore master = master(root, settings, port, BrokerRole.ASYNC_MASTER);
        for (DefaultMessageStore store : new DefaultMessageStore[] {alone, master}) {
            load.fill(store, 0, ROUNDS_BEFORE * count);
        }
        Peer.waitAllocated();
        DefaultMessageStore slave = slave(root, settings, port);
        long begin = reach(slave, 1);
        long start = System.nanoTime();
        long bytes = reach(slave, master.getMaxPhyOffset()) - begin;
        long backlogNanos = System.nanoTime() - start;
        long[] aloneNanos = new long[rounds];
        long[] besideNanos = new long[rounds];
        long[] shippedNanos = new long[rounds];
        for (int turn = 0; turn < 2 * rounds; turn++) {
            settle(alone, master, slave);
            int round = turn / 2;
            if ((turn + round) % 2 == 0) {
                aloneNanos[round] = puts(load, alone, count);
            } else {
                start = System.nanoTime();
                besideNanos[round] = puts(load, master, count);
                reach(slave, master.getMaxPhyOffset());
                shippedNanos[round] = System.nanoTime() - start;
            }
        }
        JSONObject result = new JSONObject(true);
        result.put("config", settings);
        result.put("backlog_bytes_per_s", bytes * 1e9 / backlogNanos);
        result.put("alone_ns", aloneNanos);
        result.put("beside_ns", besideNanos);
        result.put("shipped_ns", shippedNanos);
        Stores.close(slave);
        Stores.close(master);
        Stores.close(alone);
        return result;
    }

    static JSONObject replicated(File root, int count, Options options) throws IOException, InterruptedException {
        Load load = new Load(options.integer("body-bytes", 1024), options.integer("keys", 1));
        int writers = options.integer("writers", 16);
        JSONObject settings = Peer.settings(options, load.bytes((ROUNDS + 1L) * count));
        options.allKnown();
        settings.put("flushDiskType", "SYNC_FLUSH");
        settings.put("slaveTimeout", SLAVE_TIMEOUT_MS);
        int port = freePort();
        DefaultMessageStore master = master(root, settings, port, BrokerRole.SYNC_MASTER);
        JSONObject slaves = (JSONObject) settings.clone();
        slaves.put("flushDiskType", "ASYNC_FLUSH");
        DefaultMessageStore slave = slave(root, slaves, port);
        while (master.getHaService().getConnectionCount().get() == 0) {
            LockSupport.parkNanos(LOOK_NANOS);
        }
        inThreads(load, master, count, writers);
        long[] nanos = new long[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            nanos[round] = inThreads(load, master, count, writers);
        }
        JSONObject result = new JSONObject(true);
        result.put("config", settings);
        result.put("writers", writers);
        Peer.rate(result, "", count, Peer.median(nanos));
        Stores.close(slave);
        Stores.close(master);
        return result;
    }

    /** Everything is done: the slave has all, and all is dispatched. */
    private static void settle(DefaultMessageStore alone, DefaultMessageStore master, DefaultMessageStore slave)
        throws InterruptedException {
        reach(slave, master.getMaxPhyOffset());
        for (DefaultMessageStore store : new DefaultMessageStore[] {alone, master, slave}) {
            Stores.waitDispatched(store);
        }
    }

    private static long puts(Load load, DefaultMessageStore store, int count) {
        long start = System.nanoTime();
        load.fill(store, 0, count);
        return System.nanoTime() - start;
    }

    private static long inThreads(Load load, DefaultMessageStore store, int count, int writers)
        throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        List<Throwable> failed = new ArrayList<>();
        for (int writer = 0; writer < writers; writer++) {
            Thread thread = new Thread(() -> load.fill(store, 0, count / writers));
            thread.setUncaughtExceptionHandler((which, error) -> failed.add(error));
            threads.add(thread);
        }
        long start = System.nanoTime();
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        if (!failed.isEmpty()) {
            throw new IllegalStateException(failed.get(0));
        }
        return System.nanoTime() - start;
    }

    private static DefaultMessageStore master(File root, JSONObject settings, int port, BrokerRole role)
        throws IOException {
        JSONObject mine = (JSONObject) settings.clone();
        mine.put("haListenPort", port);
        return Stores.open(new File(root, "master"), mine, role);
    }

    private static DefaultMessageStore slave(File root, JSONObject settings, int port) throws IOException {
        JSONObject mine = (JSONObject) settings.clone();
        mine.put("haMasterAddress", "127.0.0.1:" + port);
        DefaultMessageStore store = Stores.open(new File(root, "slave"), mine, BrokerRole.SLAVE);
        store.updateHaMasterAddress("127.0.0.1:" + port);
        return store;
    }

    /** The end of the store's log, when it is at least {@code position}. */
    private static long reach(DefaultMessageStore store, long position) {
        while (store.getMaxPhyOffset() < position) {
            LockSupport.parkNanos(LOOK_NANOS);
        }
        return store.getMaxPhyOffset();
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
