package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.attempts.Attempt;
import example.palisade.attempts.Attempts;
import example.palisade.fence.HttpFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.RejectedException;
import example.palisade.fence.StaleException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/**
 * Attempts at jobs. The stories are mistakes of hand-written job tables (docs/use/job-attempts.md): each one first loses with the
 * statement of the mistake, and then loses nothing. The first worker is paused, its lease expires, and a second attempt goes on.
 */
public final class AttemptsTest {
    private final String table = "jobs_" + UUID.randomUUID().toString().replace("-", "");
    private final Attempts jobs = Attempts.of(table).lease(Duration.ofSeconds(30)).maxAttempts(5);
    private Connection connection;

    @BeforeEach
    public void begin() throws Exception {
        connection = Servers.postgres();
        run("CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL,"
                + " state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done', 'failed')),"
                + " attempt bigint NOT NULL DEFAULT 0, lease_until timestamptz, worker text, reason text,"
                + " progress int, result text)");
        run("CREATE TABLE %s_total (total int)");
        run("INSERT INTO %s_total VALUES (0)");
    }

    @AfterEach
    public void end() throws SQLException {
        connection.close();
    }

    /** Returns the number of rows that it changed. */
    private int run(String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return statement.executeUpdate(sql.replace("%s", table));
        }
    }

    private String ask(String column, long id) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT " + column + " FROM " + table + " WHERE id = " + id)) {
            rows.next();
            return rows.getString(1);
        }
    }

    private void insert() throws SQLException {
        run("INSERT INTO %s (payload) VALUES ('{\"order\": 17}')");
    }

    private void expire(long id) throws SQLException {
        run("UPDATE %s SET lease_until = clock_timestamp() - interval '1 second' WHERE id = " + id);
    }

    private int total() throws SQLException {
        return Worker.total(connection, table);
    }

    private Void write(Connection inside, int total) throws SQLException {
        return Worker.write(inside, table, total);
    }

    private Attempt take() throws SQLException {
        return jobs.take(connection, "w1").orElseThrow();
    }

    /** The first attempt, when another one has the job. */
    private Attempt late() throws SQLException {
        insert();
        Attempt late = take();
        expire((Long) late.jobId());
        return late;
    }

    private Void progress(Connection inside, Attempt attempt, int progress) throws SQLException {
        try (Statement statement = inside.createStatement()) {
            statement.executeUpdate("UPDATE " + table + " SET progress = " + progress + " WHERE id = " + attempt.jobId());
            return null;
        }
    }

    /** In a transaction that ends before the job does. */
    private void report(Attempt attempt, int progress) throws SQLException {
        connection.setAutoCommit(false);
        try {
            jobs.guard(connection, attempt);
            progress(connection, attempt, progress);
            connection.commit();
        } finally {
            connection.rollback();
            connection.setAutoCommit(true);
        }
    }

    /** Mistake 1. */
    @Test
    public void theNameOfAWorkerIsNoOwner() throws Exception {
        for (boolean guarded : new boolean[] {false, true}) {
            Attempt late = late();
            long id = (Long) late.jobId();
            report(take(), 70);
            if (guarded) {
                assertEquals("stale 2", told(assertThrows(StaleException.class, () -> report(late, 10))));
            } else {
                run("UPDATE %s SET progress = 10 WHERE id = " + id + " AND worker = 'w1' AND state = 'running'");
            }
            assertEquals(guarded ? "70" : "10", ask("progress", id));
        }
    }

    /** Mistake 3. */
    @Test
    public void theStateAloneDoesNotGuardACompletion() throws Exception {
        for (boolean guarded : new boolean[] {false, true}) {
            Attempt late = late();
            long id = (Long) late.jobId();
            Attempt next = take();
            String complete = "UPDATE %s SET state = 'done', result = '%r' WHERE id = " + id + " AND state = 'running'";
            if (guarded) {
                assertThrows(StaleException.class, () -> jobs.transact(connection, late, inside -> result(inside, id, "old")));
                jobs.transact(connection, next, inside -> result(inside, id, "new"));
            } else {
                assertEquals(1, run(complete.replace("%r", "old")));
                assertEquals(0, run(complete.replace("%r", "new")));
            }
            assertEquals(guarded ? "new" : "old", ask("result", id));
            assertEquals("done", ask("state", id));
        }
    }

    private Void result(Connection inside, long id, String result) throws SQLException {
        try (Statement statement = inside.createStatement()) {
            statement.executeUpdate("UPDATE " + table + " SET result = '" + result + "' WHERE id = " + id);
            return null;
        }
    }

    /** Mistake 8. */
    @Test
    public void effectsOutsideTheRowAreGuarded() throws Exception {
        for (boolean guarded : new boolean[] {false, true}) {
            Attempt late = late();
            jobs.transact(connection, take(), inside -> write(inside, 70));
            if (guarded) {
                assertThrows(StaleException.class, () -> jobs.transact(connection, late, inside -> write(inside, 10)));
            } else {
                write(connection, 10);
                // The completion has its predicate, and is too late.
                assertEquals(0, run("UPDATE %s SET state = 'done' WHERE id = " + late.jobId() + " AND attempt = 1"));
            }
            assertEquals(guarded ? 70 : 10, total());
        }
    }

    /** Mistake 9. */
    @Test
    public void aJobThatKillsItsWorkersFails() throws Exception {
        insert();
        insert();
        // The cap is looked at in fail() only, and the worker dies each time.
        String uncapped = "UPDATE %s SET state = 'running', attempt = attempt + 1, lease_until = clock_timestamp() - interval '1 s'"
                + " WHERE id = (SELECT id FROM %s WHERE state = 'ready' OR lease_until < clock_timestamp()"
                + " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)";
        for (int turn = 0; turn < 7; turn++) {
            run(uncapped);
        }
        assertEquals("7 0", ask("attempt", 1) + " " + ask("attempt", 2));
        run("UPDATE %s SET attempt = 0, state = 'ready' WHERE id = 1");
        for (int attempt = 1; attempt <= 5; attempt++) {
            assertEquals("1 " + attempt, said(take()));
            expire(1);
        }
        assertEquals("2 1", said(take()));
        assertEquals("failed attempt 5 was the last of 5, and its lease expired (worker w1)",
                ask("state", 1) + " " + ask("reason", 1));
    }

    private static String said(Attempt attempt) {
        return attempt.jobId() + " " + attempt.attempt();
    }

    private static String told(RejectedException rejected) {
        return rejected.code() + " " + rejected.detail();
    }

    /** A worker is stopped before its transaction, and goes on when another attempt has written and finished. */
    @Test
    public void aStoppedWorkerLosesNothing() throws Exception {
        for (String mode : List.of("bare", "guarded")) {
            insert();
            run("UPDATE %s_total SET total = 0");
            Process worker = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                    System.getProperty("java.class.path"), "example.palisade.Worker", connection.getMetaData().getURL() + "&user=postgres",
                    table, mode).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            try (Writer in = worker.outputWriter(StandardCharsets.UTF_8);
                    BufferedReader out = new BufferedReader(new InputStreamReader(worker.getInputStream()))) {
                assertEquals("computed", out.readLine());
                Servers.run(List.of("kill", "-STOP", Long.toString(worker.pid())));
                run("UPDATE %s SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running'");
                jobs.transact(connection, take(), inside -> write(inside, Worker.total(inside, table) + 70));
                assertEquals(70, total());
                in.write("go on\n");
                in.flush();
                Servers.run(List.of("kill", "-CONT", Long.toString(worker.pid())));
                assertEquals(mode.equals("bare") ? "written" : "stale", out.readLine());
            } finally {
                worker.destroyForcibly();
            }
            assertEquals(mode.equals("bare") ? 10 : 70, total());
        }
    }

    @Test
    public void aJobIsTakenKeptAndGivenBack() throws Exception {
        assertEquals(Optional.empty(), jobs.take(connection, "w1"));
        insert();
        Attempt attempt = take();
        assertEquals("w1", attempt.worker());
        assertEquals("1 " + table + " job:1 job:1", attempt.token() + " " + attempt.authority() + " " + attempt.name() + " "
                + attempt.resource());
        assertEquals("running", attempt.row().get("state"));
        assertTrue(attempt.row().get("payload").toString().contains("17"));
        assertEquals("job:1", HttpFence.headers(attempt).get("X-Fencing-Lock"));
        assertTrue(jobs.take(connection, "w2").isEmpty());
        expire(1);
        // An expired lease alone refuses nothing, and a heartbeat keeps the job.
        jobs.heartbeat(connection, attempt);
        assertTrue(jobs.take(connection, "w2").isEmpty());
        jobs.transact(connection, attempt, inside -> {
            jobs.fail(inside, attempt, "the first try");
            return null;
        });
        assertEquals("ready the first try", ask("state", 1) + " " + ask("reason", 1));
        assertEquals("already_written ", told(assertThrows(RejectedException.class, () -> jobs.heartbeat(connection, attempt))));
        Attempt again = take();
        assertEquals("stale 2", told(assertThrows(StaleException.class, () -> jobs.heartbeat(connection, attempt))));
        PostgresFence.transact(connection, again.resource(), again, inside -> null);
        assertThrows(StaleException.class, () -> PostgresFence.transact(connection, attempt.resource(), attempt, inside -> null));
        jobs.transact(connection, again, inside -> {
            jobs.fail(inside, again, "for good", false);
            return null;
        });
        assertEquals("failed for good", ask("state", 1) + " " + ask("reason", 1));
        assertEquals(List.of(), jobs.reap(connection));
        assertTrue(connection.getAutoCommit());
    }

    /** A caller that drops the error can only roll back. */
    @Test
    public void aRefusalCannotBeDropped() throws Exception {
        Attempt late = late();
        Attempt next = take();
        connection.setAutoCommit(false);
        assertThrows(StaleException.class, () -> jobs.guard(connection, late));
        assertThrows(SQLException.class, () -> write(connection, 10));
        connection.rollback();
        connection.setAutoCommit(true);
        assertThrows(ArithmeticException.class, () -> jobs.transact(connection, next, inside -> {
            write(inside, 10);
            jobs.finish(inside, next);
            throw new ArithmeticException("the work failed");
        }));
        assertEquals(0, total());
        jobs.transact(connection, next, inside -> write(inside, 70));
        assertEquals("70 done", total() + " " + ask("state", 1));
    }

    @Test
    public void theExampleOfTheReadmeRuns() throws Exception {
        insert();
        run("CREATE SCHEMA s%s");
        run("ALTER TABLE %s SET SCHEMA s%s");
        run("SET search_path TO s%s");
        run("ALTER TABLE %s RENAME TO jobs");
        run("CREATE TABLE orders (total int)");
        run("INSERT INTO orders VALUES (0)");
        Examples.attempts(connection);
        Examples.attempts(connection);
        assertEquals(1, run("UPDATE orders SET total = 2 WHERE total = 1"));
        assertEquals(1, run("DELETE FROM jobs WHERE state = 'done'"));
    }

    @Test
    public void wrongCallsAreNamed() throws Exception {
        insert();
        Attempt attempt = take();
        List<Executable> wrong = List.of(() -> Attempts.of("jobs; DROP"), () -> Attempts.of(null), () -> Attempts.of("a.b.c"),
                () -> jobs.lease(Duration.ofMillis(999)), () -> jobs.lease(Duration.ofSeconds(1).plusNanos(1)), () -> jobs.lease(null),
                () -> jobs.maxAttempts(0), () -> jobs.authority("ä"), () -> jobs.take(connection, ""),
                () -> jobs.guard(connection, attempt), () -> jobs.finish(connection, attempt),
                () -> jobs.fail(connection, attempt, "why"));
        for (Executable call : wrong) {
            assertEquals(PalisadeException.Kind.INVALID, assertThrows(PalisadeException.class, call).kind());
        }
        connection.setAutoCommit(false);
        for (Executable call : List.<Executable>of(() -> jobs.take(connection, "w1"), () -> jobs.heartbeat(connection, attempt),
                () -> jobs.reap(connection), () -> jobs.transact(connection, attempt, inside -> null))) {
            String says = assertThrows(PalisadeException.class, call).getMessage();
            assertTrue(says.contains("setAutoCommit(true)"), says);
        }
        assertFalse(connection.getAutoCommit());
        connection.setAutoCommit(true);
        try (Connection other = DriverManager.getConnection("jdbc:sqlite::memory:")) {
            String says = assertThrows(PalisadeException.class, () -> jobs.take(other, "w1")).getMessage();
            assertTrue(says.contains("this is SQLite"), says);
        }
    }
}
