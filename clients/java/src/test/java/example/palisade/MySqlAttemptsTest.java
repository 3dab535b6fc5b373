package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.attempts.Attempt;
import example.palisade.attempts.Attempts;
import example.palisade.fence.RejectedException;
import example.palisade.fence.StaleException;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Attempts at jobs in MariaDB. {@link AttemptsTest} has the stories. */
public final class MySqlAttemptsTest {
    private final String table = "jobs_" + UUID.randomUUID().toString().replace("-", "");
    private final Attempts jobs = Attempts.of(table).maxAttempts(2);
    private Connection connection;

    @BeforeEach
    public void begin() throws Exception {
        connection = Servers.mariadb();
        run("CREATE TABLE %s (id BIGINT AUTO_INCREMENT PRIMARY KEY, payload JSON NOT NULL, state VARCHAR(8) NOT NULL DEFAULT 'ready',"
                + " attempt BIGINT NOT NULL DEFAULT 0, lease_until DATETIME(3) NULL, worker VARCHAR(255) NULL, reason TEXT NULL,"
                + " KEY jobs_open (state, id)) ENGINE=InnoDB");
        run("CREATE TABLE %s_total (total INT) ENGINE=InnoDB");
        run("INSERT INTO %s_total VALUES (0)");
        run("INSERT INTO %s (payload) VALUES ('{}')");
    }

    @AfterEach
    public void end() throws SQLException {
        connection.close();
    }

    private int run(String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return statement.executeUpdate(sql.replace("%s", table));
        }
    }

    private void expire() throws SQLException {
        run("UPDATE %s SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE state = 'running'");
    }

    private Attempt take() throws SQLException {
        return jobs.take(connection, "w1").orElseThrow();
    }

    private Void write(Connection inside, int total) throws SQLException {
        return Worker.write(inside, table, total);
    }

    private int total() throws SQLException {
        return Worker.total(connection, table);
    }

    @Test
    public void aLateAttemptLosesNothing() throws Exception {
        Attempt late = take();
        expire();
        jobs.transact(connection, take(), inside -> write(inside, 70));
        StaleException stale = assertThrows(
                StaleException.class, () -> jobs.transact(connection, late, inside -> write(inside, 10)));
        assertEquals("2", stale.detail());
        assertTrue(stale.getMessage().contains("token 1 is stale: 1 < 2"), stale.getMessage());
        assertEquals(70, total());
        // The control: the completion with its predicate is too late.
        write(connection, 10);
        assertEquals(0, run("UPDATE %s SET state = 'done' WHERE id = 1 AND attempt = 1"));
        assertEquals(10, total());
    }

    @Test
    public void aRefusalThatIsDroppedWritesNothing() throws Exception {
        Attempt late = take();
        expire();
        Attempt next = take();
        assertThrows(RejectedException.class, () -> jobs.transact(connection, next, inside -> {
            write(inside, 10);
            assertThrows(StaleException.class, () -> jobs.guard(inside, late));
            // The transaction is over: what the attempt wrote is gone, and so is its guard.
            jobs.fail(inside, late, "late");
            return null;
        }));
        assertEquals(0, total());
        jobs.transact(connection, next, inside -> write(inside, 70));
        assertEquals(70, total());
    }

    @Test
    public void aJobIsKeptGivenBackAndFailed() throws Exception {
        Attempt first = take();
        assertEquals("running", first.row().get("state"));
        expire();
        jobs.heartbeat(connection, first);
        jobs.heartbeat(connection, first);
        assertTrue(jobs.take(connection, "w2").isEmpty());
        jobs.transact(connection, first, inside -> {
            jobs.fail(inside, first, "the first try");
            return null;
        });
        assertEquals("already_written", assertThrows(RejectedException.class, () -> jobs.heartbeat(connection, first)).code());
        take();
        expire();
        assertEquals(List.of(1L), jobs.reap(connection));
        assertEquals(1, run("UPDATE %s SET state = 'ready' WHERE state = 'failed'"
                + " AND reason = 'attempt 2 was the last of 2, and its lease expired (worker w1)'"));
        assertTrue(jobs.take(connection, "w1").isEmpty());
        assertEquals(Connection.TRANSACTION_REPEATABLE_READ, connection.getTransactionIsolation());
        assertTrue(connection.getAutoCommit());
    }
}
