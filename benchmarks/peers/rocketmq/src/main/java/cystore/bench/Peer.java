package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.Stores;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;

/** RocketMQ as an embedder who wants speed and asynchronous flush would set it up, and the chores around a case. */
final class Peer {
    private static final int SEGMENT_STEP_BYTES = 64 << 20;
    private static final int SEGMENT_MAX_BYTES = 1 << 30;
    private static final int POOL_BUFFERS = 3;

    private Peer() {
    }

    /** Settings that differ from RocketMQ's defaults, for a log of {@code bytes}. */
    static JSONObject settings(Options options, long bytes) {
        long steps = bytes / SEGMENT_STEP_BYTES + 1;
        JSONObject settings = new JSONObject(true);
        settings.put("mappedFileSizeCommitLog",
            options.integer("segment-bytes", (int) Math.min(steps * SEGMENT_STEP_BYTES, SEGMENT_MAX_BYTES)));
        settings.put("warmMapedFileEnable", options.flag("warm", true));
        boolean pool = options.flag("transient-pool", false);
        settings.put("transientStorePoolEnable", pool);
        if (pool) {
            settings.put("transientStorePoolSize", POOL_BUFFERS);
        }
        settings.put("useReentrantLockWhenPutMessage", options.flag("reentrant-lock", true));
        settings.put("fileReservedTime", 24 * 365);
        return settings;
    }

    static DefaultMessageStore open(File root, JSONObject settings) throws IOException {
        return Stores.open(root, settings, BrokerRole.ASYNC_MASTER);
    }

    /** Waits until the segments that RocketMQ prepares ahead are there, so that no case pays for its neighbour's pages. */
    static void waitAllocated() throws InterruptedException {
        List<Thread> allocators = Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().equals("AllocateMappedFileService")).collect(Collectors.toList());
        for (Thread allocator : allocators) {
            while (allocator.getState() != Thread.State.WAITING && allocator.isAlive()) {
                Thread.sleep(1);
            }
        }
    }

    static void refuseLeftovers(File root) {
        String[] names = root.list();
        if (names != null && names.length > 0) {
            throw new IllegalArgumentException("--dir " + root + " is not empty");
        }
    }

    static void delete(File root) throws IOException {
        if (!root.exists()) {
            return;
        }
        try (Stream<Path> walk = Files.walk(root.toPath())) {
            for (Path path : walk.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) {
                Files.delete(path);
            }
        }
    }

    static long median(long[] nanos) {
        long[] sorted = nanos.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length / 2];
    }

    /** Adds what an operation costs under {@code prefix}. */
    static void rate(JSONObject result, String prefix, long count, long nanos) {
        result.put(prefix + "seconds", nanos / 1e9);
        result.put(prefix + "ns_per_op", (double) nanos / count);
        result.put(prefix + "ops_per_s", count * 1e9 / nanos);
    }
}
