package cystore.interop;

import java.io.IOException;
import java.io.Writer;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Lists a closed store's files: path, size and SHA-256, or {@code -} where the bytes or the name depend on time. */
final class AfterList {
    private AfterList() {
    }

    static void write(Path root, Writer out) throws IOException {
        List<Path> files;
        try (Stream<Path> walk = Files.walk(root)) {
            files = walk.filter(Files::isRegularFile).sorted().collect(Collectors.toList());
        }
        for (Path file : files) {
            String path = root.relativize(file).toString();
            boolean isIndex = path.startsWith("index/");
            boolean isStable = path.startsWith("commitlog/") || path.startsWith("consumequeue/")
                || path.startsWith("consumequeue_ext/");
            out.write(String.format("%s %d %s%n", isIndex ? "index/*" : path, Files.size(file), isStable ? sha256(file) : "-"));
        }
        out.flush();
    }

    private static String sha256(Path file) throws IOException {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file));
            return String.format("%064x", new BigInteger(1, digest));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
