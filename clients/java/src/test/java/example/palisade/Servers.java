package example.palisade;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.mariadb.jdbc.MariaDbDataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** Real servers for the tests, on free ports, in temporary folders. */
final class Servers {
    private static final Pattern LISTENING = Pattern.compile("https?://127\\.0\\.0\\.1:\\d+");
    private static int postgresPort;
    private static int mariaPort;

    private Servers() {}

    /** A server that is ended by {@code close}. */
    record Running(String url, Process process) implements AutoCloseable {
        @Override
        public void close() {
            end(process);
        }
    }

    /** The palisade binary: PALISADE_BINARY, or the dev build of the repository. */
    static String binary() {
        String named = System.getenv("PALISADE_BINARY");
        String found = named == null ? "../../target/debug/palisade" : named;
        if (!new File(found).exists()) {
            throw new IllegalStateException(found + " is missing: run `cargo build -p palisade`, or set PALISADE_BINARY");
        }
        return found;
    }

    static Running serve(String... flags) {
        List<String> arguments = new ArrayList<>(
                List.of("serve", "--listen", "127.0.0.1:0", "--data", folder("palisade").resolve("data").toString()));
        arguments.addAll(Arrays.asList(flags));
        return begin(arguments.toArray(String[]::new));
    }

    static Running gateway(String upstream) {
        return begin("gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", upstream,
                "--data", folder("gateway").resolve("data").toString());
    }

    private static Running begin(String... arguments) {
        List<String> command = new ArrayList<>(List.of(binary()));
        command.addAll(Arrays.asList(arguments));
        try {
            Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
            BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
            String line;
            while ((line = lines.readLine()) != null) {
                Matcher found = LISTENING.matcher(line);
                if (found.find()) {
                    Thread reader = new Thread(() -> lines.lines().forEach(more -> {
                        // A full pipe would stop the server.
                    }));
                    reader.setDaemon(true);
                    reader.start();
                    return new Running(found.group(), process);
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        throw new IllegalStateException(command + " ended before it listened: is it a palisade binary?");
    }

    /** A connection to a PostgreSQL of these tests, with the fence, outside a transaction. */
    static synchronized Connection postgres() throws Exception {
        if (postgresPort == 0) {
            startPostgres();
        }
        return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + postgresPort + "/postgres?user=postgres");
    }

    /** The same. */
    static DataSource postgresSource() throws Exception {
        postgres().close();
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setURL("jdbc:postgresql://127.0.0.1:" + postgresPort + "/postgres?user=postgres");
        return source;
    }

    private static void startPostgres() throws Exception {
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
        Process server = new ProcessBuilder(with(user, programs + "postgres", "-D", data, "-k", folder.toString(),
                        "-p", Integer.toString(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"))
                .directory(new File("/"))
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        // Fast: with SIGTERM it would wait for clients that are still connected.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                new ProcessBuilder("kill", "-INT", Long.toString(server.pid())).start().waitFor();
                server.waitFor(30, TimeUnit.SECONDS);
            } catch (IOException | InterruptedException gone) {
                server.destroyForcibly();
            }
        }));
        postgresPort = port;
        await(server, () -> postgres().close());
        run(List.of(binary(), "fence", "install", "postgres", "--url", "postgres://postgres@127.0.0.1:" + port + "/postgres"));
    }

    private interface Attempt {
        void run() throws Exception;
    }

    private static void await(Process server, Attempt connect) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            try {
                connect.run();
                return;
            } catch (SQLException notYet) {
                if (!server.isAlive() || System.nanoTime() > end) {
                    throw notYet;
                }
                server.waitFor(50, TimeUnit.MILLISECONDS);
            }
        }
    }

    /** A connection to a MariaDB of these tests, with the fence, outside a transaction. */
    static synchronized Connection mariadb() throws Exception {
        return mariadb("palisade");
    }

    static synchronized Connection mariadb(String database) throws Exception {
        return mariadb(database, "palisade");
    }

    static synchronized Connection mariadb(String database, String user) throws Exception {
        if (mariaPort == 0) {
            startMariadb();
        }
        return DriverManager.getConnection("jdbc:mariadb://127.0.0.1:" + mariaPort + "/" + database + "?user=" + user);
    }

    /** The same as {@link #mariadb()}. */
    static DataSource mariadbSource() throws Exception {
        mariadb().close();
        return new MariaDbDataSource("jdbc:mariadb://127.0.0.1:" + mariaPort + "/palisade?user=palisade");
    }

    private static void startMariadb() throws Exception {
        if (!new File("/usr/bin/mariadb-install-db").exists()) {
            throw new IllegalStateException("MariaDB is missing: install the Debian package mariadb-server");
        }
        Path folder = folder("my");
        int port = freePort();
        List<String> shared = List.of("--no-defaults", "--user=" + System.getProperty("user.name"),
                "--datadir=" + folder.resolve("data"), "--tmpdir=" + folder);
        run(with(with(List.of("/usr/bin/mariadb-install-db"), shared.toArray(String[]::new)),
                "--auth-root-authentication-method=normal", "--skip-test-db"));
        Path first = Files.writeString(folder.resolve("init.sql"), """
                CREATE DATABASE palisade;
                CREATE USER 'palisade'@'%';
                GRANT ALL ON *.* TO 'palisade'@'%' WITH GRANT OPTION;
                """);
        Process server = new ProcessBuilder(with(with(List.of("/usr/sbin/mariadbd"), shared.toArray(String[]::new)),
                        "--port=" + port, "--socket=" + folder.resolve("socket"), "--pid-file=" + folder.resolve("pid"),
                        "--init-file=" + first, "--bind-address=127.0.0.1", "--skip-name-resolve"))
                .directory(new File("/"))
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(server)));
        mariaPort = port;
        await(server, () -> mariadb().close());
        installMySqlFence("palisade");
    }

    static void installMySqlFence(String database) throws Exception {
        String url = "mysql://palisade@127.0.0.1:" + mariaPort + "/" + database;
        run(List.of(binary(), "fence", "install", "mysql", "--url", url));
    }

    /** Runs palisade to its end, and returns what it printed. */
    static String palisade(String... arguments) throws Exception {
        return run(with(List.of(binary()), arguments));
    }

    static String run(List<String> command) throws Exception {
        Process process = new ProcessBuilder(command).directory(new File("/")).redirectErrorStream(true)
                .start();
        String said = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) {
            throw new IllegalStateException(command + " failed: " + said);
        }
        return said;
    }

    private static List<String> with(List<String> prefix, String... words) {
        List<String> all = new ArrayList<>(prefix);
        all.addAll(Arrays.asList(words));
        return all;
    }

    static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    /** A folder that is removed when the tests have ended. */
    static Path folder(String name) {
        try {
            Path made = Files.createTempDirectory("palisade-java-" + name);
            Runtime.getRuntime().addShutdownHook(new Thread(() -> remove(made)));
            return made;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void remove(Path folder) {
        try (Stream<Path> all = Files.walk(folder)) {
            all.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        } catch (IOException | UncheckedIOException gone) {
            // A server that still ends may remove its files itself.
        }
    }

    static void end(Process process) {
        process.destroy();
        try {
            if (!process.waitFor(30, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException gone) {
            Thread.currentThread().interrupt();
        }
    }
}
