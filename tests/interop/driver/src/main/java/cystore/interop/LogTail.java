package cystore.interop;

import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import org.apache.rocketmq.logging.InternalLogger;
import org.apache.rocketmq.logging.InternalLoggerFactory;

/**
 * RocketMQ's loggers, silenced: the last warnings and errors are kept in memory, because they are the only place where a
 * refused load says why.
 */
public final class LogTail extends InternalLoggerFactory {
    private static final int LINES_MAX = 20;
    private static final Deque<String> LINES = new ArrayDeque<>();

    private final InternalLogger logger = (InternalLogger) Proxy.newProxyInstance(
        InternalLogger.class.getClassLoader(), new Class<?>[] {InternalLogger.class}, (proxy, method, args) -> {
            String name = method.getName();
            if (name.equals("getName")) {
                return "tail";
            }
            if (name.equals("warn") || name.equals("error")) {
                remember(name, args);
            }
            return null;
        });

    /** Must run before the first class of RocketMQ that owns a logger is loaded. */
    public static void install() {
        LogTail factory = new LogTail();
        factory.doRegister();
        InternalLoggerFactory.setCurrentLoggerType(factory.getLoggerType());
    }

    /** The warnings and errors since the last call, oldest first. */
    public static List<String> take() {
        synchronized (LINES) {
            List<String> lines = new ArrayList<>(LINES);
            LINES.clear();
            return lines;
        }
    }

    private static void remember(String level, Object[] args) {
        StringBuilder line = new StringBuilder(level);
        for (Object arg : args) {
            for (Object part : arg instanceof Object[] ? (Object[]) arg : new Object[] {arg}) {
                line.append(' ').append(part);
            }
        }
        synchronized (LINES) {
            if (LINES.size() == LINES_MAX) {
                LINES.removeFirst();
            }
            LINES.addLast(line.toString());
        }
    }

    @Override
    protected void shutdown() {
        LINES.clear();
    }

    @Override
    protected InternalLogger getLoggerInstance(String name) {
        return logger;
    }

    @Override
    protected String getLoggerType() {
        return "tail";
    }
}
