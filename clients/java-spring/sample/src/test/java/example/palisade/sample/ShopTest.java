package example.palisade.sample;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Two nodes of the shop, of which one is stopped, or dies, inside of its job. */
public final class ShopTest {
    /** One for all tests, with its database. */
    private static Server server;
    private static String database;

    @BeforeAll
    public static void begin() throws Exception {
        server = new Server();
        database = Databases.fresh();
    }

    @AfterAll
    public static void end() throws Exception {
        server.close();
    }

    /** A node, and what it says. */
    private static final class Running implements AutoCloseable {
        final Process process;
        final Writer in;
        private final BlockingQueue<String> said = new LinkedBlockingQueue<>();

        Running(String url, String... options) throws Exception {
            List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1",
                    "-cp", System.getProperty("java.class.path"), "example.palisade.sample.Node",
                    "--spring.main.banner-mode=off", "--logging.level.root=off", "--shop.every=200ms", "--palisade.lease=2s",
                    "--palisade.url=" + url, "--spring.datasource.url=" + database));
            command.addAll(List.of(options));
            process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            in = process.outputWriter(StandardCharsets.UTF_8);
            Thread reader = new Thread(() -> process.inputReader().lines().forEach(said::add));
            reader.setDaemon(true);
            reader.start();
        }

        /** Waits for a line, and skips others. */
        String await(String wanted) throws InterruptedException {
            while (true) {
                String line = said.poll(2, TimeUnit.MINUTES);
                assertTrue(line != null, "the node never said \"" + wanted + "\"");
                if (line.startsWith(wanted)) {
                    return line;
                }
            }
        }

        boolean hasSaid(String line) {
            return said.contains(line);
        }

        void signal(String name) throws Exception {
            Databases.run(List.of("kill", "-" + name, Long.toString(process.pid())));
        }

        @Override
        public void close() throws IOException {
            process.destroyForcibly();
            process.onExit().join();
        }
    }

    private static int total(String set) throws Exception {
        try (Connection connection = DriverManager.getConnection(database);
                Statement statement = connection.createStatement()) {
            if (set != null) {
                statement.executeUpdate("UPDATE orders SET total = " + set);
            }
            try (ResultSet rows = statement.executeQuery("SELECT total FROM orders")) {
                rows.next();
                return rows.getInt(1);
            }
        }
    }

    /** One node is stopped past its lease inside of its job, and another one runs it. */
    private static String stopped(String... options) throws Exception {
        total("0");
        List<String> all = new ArrayList<>(List.of(options));
        all.add("--node.adds=10");
        try (Running one = new Running(server.url, all.toArray(String[]::new))) {
            one.await("waits");
            one.signal("STOP");
            try (Running two = new Running(server.url, "--node.adds=70")) {
                two.await("written");
                // It has told its caller: nobody may take this away.
                assertEquals(70, total(null));
                one.in.write("go on\n");
                one.in.flush();
                one.signal("CONT");
                return one.await(options.length > 1 ? "written" : "failed") + " " + total(null);
            }
        }
    }

    @Test
    public void aStoppedJobLosesNothing() throws Exception {
        // The control: without a fence the acknowledged write is lost.
        assertEquals("written 10", stopped("--node.waits=read", "--node.bare=true"));
        for (String where : List.of("read", "commit")) {
            String end = stopped("--node.waits=" + where);
            assertTrue(end.startsWith("failed org.springframework.") && end.endsWith(" 70"), end);
        }
    }

    /** After the lease, and not after lockAtMostFor, which is two hours. */
    @Test
    public void theJobOfADeadNodeRunsElsewhere() throws Exception {
        total("0");
        try (Running one = new Running(server.url, "--node.adds=10", "--node.waits=read")) {
            one.await("waits");
            try (Running two = new Running(server.url, "--node.adds=70")) {
                // A control, real time: as long as the first one lives, the job is its own, past a lease.
                assertFalse(two.process.waitFor(6, TimeUnit.SECONDS));
                assertFalse(two.hasSaid("written"));
                one.signal("KILL");
                two.await("written");
                assertEquals(70, total(null));
            }
        }
    }

    @Test
    public void anotherNodeLeadsWhenTheLeaderDies() throws Exception {
        try (Running one = new Running(server.url, "--node.adds=0")) {
            one.await("leads");
            try (Running two = new Running(server.url, "--node.adds=0")) {
                one.signal("KILL");
                two.await("leads");
            }
        }
    }
}
