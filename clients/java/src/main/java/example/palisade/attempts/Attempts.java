package example.palisade.attempts;

import example.palisade.PalisadeException;
import example.palisade.fence.RejectedException;
import example.palisade.fence.Work;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import javax.sql.DataSource;

/**
 * Jobs in a table of your own, in PostgreSQL, MySQL or MariaDB. Each take of a job raises the row's {@code attempt}, which is a
 * fencing token: a worker that was paused and comes back late is refused. No lock server is needed, and nothing of Palisade in the
 * database.
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
            throw invalid("the lease is " + duration + ": whole milliseconds, 1 s to 24 h, are allowed");
        }
        return new Attempts(table, duration, maxAttempts, authority);
    }

    /** How often a job is taken before it has failed, 1 – 1,000,000. The same with another bound. */
    public Attempts maxAttempts(int most) {
        if (most < 1 || most > MAX_ATTEMPTS) {
            throw invalid(most + " attempts: 1 to " + MAX_ATTEMPTS + " are allowed");
        }
        return new Attempts(table, lease, most, authority);
    }

    /**
     * The authority of the tokens, for fences outside this database; by default the table's name. Two databases whose tables have
     * one name need two.
     */
    public Attempts authority(String name) {
        return new Attempts(table, lease, maxAttempts, checked("the authority", name));
    }

    private static String checked(String what, String text) {
        if (text == null || !text.matches("[ -~]{1,255}")) {
            throw invalid(what + " has 1 to 255 printable ASCII characters");
        }
        return text;
    }

    /**
     * Takes the next job that is ready, or whose lease has expired, and commits. Jobs without an attempt left have failed then. The
     * name of the worker is for people. Empty: there is no job.
     */
    public Optional<Attempt> take(Connection connection, String worker) throws SQLException {
        if (worker == null || worker.isEmpty() || worker.length() > 255) {
            throw invalid("the worker's name has 1 to 255 characters");
        }
        return alone(connection, "take", jobs -> {
            jobs.reap(connection, maxAttempts);
            return jobs.take(connection, worker, lease.toMillis(), maxAttempts, rows -> attempt(rows, worker));
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
        return alone(connection, "reap", jobs -> jobs.reap(connection, maxAttempts));
    }

    /**
     * Keeps the job for another lease, and commits. While a guarded transaction of the attempt is open, it waits, and is not
     * needed.
     *
     * @throws RejectedException if the job is another attempt's, or over: stop the work
     */
    public void heartbeat(Connection connection, Attempt attempt) throws SQLException {
        alone(connection, "heartbeat", jobs -> {
            admit(jobs.keep(connection, checked(attempt), lease.toMillis()), jobs, connection, attempt);
            return null;
        });
    }

    /**
     * Begins the transaction that contains all effects of the attempt. From here to its end nobody else takes the job. If this
     * program stops inside, PostgreSQL ends the transaction after one lease; MySQL after its {@code wait_timeout}, MariaDB after
     * {@code idle_write_transaction_timeout}: set them in the URL.
     *
     * @throws RejectedException if the job is another attempt's, or over: roll back
     */
    public void guard(Connection connection, Attempt attempt) throws SQLException {
        Jobs jobs = inside(connection, "guard");
        admit(jobs.guard(connection, checked(attempt), lease.toMillis()), jobs, connection, attempt);
    }

    /** Marks the job as done, in the transaction that has its effects. Throws as {@link #guard}. */
    public void finish(Connection connection, Attempt attempt) throws SQLException {
        Jobs jobs = inside(connection, "finish");
        admit(jobs.finish(connection, checked(attempt)), jobs, connection, attempt);
        attempt.ended = true;
    }

    /** Gives the job back to be tried again, or has it fail after its last attempt, in your transaction. */
    public void fail(Connection connection, Attempt attempt, String reason) throws SQLException {
        fail(connection, attempt, reason, true);
    }

    /** As above; {@code retry} false: it has failed for good. Throws as {@link #guard}. */
    public void fail(Connection connection, Attempt attempt, String reason, boolean retry) throws SQLException {
        Jobs jobs = inside(connection, "fail");
        admit(jobs.fail(connection, checked(attempt), retry ? maxAttempts : 0, reason), jobs, connection, attempt);
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

    private static Attempt checked(Attempt attempt) {
        return Objects.requireNonNull(attempt, "an attempt is needed: the one that take returned");
    }

    private static void admit(boolean own, Jobs jobs, Connection connection, Attempt attempt) throws SQLException {
        if (!own) {
            throw jobs.refusal(connection, attempt);
        }
    }

    private interface Steps<R> {
        R carryOut(Jobs jobs) throws SQLException;
    }

    /** A transaction of its own, which is committed before this returns. */
    private <R> R alone(Connection connection, String call, Steps<R> steps) throws SQLException {
        Jobs jobs = outside(connection, call);
        connection.setAutoCommit(false);
        Throwable failed = null;
        try {
            R result = steps.carryOut(jobs);
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

    private Jobs outside(Connection connection, String call) throws SQLException {
        Jobs jobs = Jobs.of(connection, table);
        if (!connection.getAutoCommit()) {
            throw invalid(call + " is a transaction of its own, and this connection is in one: the count must be committed before the"
                    + " job starts. Use a connection with setAutoCommit(true)");
        }
        return jobs;
    }

    private Jobs inside(Connection connection, String call) throws SQLException {
        Jobs jobs = Jobs.of(connection, table);
        if (connection.getAutoCommit()) {
            throw invalid(call + " belongs into the transaction with the job's effects: setAutoCommit(false), guard, write,"
                    + " finish, commit; or use transact");
        }
        return jobs;
    }

    private static PalisadeException invalid(String message) {
        return new PalisadeException(PalisadeException.Kind.INVALID, "invalid", message);
    }
}
