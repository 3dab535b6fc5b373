package example.palisade.attempts;

import example.palisade.PalisadeException;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.RejectedException;
import example.palisade.fence.Work;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import javax.sql.DataSource;

/**
 * Jobs in a PostgreSQL table of your own. Each take of a job raises the row's {@code attempt}, which is a fencing token: a worker
 * that was paused and comes back late is refused. No lock server is needed, and nothing of Palisade in the database.
 *
 * <pre>{@code
 * Attempts jobs = Attempts.of("jobs").lease(Duration.ofSeconds(30)).maxAttempts(5);
 * Optional<Attempt> taken = jobs.take(connection, "worker-1");
 * if (taken.isPresent()) {
 *     jobs.transact(connection, taken.get(), inside -> pay(inside, taken.get().row())); // all effects, and 'done'
 * }
 * }</pre>
 *
 * <p>The table has the columns id, state, attempt, lease_until, worker and reason: docs/use/job-attempts.md has the statements. An
 * expired lease alone refuses nothing: as long as nobody has taken the job, its attempt may still finish.
 *
 * <p>{@code take}, {@code heartbeat} and {@code reap} are transactions of their own. {@code guard}, {@code finish} and {@code fail}
 * belong into the transaction with the job's effects.
 */
public final class Attempts {
    private static final int MAX_ATTEMPTS = 1_000_000;
    private static final String OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp()))";
    private static final String OWN = " WHERE id = ? AND attempt = ?::bigint AND state = 'running'";
    private static final String LEASE = "clock_timestamp() + ?::bigint * interval '1 millisecond'";

    private final String table;
    private final Duration lease;
    private final int maxAttempts;
    private final String authority;

    private Attempts(String table, Duration lease, int maxAttempts, String authority) {
        this.table = table;
        this.lease = lease;
        this.maxAttempts = maxAttempts;
        this.authority = authority;
    }

    /** The jobs of a table or view, with a lease of 30 s and at most 5 attempts at each. */
    public static Attempts of(String table) {
        String name = "[A-Za-z_][A-Za-z0-9_]*";
        if (table == null || !table.matches("(" + name + "\\.)?" + name)) {
            throw invalid("\"" + table + "\" is not the name of a table: letters, digits and _, with a schema if needed");
        }
        return new Attempts(table, Duration.ofSeconds(30), 5, checked("the table's name", table));
    }

    /** How long an attempt keeps a job without a heartbeat, 1 s – 24 h. The same with another lease. */
    public Attempts lease(Duration duration) {
        boolean fits = duration != null && duration.compareTo(Duration.ofSeconds(1)) >= 0
                && duration.compareTo(Duration.ofDays(1)) <= 0 && duration.equals(Duration.ofMillis(duration.toMillis()));
        if (!fits) {
            throw invalid("the lease is " + duration + ": whole milliseconds, 1 s ..= 24 h, are allowed");
        }
        return new Attempts(table, duration, maxAttempts, authority);
    }

    /** How often a job is taken before it has failed, 1 – 1,000,000. The same with another bound. */
    public Attempts maxAttempts(int most) {
        if (most < 1 || most > MAX_ATTEMPTS) {
            throw invalid(most + " attempts: 1 ..= " + MAX_ATTEMPTS + " are allowed");
        }
        return new Attempts(table, lease, most, authority);
    }

    /**
     * Whose tokens the attempts are, for fences outside this database; by default the table's name. Two databases whose tables have
     * one name need two.
     */
    public Attempts authority(String name) {
        return new Attempts(table, lease, maxAttempts, checked("the authority", name));
    }

    private static String checked(String what, String text) {
        if (text == null || !text.matches("[ -~]{1,255}")) {
            throw invalid(what + " has 1 ..= 255 printable ASCII characters");
        }
        return text;
    }

    /**
     * Takes the next job that is ready, or whose lease has expired, and commits. Jobs without an attempt left have failed then. The
     * name of the worker is for people. Empty: there is no job.
     */
    public Optional<Attempt> take(Connection connection, String worker) throws SQLException {
        if (worker == null || worker.isEmpty() || worker.length() > 255) {
            throw invalid("the worker's name has 1 ..= 255 characters");
        }
        return alone(connection, "take", () -> {
            ask(connection, reaping(), rows -> Boolean.TRUE, maxAttempts, maxAttempts);
            String sql = "UPDATE " + table + " SET state = 'running', attempt = attempt + 1, worker = ?::text, lease_until = "
                    + LEASE + " WHERE id = (SELECT id FROM " + table + " WHERE attempt < ?::bigint AND " + OPEN
                    + " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING *";
            return ask(connection, sql, rows -> attempt(rows, worker), worker, lease.toMillis(), maxAttempts)
                    .stream().findFirst();
        });
    }

    private Attempt attempt(ResultSet rows, String worker) throws SQLException {
        ResultSetMetaData columns = rows.getMetaData();
        Map<String, Object> row = new LinkedHashMap<>();
        for (int at = 1; at <= columns.getColumnCount(); at++) {
            row.put(columns.getColumnLabel(at), rows.getObject(at));
        }
        Object id = rows.getObject("id");
        if (id == null || !id.toString().matches("[0-9A-Za-z_-]{1,200}")) {
            throw invalid("the id of a job is a number or a UUID, and not \"" + id + "\"");
        }
        return new Attempt(id, rows.getLong("attempt"), row, worker, authority);
    }

    /** Marks jobs without an attempt left as failed, and commits; returns their ids. A take does so, too. */
    public List<Object> reap(Connection connection) throws SQLException {
        return alone(connection, "reap", () -> ask(connection, reaping(), rows -> rows.getObject(1), maxAttempts, maxAttempts));
    }

    /**
     * Keeps the job for another lease, and commits. While a guarded transaction of the attempt is open, it waits, and is not
     * needed.
     *
     * @throws RejectedException if the job is another attempt's, or over: stop the work
     */
    public void heartbeat(Connection connection, Attempt attempt) throws SQLException {
        alone(connection, "heartbeat", () -> {
            own(connection, attempt, "UPDATE " + table + " SET lease_until = " + LEASE + OWN + " RETURNING 1", lease.toMillis());
            return null;
        });
    }

    /**
     * Begins the transaction that contains all effects of the attempt. From here to its end nobody else takes the job. If this
     * program stops inside, the database ends the transaction after one lease.
     *
     * @throws RejectedException if the job is another attempt's, or over: roll back
     */
    public void guard(Connection connection, Attempt attempt) throws SQLException {
        inside(connection, "guard");
        String idle = "current_setting('idle_in_transaction_session_timeout')";
        String bound = "?::bigint * interval '1 millisecond'";
        own(connection, attempt, "SELECT set_config('idle_in_transaction_session_timeout', CASE WHEN " + idle
                + "::interval BETWEEN interval '1 millisecond' AND " + bound + " THEN " + idle
                + " ELSE ?::bigint::text END, true) FROM " + table + OWN + " FOR UPDATE", lease.toMillis(), lease.toMillis());
    }

    /** Marks the job as done, in the transaction that has its effects. Throws as {@link #guard}. */
    public void finish(Connection connection, Attempt attempt) throws SQLException {
        inside(connection, "finish");
        own(connection, attempt, "UPDATE " + table + " SET state = 'done', lease_until = NULL" + OWN + " RETURNING 1");
        attempt.ended = true;
    }

    /** Gives the job back to be tried again, or has it fail after its last attempt, in your transaction. */
    public void fail(Connection connection, Attempt attempt, String reason) throws SQLException {
        fail(connection, attempt, reason, true);
    }

    /** As above; {@code retry} false: it has failed for good. Throws as {@link #guard}. */
    public void fail(Connection connection, Attempt attempt, String reason, boolean retry) throws SQLException {
        inside(connection, "fail");
        own(connection, attempt, "UPDATE " + table + " SET state = CASE WHEN attempt < ?::bigint THEN 'ready' ELSE 'failed' END,"
                + " lease_until = NULL, reason = ?::text" + OWN + " RETURNING 1", retry ? maxAttempts : 0, reason);
        attempt.ended = true;
    }

    /**
     * Runs the transaction with all effects of the attempt: guards, carries out {@code work}, finishes unless the work did or
     * failed the attempt, and commits. It rolls back if one of them fails. If the connection breaks during the commit, effects
     * and 'done' are both there or both not, and the next take finds out.
     *
     * @throws RejectedException if the job is another attempt's, or over: nothing was written
     */
    public <R, E extends Exception> R transact(Connection connection, Attempt attempt, Work<R, E> work) throws SQLException, E {
        Objects.requireNonNull(work, "transact needs the work that it carries out");
        outside(connection, "transact");
        connection.setAutoCommit(false);
        Throwable failed = null;
        attempt.ended = false;
        try {
            guard(connection, attempt);
            R result = work.run(connection);
            if (connection.getAutoCommit()) {
                throw new IllegalStateException("the work ended its transaction: leave commit and setAutoCommit to transact");
            }
            if (!attempt.ended) {
                finish(connection, attempt);
            }
            connection.commit();
            return result;
        } catch (Throwable error) {
            failed = error;
            undo(connection, error);
            throw error;
        } finally {
            attempt.ended = false;
            restore(connection, failed);
        }
    }

    /** As above, on a connection of that source. */
    public <R, E extends Exception> R transact(DataSource source, Attempt attempt, Work<R, E> work) throws SQLException, E {
        try (Connection connection = source.getConnection()) {
            connection.setAutoCommit(true);
            return transact(connection, attempt, work);
        }
    }

    /** One statement. The database's clock decides, and not {@code now()}, which stands still in a transaction. */
    private String reaping() {
        return "UPDATE " + table + " SET state = 'failed', lease_until = NULL, reason = CASE state WHEN 'running' THEN 'attempt '"
                + " || attempt || ' was the last of ' || ?::bigint || ', and its lease expired (worker ' || coalesce(worker, '?')"
                + " || ')' ELSE coalesce(reason, 'no attempt is left') END WHERE id IN (SELECT id FROM " + table
                + " WHERE attempt >= ?::bigint AND " + OPEN + " FOR UPDATE SKIP LOCKED) RETURNING id";
    }

    private interface Steps<R> {
        R carryOut() throws SQLException;
    }

    private interface Reading<R> {
        R of(ResultSet rows) throws SQLException;
    }

    /** A transaction of its own, which is committed before this returns. */
    private static <R> R alone(Connection connection, String call, Steps<R> steps) throws SQLException {
        outside(connection, call);
        connection.setAutoCommit(false);
        Throwable failed = null;
        try {
            R result = steps.carryOut();
            connection.commit();
            return result;
        } catch (Throwable error) {
            failed = error;
            undo(connection, error);
            throw error;
        } finally {
            restore(connection, failed);
        }
    }

    private static void undo(Connection connection, Throwable error) {
        try {
            connection.rollback();
        } catch (SQLException broken) {
            error.addSuppressed(broken);
        }
    }

    private static void restore(Connection connection, Throwable failed) {
        try {
            connection.setAutoCommit(true);
        } catch (SQLException broken) {
            // The first failure says more; after a commit the caller learns of it with the next statement.
            if (failed != null) {
                failed.addSuppressed(broken);
            }
        }
    }

    private static void outside(Connection connection, String call) throws SQLException {
        checkDatabase(connection);
        if (!connection.getAutoCommit()) {
            throw invalid(call + " is a transaction of its own, and this connection is in one: the count must be committed before the"
                    + " job starts. Use a connection with setAutoCommit(true)");
        }
    }

    private static void inside(Connection connection, String call) throws SQLException {
        checkDatabase(connection);
        if (connection.getAutoCommit()) {
            throw invalid(call + " belongs into the transaction with the job's effects: setAutoCommit(false), guard, write,"
                    + " finish, commit; or use transact");
        }
    }

    private static void checkDatabase(Connection connection) throws SQLException {
        Objects.requireNonNull(connection, "a connection is needed, and not null");
        String product = connection.getMetaData().getDatabaseProductName();
        if (!product.equals("PostgreSQL")) {
            throw invalid("attempts in Java are for PostgreSQL, and this is " + product
                    + ": docs/use/job-attempts.md has the statements for other databases");
        }
    }

    private static <R> List<R> ask(Connection connection, String sql, Reading<R> reading, Object... arguments)
            throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < arguments.length; at++) {
                statement.setObject(at + 1, arguments[at]);
            }
            List<R> found = new ArrayList<>();
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) {
                    found.add(reading.of(rows));
                }
            }
            return found;
        }
    }

    /** Carries a statement out on the row of this attempt, whose id and number are its last parameters. */
    private void own(Connection connection, Attempt attempt, String sql, Object... arguments) throws SQLException {
        Objects.requireNonNull(attempt, "an attempt is needed: the one that take returned");
        List<Object> all = new ArrayList<>();
        for (Object argument : arguments) {
            all.add(argument);
        }
        all.add(attempt.jobId());
        all.add(attempt.attempt());
        if (ask(connection, sql, rows -> Boolean.TRUE, all.toArray()).isEmpty()) {
            refuse(connection, attempt);
        }
    }

    /** The database itself raises the refusal: then the transaction can only roll back, also if the caller drops the error. */
    private void refuse(Connection connection, Attempt attempt) throws SQLException {
        String refusal = """
                DO $palisade$ DECLARE newest bigint; BEGIN
                  SELECT j.attempt INTO newest FROM %1$s j WHERE j.id = '%2$s';
                  IF newest > %3$d THEN
                    RAISE EXCEPTION USING ERRCODE = 'PF001', DETAIL = newest::text, CONSTRAINT = 'job:%2$s',
                      MESSAGE = 'token %3$d is stale: %3$d < ' || newest || ' at resource job:%2$s',
                      HINT = 'another attempt has this job: give up, roll back, and write nothing more';
                  END IF;
                  RAISE EXCEPTION USING ERRCODE = 'PF010', DETAIL = '', CONSTRAINT = 'job:%2$s',
                    MESSAGE = 'attempt %3$d has ended at resource job:%2$s',
                    HINT = 'it was finished, has failed, or its row is gone: roll back, and write nothing more';
                END $palisade$""".formatted(table, attempt.jobId(), attempt.attempt());
        try (Statement statement = connection.createStatement()) {
            statement.execute(refusal);
        } catch (SQLException error) {
            RejectedException rejected = PostgresFence.rejection(error);
            if (rejected == null) {
                throw error;
            }
            rejected.initCause(error);
            throw rejected;
        }
        throw new IllegalStateException("the refusal of " + attempt + " raised nothing");
    }

    private static PalisadeException invalid(String message) {
        return new PalisadeException(PalisadeException.Kind.INVALID, "invalid", message);
    }
}
