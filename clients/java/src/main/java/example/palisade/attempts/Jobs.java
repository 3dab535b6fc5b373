package example.palisade.attempts;

import example.palisade.PalisadeException;
import example.palisade.fence.RejectedException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

/** The statements on a job table, which docs/use/job-attempts.md lists, too. Only the database's clock decides. */
abstract class Jobs {
    final String table;

    Jobs(String table) {
        this.table = table;
    }

    interface Reading<R> {
        R of(ResultSet rows) throws SQLException;
    }

    static Jobs of(Connection connection, String table) throws SQLException {
        Objects.requireNonNull(connection, "a connection is needed, and not null");
        String product = connection.getMetaData().getDatabaseProductName();
        return switch (product) {
            case "PostgreSQL" -> new PostgresJobs(table);
            case "MySQL", "MariaDB" -> new MySqlJobs(table);
            default -> throw new PalisadeException(PalisadeException.Kind.INVALID, "invalid",
                    "attempts are for PostgreSQL, MySQL and MariaDB, and this is " + product);
        };
    }

    /** Fails jobs without an attempt left; returns their ids. */
    abstract List<Object> reap(Connection connection, int most) throws SQLException;

    abstract <R> Optional<R> take(Connection connection, String worker, long leaseMs, int most, Reading<R> reading)
            throws SQLException;

    /** False, here and below: the row is not that of this attempt, or is over. */
    abstract boolean keep(Connection connection, Attempt attempt, long leaseMs) throws SQLException;

    abstract boolean guard(Connection connection, Attempt attempt, long leaseMs) throws SQLException;

    abstract boolean finish(Connection connection, Attempt attempt) throws SQLException;

    abstract boolean fail(Connection connection, Attempt attempt, int most, String reason) throws SQLException;

    /** Says why the row is not that of the attempt, so that the transaction can only roll back. */
    abstract RejectedException refusal(Connection connection, Attempt attempt) throws SQLException;

    static <R> List<R> ask(Connection connection, String sql, Reading<R> reading, Object... arguments) throws SQLException {
        try (PreparedStatement statement = prepared(connection, sql, arguments); ResultSet rows = statement.executeQuery()) {
            List<R> found = new ArrayList<>();
            while (rows.next()) {
                found.add(reading.of(rows));
            }
            return found;
        }
    }

    static boolean any(Connection connection, String sql, Object... arguments) throws SQLException {
        return !ask(connection, sql, rows -> Boolean.TRUE, arguments).isEmpty();
    }

    static int update(Connection connection, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = prepared(connection, sql, arguments)) {
            return statement.executeUpdate();
        }
    }

    private static PreparedStatement prepared(Connection connection, String sql, Object... arguments) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int at = 0; at < arguments.length; at++) {
            statement.setObject(at + 1, arguments[at]);
        }
        return statement;
    }
}
