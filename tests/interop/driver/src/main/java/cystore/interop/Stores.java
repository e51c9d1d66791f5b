package cystore.interop;

import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.util.TypeUtils;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.store.CommitLogDispatcher;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Opens and closes RocketMQ's {@link DefaultMessageStore} on a directory. */
public final class Stores {
    private static final BrokerStatsManager STATS = new BrokerStatsManager("cystore", false);

    private Stores() {
    }

    /** The store would not load or start; the message carries what RocketMQ logged meanwhile. */
    public static final class Refused extends IOException {
        private static final long serialVersionUID = 1L;

        Refused(String what, Throwable cause) {
            super(what + LogTail.take(), cause);
        }
    }

    /**
     * RocketMQ's defaults with {@code settings} on top, in the directory {@code root}. Names are those of
     * {@link MessageStoreConfig}'s setters, in the older spelling {@code maped...} too; an unknown name is an error.
     */
    public static MessageStoreConfig config(File root, Map<String, Object> settings) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        // Any free port: many stores may be open on one machine, and no slave ever asks for it.
        config.setHaListenPort(0);
        if (settings != null) {
            settings.forEach((name, value) -> set(config, name, value));
        }
        return config;
    }

    private static void set(MessageStoreConfig config, String name, Object value) {
        String field = name.replaceFirst("^maped", "mapped");
        String setter = "set" + Character.toUpperCase(field.charAt(0)) + field.substring(1);
        for (Method method : MessageStoreConfig.class.getMethods()) {
            boolean isNamed = method.getName().equals(setter) || method.getName().equals("set" + field);
            if (isNamed && method.getParameterCount() == 1) {
                try {
                    method.invoke(config, TypeUtils.castToJavaBean(value, method.getParameterTypes()[0]));
                } catch (ReflectiveOperationException e) {
                    throw new IllegalArgumentException("config " + name + ": " + value, e);
                }
                return;
            }
        }
        throw new IllegalArgumentException("config: no setting " + name);
    }

    /** A store that is built but neither loaded nor started: dispatchers may still be added. */
    public static DefaultMessageStore create(MessageStoreConfig config) throws IOException {
        LogTail.take();
        return new DefaultMessageStore(config, STATS,
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, new BrokerConfig());
    }

    /** Loads and recovers. RocketMQ does both before it looks at the lock file. */
    public static void load(DefaultMessageStore store) throws Refused {
        if (!store.load()) {
            throw new Refused("load refused ", null);
        }
    }

    /** Takes the lock file and starts all services; returns once everything in the log is dispatched. */
    public static void start(DefaultMessageStore store) throws Refused {
        try {
            store.start();
        } catch (Exception e) {
            store.shutdown();
            throw new Refused("start refused: " + e + " ", e);
        }
    }

    public static DefaultMessageStore open(File root, Map<String, Object> settings, BrokerRole role,
        CommitLogDispatcher... first) throws IOException {
        MessageStoreConfig config = config(root, settings);
        config.setBrokerRole(role);
        DefaultMessageStore store = create(config);
        for (CommitLogDispatcher dispatcher : first) {
            store.getDispatcherList().addFirst(dispatcher);
        }
        load(store);
        start(store);
        Ledgers.lead(store);
        return store;
    }

    /**
     * A clean shutdown without two waits that have nothing to wait for here: RocketMQ sleeps a second for the writers of
     * other threads to finish (an interrupt ends that), and then for the timers of the delay levels to go off once more,
     * which do nothing any more by then.
     */
    public static void close(DefaultMessageStore store) {
        Object timers = field(field(store, "scheduleMessageService"), "deliverExecutorService");
        if (timers != null) {
            ((ScheduledThreadPoolExecutor) timers).setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        }
        Thread.currentThread().interrupt();
        store.shutdown();
        Thread.interrupted();
    }

    public static void waitDispatched(DefaultMessageStore store) throws InterruptedException {
        while (!Ledgers.isCommitted(store) || store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** Ends dispatching for good, with whatever is still behind; what a crash between append and dispatch looks like. */
    public static void stopReput(DefaultMessageStore store) {
        ((ServiceThread) field(store, "reputMessageService")).shutdown(true);
    }

    /** After {@link #stopReput}: lets a shutdown count what was never dispatched as done, and so end at once. */
    public static void giveUpReput(DefaultMessageStore store) {
        Object reput = field(store, "reputMessageService");
        try {
            Method method = reput.getClass().getMethod("setReputFromOffset", long.class);
            method.setAccessible(true);
            method.invoke(reput, store.getMaxPhyOffset());
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("RocketMQ 4.9.3 can set where it dispatches from", e);
        }
    }

    /** A private field of RocketMQ's, where it has no accessor. */
    static Object field(Object owner, String name) {
        try {
            Field field = owner.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return field.get(owner);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("RocketMQ 4.9.3 has " + owner.getClass() + "." + name, e);
        }
    }

    /** The end of the log and its begin, once it goes up to {@code position} and is dispatched, or after {@code ms}. */
    static long[] reach(DefaultMessageStore store, long position, long ms) throws InterruptedException {
        long until = System.currentTimeMillis() + ms;
        while ((store.getMaxPhyOffset() < position || store.dispatchBehindBytes() > 0)
            && System.currentTimeMillis() < until) {
            Thread.sleep(1);
        }
        return new long[] {store.getMaxPhyOffset(), store.getMinPhyOffset()};
    }

    static JSONObject settings(JSONObject holder) {
        return holder.getJSONObject("config");
    }
}
