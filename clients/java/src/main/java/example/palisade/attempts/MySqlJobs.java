package example.palisade.attempts;

import example.palisade.fence.MySqlFence;
import example.palisade.fence.RejectedException;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** MySQL 8.0 and MariaDB 10.6 or later, with InnoDB. */
final class MySqlJobs extends Jobs {
    private static final String OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < UTC_TIMESTAMP(3)))";
    private static final String OWN = " WHERE id = ? AND attempt = ? AND state = 'running'";
    private static final String LEASE = "UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND";

    private record Last(Object id, String reason) {}

    MySqlJobs(String table) {
        super(table);
    }

    @Override
    List<Object> reap(Connection connection, int most) throws SQLException {
        // A reap is the first in its transaction. At the default level, the lock of one row would keep others from its neighbours.
        update(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
        String sql = "SELECT id, state, attempt, worker, reason FROM " + table + " WHERE attempt >= ? AND " + OPEN
                + " FOR UPDATE SKIP LOCKED";
        List<Object> reaped = new ArrayList<>();
        for (Last last : ask(connection, sql, rows -> new Last(rows.getObject("id"), reason(
                rows.getString("state"), rows.getLong("attempt"), rows.getString("worker"), rows.getString("reason"), most)), most)) {
            update(connection, "UPDATE " + table + " SET state = 'failed', lease_until = NULL, reason = ? WHERE id = ?",
                    last.reason(), last.id());
            reaped.add(last.id());
        }
        return reaped;
    }

    private static String reason(String state, long attempt, String worker, String before, int most) {
        if (state.equals("running")) {
            return "attempt " + attempt + " was the last of " + most + ", and its lease expired (worker "
                    + (worker == null ? "?" : worker) + ")";
        }
        return before == null ? "no attempt is left" : before;
    }

    @Override
    <R> Optional<R> take(Connection connection, String worker, long leaseMs, int most, Reading<R> reading) throws SQLException {
        String next = "SELECT id FROM " + table + " WHERE attempt < ? AND " + OPEN + " ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
        Optional<Object> id = ask(connection, next, rows -> rows.getObject(1), most).stream().findFirst();
        if (id.isEmpty()) {
            return Optional.empty();
        }
        update(connection, "UPDATE " + table + " SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = " + LEASE
                + " WHERE id = ?", worker, leaseMs * 1_000, id.get());
        return ask(connection, "SELECT * FROM " + table + " WHERE id = ?", reading, id.get()).stream().findFirst();
    }

    /** The number of rows that an UPDATE changes tells nothing: two heartbeats in one millisecond change nothing. */
    @Override
    boolean keep(Connection connection, Attempt attempt, long leaseMs) throws SQLException {
        if (!guard(connection, attempt, leaseMs)) {
            return false;
        }
        update(connection, "UPDATE " + table + " SET lease_until = " + LEASE + OWN,
                leaseMs * 1_000, attempt.jobId(), attempt.attempt());
        return true;
    }

    @Override
    boolean guard(Connection connection, Attempt attempt, long leaseMs) throws SQLException {
        return any(connection, "SELECT 1 FROM " + table + OWN + " FOR UPDATE", attempt.jobId(), attempt.attempt());
    }

    @Override
    boolean finish(Connection connection, Attempt attempt) throws SQLException {
        return update(connection, "UPDATE " + table + " SET state = 'done', lease_until = NULL" + OWN,
                attempt.jobId(), attempt.attempt()) > 0;
    }

    @Override
    boolean fail(Connection connection, Attempt attempt, int most, String reason) throws SQLException {
        return update(connection, "UPDATE " + table + " SET state = IF(attempt < ?, 'ready', 'failed'), lease_until = NULL,"
                + " reason = ?" + OWN, most, reason, attempt.jobId(), attempt.attempt()) > 0;
    }

    /** An error does not end a transaction here, so it is rolled back before the caller can go on with it. */
    @Override
    RejectedException refusal(Connection connection, Attempt attempt) throws SQLException {
        Optional<Long> newest = ask(connection, "SELECT attempt FROM " + table + " WHERE id = ? FOR UPDATE",
                rows -> rows.getLong(1), attempt.jobId()).stream().findFirst();
        connection.rollback();
        boolean stale = newest.isPresent() && newest.get() > attempt.attempt();
        String said = stale ? "token " + attempt.attempt() + " is stale: " + attempt.attempt() + " < " + newest.get()
                : attempt + " has ended: roll back, and write nothing more";
        return MySqlFence.rejection(new SQLException(said, stale ? "PF001" : "PF010"));
    }
}
