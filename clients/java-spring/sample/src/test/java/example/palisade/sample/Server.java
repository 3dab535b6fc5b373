package example.palisade.sample;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** A real server on a free port, with a folder of its own; PALISADE_BINARY names the program. */
final class Server implements AutoCloseable {
    private static final Pattern LISTENING = Pattern.compile("http://127\\.0\\.0\\.1:\\d+");

    final Path folder = Files.createTempDirectory("palisade-spring");
    final String url;
    private final Process process;

    Server() throws IOException {
        process = new ProcessBuilder(Databases.binary(), "serve", "--listen", "127.0.0.1:0", "--data", folder.resolve("data").toString())
                .redirectError(ProcessBuilder.Redirect.DISCARD).start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String found = null;
        for (String line = lines.readLine(); line != null && found == null; line = found == null ? lines.readLine() : line) {
            Matcher address = LISTENING.matcher(line);
            found = address.find() ? address.group() : null;
        }
        if (found == null) {
            throw new IllegalStateException("the server ended before it listened");
        }
        url = found;
    }

    @Override
    public void close() throws IOException {
        process.destroy();
        process.onExit().join();
        List<Path> all = new ArrayList<>();
        try (Stream<Path> files = Files.walk(folder)) {
            files.sorted(Comparator.reverseOrder()).forEach(all::add);
        }
        for (Path file : all) {
            Files.deleteIfExists(file);
        }
    }
}
