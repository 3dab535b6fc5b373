package example.palisade.attempts;

import example.palisade.fence.PostgresFence;
import example.palisade.fence.RejectedException;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Optional;

/** PostgreSQL. {@code now()} would stand still in a transaction. */
final class PostgresJobs extends Jobs {
    private static final String OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp()))";
    private static final String OWN = " WHERE id = ? AND attempt = ?::bigint AND state = 'running'";
    private static final String LEASE = "clock_timestamp() + ?::bigint * interval '1 millisecond'";

    PostgresJobs(String table) {
        super(table);
    }

    @Override
    List<Object> reap(Connection connection, int most) throws SQLException {
        String sql = "UPDATE " + table + " SET state = 'failed', lease_until = NULL, reason = CASE state WHEN 'running' THEN 'attempt '"
                + " || attempt || ' was the last of ' || ?::bigint || ', and its lease expired (worker ' || coalesce(worker, '?')"
                + " || ')' ELSE coalesce(reason, 'no attempt is left') END WHERE id IN (SELECT id FROM " + table
                + " WHERE attempt >= ?::bigint AND " + OPEN + " FOR UPDATE SKIP LOCKED) RETURNING id";
        return ask(connection, sql, rows -> rows.getObject(1), most, most);
    }

    @Override
    <R> Optional<R> take(Connection connection, String worker, long leaseMs, int most, Reading<R> reading) throws SQLException {
        String sql = "UPDATE " + table + " SET state = 'running', attempt = attempt + 1, worker = ?::text, lease_until = " + LEASE
                + " WHERE id = (SELECT id FROM " + table + " WHERE attempt < ?::bigint AND " + OPEN
                + " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING *";
        return ask(connection, sql, reading, worker, leaseMs, most).stream().findFirst();
    }

    @Override
    boolean keep(Connection connection, Attempt attempt, long leaseMs) throws SQLException {
        return any(connection, "UPDATE " + table + " SET lease_until = " + LEASE + OWN + " RETURNING 1",
                leaseMs, attempt.jobId(), attempt.attempt());
    }

    /** If the program stops inside the transaction, the database ends it after one lease. Your own setting is kept if it is less. */
    @Override
    boolean guard(Connection connection, Attempt attempt, long leaseMs) throws SQLException {
        String idle = "current_setting('idle_in_transaction_session_timeout')";
        String sql = "SELECT set_config('idle_in_transaction_session_timeout', CASE WHEN " + idle
                + "::interval BETWEEN interval '1 millisecond' AND ?::bigint * interval '1 millisecond' THEN " + idle
                + " ELSE ?::bigint::text END, true) FROM " + table + OWN + " FOR UPDATE";
        return any(connection, sql, leaseMs, leaseMs, attempt.jobId(), attempt.attempt());
    }

    @Override
    boolean finish(Connection connection, Attempt attempt) throws SQLException {
        return any(connection, "UPDATE " + table + " SET state = 'done', lease_until = NULL" + OWN + " RETURNING 1",
                attempt.jobId(), attempt.attempt());
    }

    @Override
    boolean fail(Connection connection, Attempt attempt, int most, String reason) throws SQLException {
        return any(connection, "UPDATE " + table + " SET state = CASE WHEN attempt < ?::bigint THEN 'ready' ELSE 'failed' END,"
                + " lease_until = NULL, reason = ?::text" + OWN + " RETURNING 1", most, reason, attempt.jobId(), attempt.attempt());
    }

    /** The database itself raises the refusal: then the transaction can only roll back, also if the caller drops the error. */
    @Override
    RejectedException refusal(Connection connection, Attempt attempt) throws SQLException {
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
            return rejected;
        }
        throw new IllegalStateException("the refusal of " + attempt + " raised nothing");
    }
}
