package cystore.bench;

import java.io.File;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

/** {@code --name value} pairs; asking for a name also makes it known, so that leftovers can be refused. */
final class Options {
    private final Map<String, String> given = new TreeMap<>();

    Options(String[] args) {
        if (args.length % 2 != 0) {
            throw new IllegalArgumentException("options come as --name value: " + Arrays.toString(args));
        }
        for (int i = 0; i < args.length; i += 2) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("no option: " + args[i]);
            }
            given.put(args[i].substring(2), args[i + 1]);
        }
    }

    int integer(String name, int otherwise) {
        String value = given.remove(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    String text(String name, String otherwise) {
        String value = given.remove(name);
        return value == null ? otherwise : value;
    }

    boolean flag(String name, boolean otherwise) {
        String value = given.remove(name);
        return value == null ? otherwise : Boolean.parseBoolean(value);
    }

    File directory() {
        String value = given.remove("dir");
        if (value == null) {
            throw new IllegalArgumentException("--dir is missing");
        }
        return new File(value).getAbsoluteFile();
    }

    void allKnown() {
        if (!given.isEmpty()) {
            throw new IllegalArgumentException("unknown options: " + given.keySet());
        }
    }
}
