package example.palisade.spring;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
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

/** A PostgreSQL and a MariaDB of the tests, with the fence, on free ports, in temporary folders. */
final class Databases {
    private static String postgres;
    private static String mariadb;

    private Databases() {}

    /** A pool on a database with a fence and a table {@code orders} of one row. */
    static HikariDataSource pool(String url) throws SQLException {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setMaximumPoolSize(4);
        config.setMinimumIdle(0);
        config.setConnectionTimeout(20_000);
        HikariDataSource pool = new HikariDataSource(config);
        try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
            statement.execute("DROP TABLE IF EXISTS orders");
            statement.execute("CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL)");
            statement.execute("INSERT INTO orders VALUES (1, 0)");
        }
        return pool;
    }

    static synchronized String postgres() throws Exception {
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
            run(List.of(binary(), "fence", "install", "postgres", "--url", "postgres://postgres@127.0.0.1:" + port + "/postgres"));
            try (Connection connection = DriverManager.getConnection(url); Statement statement = connection.createStatement()) {
                statement.execute("CREATE DATABASE other");
            }
            postgres = url;
        }
        return postgres;
    }

    static synchronized String mariadb() throws Exception {
        if (mariadb == null) {
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
            Process server = begin(with(with(List.of("/usr/sbin/mariadbd"), shared.toArray(String[]::new)), "--port=" + port,
                    "--socket=" + folder.resolve("socket"), "--pid-file=" + folder.resolve("pid"), "--init-file=" + first,
                    "--bind-address=127.0.0.1", "--skip-name-resolve"));
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                server.destroy();
                server.onExit().join();
                remove(folder);
            }));
            String url = "jdbc:mariadb://127.0.0.1:" + port + "/palisade?user=palisade";
            await(server, url);
            run(List.of(binary(), "fence", "install", "mysql", "--url", "mysql://palisade@127.0.0.1:" + port + "/palisade"));
            mariadb = url;
        }
        return mariadb;
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
        return new File(named == null ? "../../target/debug/palisade" : named).getAbsolutePath();
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
