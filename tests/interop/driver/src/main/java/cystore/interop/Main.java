package cystore.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import java.io.BufferedWriter;
import java.io.File;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/** The driver's commands. */
public final class Main {
    private static final String USAGE = "usage: write SPEC.json STOREDIR\n"
        + "       dump STOREDIR [--config JSON]\n"
        + "       after STOREDIR\n"
        + "       serve          (JSON requests on standard input, one a line)\n";

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        LogTail.install();
        Writer out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        if (args.length == 3 && args[0].equals("write")) {
            JSONObject spec = parse(new String(Files.readAllBytes(Paths.get(args[1])), StandardCharsets.UTF_8));
            out.write(JSON.toJSONString(SpecWriter.write(spec, store(args[2]).toFile())));
            out.write('\n');
            out.flush();
            if (SpecWriter.isHalt(spec)) {
                // No shutdown, no hooks: what stays behind is what a killed broker leaves.
                Runtime.getRuntime().halt(0);
            }
        } else if ((args.length == 2 || args.length == 4 && args[2].equals("--config")) && args[0].equals("dump")) {
            Dumper.dump(store(args[1]).toFile(), args.length == 4 ? parse(args[3]) : null, out);
        } else if (args.length == 2 && args[0].equals("after")) {
            AfterList.write(store(args[1]), out);
        } else if (args.length == 1 && args[0].equals("serve")) {
            new Server(new java.io.PrintStream(System.out, false, "UTF-8")).run(System.in);
        } else {
            System.err.print(USAGE);
            System.exit(2);
        }
        // RocketMQ's threads are no daemons and some of them never end.
        System.exit(0);
    }

    private static JSONObject parse(String json) {
        return JSON.parseObject(json, Feature.OrderedField);
    }

    private static Path store(String path) {
        return new File(path).getAbsoluteFile().toPath();
    }
}
