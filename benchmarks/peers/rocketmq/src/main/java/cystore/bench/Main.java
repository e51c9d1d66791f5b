package cystore.bench;

import com.alibaba.fastjson.JSONObject;
import cystore.interop.LogTail;
import java.io.File;
import java.io.IOException;
import java.util.Arrays;

/** Runs one case and prints one JSON object. */
public final class Main {
    private static final String USAGE = "usage: put|batch|get|filter|query|by-time|offsets|reput|deliver|recover|ship|replicated --dir D "
        + "[--count N] [--OPTION VALUE ...]\n";

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        LogTail.install();
        if (args.length == 0) {
            System.err.print(USAGE);
            System.exit(2);
        }
        Options options = new Options(Arrays.copyOfRange(args, 1, args.length));
        File root = options.directory();
        int count = options.integer("count", 1_000_000);
        Peer.refuseLeftovers(root);
        JSONObject line = new JSONObject(true);
        line.put("peer", "rocketmq-4.9.3");
        line.put("case", args[0]);
        line.put("count", count);
        line.put("java", System.getProperty("java.version"));
        // RocketMQ's threads are no daemons and some of them never end, so this ends them, after a failure too.
        int status = 1;
        try {
            line.putAll(run(args[0], root, count, options));
            System.out.println(line.toJSONString());
            status = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        } finally {
            Peer.delete(root);
            System.exit(status);
        }
    }

    private static JSONObject run(String name, File root, int count, Options options)
        throws IOException, InterruptedException {
        switch (name) {
            case "put":
                return PutCase.run(root, count, options);
            case "batch":
                return BatchCase.run(root, count, options);
            case "get":
                return GetCase.run(root, count, options);
            case "filter":
                return FilterCase.run(root, count, options);
            case "query":
                return QueryCase.run(root, count, options);
            case "by-time":
                return ByTimeCase.run(root, count, options);
            case "offsets":
                return OffsetsCase.run(count, options);
            case "deliver":
                return DeliverCase.run(root, count, options);
            case "reput":
                return ReputCase.run(root, count, options);
            case "ship":
                return ReplicateCase.ship(root, count, options);
            case "replicated":
                return ReplicateCase.replicated(root, count, options);
            case "recover":
                return RecoverCase.run(root, count, options);
            case RecoverCase.FILL_AND_HALT:
                RecoverCase.fillAndHalt(root, count, options);
                throw new IllegalStateException("not halted");
            default:
                throw new IllegalArgumentException(name + "\n" + USAGE);
        }
    }
}
