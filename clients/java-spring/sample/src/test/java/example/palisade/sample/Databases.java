package example.palisade.sample;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A PostgreSQL of the tests, on a free port, in a temporary folder. */
final class Databases {
    private static String postgres;
    private static int databases;

    private Databases() {}

    private static synchronized String postgres() throws Exception {
        if (postgres == null) {
            File[] versions = new File("/usr/lib/postgresql").listFiles();
            if (versions == null || versions.length == 0) {
                throw new IllegalStateException("PostgreSQL is missing: install the Debian package postgresql");
            }
            String programs = Stream.of(versions).max(Comparator.naturalOrder()).orElseThrow() + "/bin/";
            Path folder = folder("pg");
            int port = freePort();
            List<String> user = new ArrayList<>();
            if (System.getProperty("user.name").equals("root")) {
                // PostgreSQL does not run as root.
                run(List.of("chown", "postgres", folder.toString()));
                user.addAll(List.of("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"));
            }
            String data = folder.resolve("data").toString();
            run(with(user, programs + "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"));
            Process server = begin(with(user, programs + "postgres", "-D", data, "-k", folder.toString(), "-p",
                    Integer.toString(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"));
            // Fast: with SIGTERM it would wait for clients that are still connected.
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try {
                    new ProcessBuilder("kill", "-INT", Long.toString(server.pid())).start().waitFor();
                    server.waitFor(30, TimeUnit.SECONDS);
                } catch (IOException | InterruptedException gone) {
                    server.destroyForcibly();
                }
                remove(folder);
            }));
            String url = "jdbc:postgresql://127.0.0.1:" + port + "/postgres?user=postgres";
            await(server, url);
                        postgres = url;
        }
        return postgres;
    }

    /** A new database with the fence and a table {@code orders} of one row: marks belong to one authority. */
    static synchronized String fresh() throws Exception {
        String name = "shop" + ++databases;
        try (Connection connection = DriverManager.getConnection(postgres()); Statement statement = connection.createStatement()) {
            statement.execute("CREATE DATABASE " + name);
        }
        String url = postgres().replace("/postgres?", "/" + name + "?");
        run(List.of(binary(), "fence", "install", "postgres", "--url",
                url.replace("jdbc:postgresql://", "postgres://postgres@").replaceFirst("\\?.*", "")));
        try (Connection connection = DriverManager.getConnection(url); Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE orders (total int NOT NULL)");
            statement.execute("INSERT INTO orders VALUES (0)");
        }
        return url;
    }

    private static Process begin(List<String> command) throws IOException {
        return new ProcessBuilder(command).directory(new File("/")).redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
    }

    private static void await(Process server, String url) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            try {
                DriverManager.getConnection(url).close();
                return;
            } catch (SQLException notYet) {
                if (!server.isAlive() || System.nanoTime() > end) {
                    throw notYet;
                }
                server.waitFor(50, TimeUnit.MILLISECONDS);
            }
        }
    }

    static String binary() {
        String named = System.getenv("PALISADE_BINARY");
        return new File(named == null ? "../../../target/debug/palisade" : named).getAbsolutePath();
    }

    static void run(List<String> command) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(command).directory(new File("/")).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) {
            throw new IllegalStateException(command + " failed: " + said);
        }
    }

    private static List<String> with(List<String> prefix, String... words) {
        List<String> all = new ArrayList<>(prefix);
        all.addAll(List.of(words));
        return all;
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    private static Path folder(String name) throws IOException {
        return Files.createTempDirectory("palisade-spring-" + name);
    }

    private static void remove(Path folder) {
        try (Stream<Path> all = Files.walk(folder)) {
            all.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        } catch (IOException | UncheckedIOException gone) {
            // It stays in the folder of temporary files.
        }
    }
}
