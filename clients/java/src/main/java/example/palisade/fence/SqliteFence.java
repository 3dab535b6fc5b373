package example.palisade.fence;

import example.palisade.PalisadeException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Collections;
import java.util.Map;
import javax.sql.DataSource;

/**
 * SQLite: the fence on your own JDBC connection, in your own transaction.
 *
 * <pre>{@code
 * SqliteFence.transact(dataSource, "orders", lease, connection -> {  // claims first: no older holder can write
 *     …                                                         // read and write
 *     return null;
 * });                                                           // committed: everything together, or nothing
 * }</pre>
 *
 * <p>In a transaction of your own, call {@link #claim} before the first read, and roll back if it throws.
 *
 * <p>{@code palisade fence install sqlite sqlite:///FILE} creates the table. SQLite has no stored procedures, so the statements of
 * the fence run here (docs/reference/fence-formats.md). A claim takes the file's one write lock. If another connection keeps it
 * for longer than the driver waits, {@code SQLITE_BUSY} comes through as {@code SQLException}: roll back and begin again. Keep
 * {@code PRAGMA synchronous = FULL}.
 *
 * <p>The triggers of fenced tables call a function that each connection registers; this class does not, so they refuse its
 * writes.
 */
public final class SqliteFence {
    private static final int MAX_RESULT_BYTES = 65_536;

    // The file itself is named, because a temporary table or an attached file of that name would have another mark.

    /** Takes the write lock, whether the row is there or not; only then is it read. */
    private static final String TAKE = "UPDATE main.palisade_fence SET updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
            + " WHERE resource = ? RETURNING authority, lock, token, written, sequence, digest, result";
    private static final String CREATE = "INSERT INTO main.palisade_fence (resource) VALUES (?)";
    private static final String STORE = "UPDATE main.palisade_fence SET authority = ?, lock = ?, token = ?, written = ?,"
            + " sequence = ?, digest = ?, result = ? WHERE resource = ?";
    private static final String RECORD = "UPDATE main.palisade_fence SET result = ?,"
            + " updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE resource = ? AND token = ? AND sequence = ?";

    private SqliteFence() {}

    /**
     * Runs a transaction of its own: claims before anything is read, carries out {@code work}, and commits. It rolls back if one
     * of them fails.
     *
     * @throws StaleException if a newer holder has claimed: nothing was written
     */
    public static <R, E extends Exception> R transact(
            DataSource source, String resource, Presenter holder, Work<R, E> work) throws SQLException, E {
        return transact(source, Collections.singletonMap(resource, holder), work);
    }

    /** As with a {@link DataSource}, on a connection in auto-commit mode, and leaves it in that mode. */
    public static <R, E extends Exception> R transact(
            Connection connection, String resource, Presenter holder, Work<R, E> work) throws SQLException, E {
        return transact(connection, Collections.singletonMap(resource, holder), work);
    }

    /** As for one resource, for several: all of them or none. */
    public static <R, E extends Exception> R transact(
            DataSource source, Map<String, ? extends Presenter> holders, Work<R, E> work) throws SQLException, E {
        return Transaction.run(source, holders, SqliteFence::claim, Transaction::end, work);
    }

    /** As for one resource, for several: all of them or none. */
    public static <R, E extends Exception> R transact(
            Connection connection, Map<String, ? extends Presenter> holders, Work<R, E> work) throws SQLException, E {
        return Transaction.run(connection, holders, SqliteFence::claim, Transaction::end, work);
    }

    /** Raises the fence: from the commit on, no older token is admitted at the resource. */
    public static void claim(Connection connection, String resource, Presenter holder) throws SQLException {
        judge(connection, resource, holder, "claim", Mark.Operation.CLAIM);
    }

    /** For a read that feeds a write, in a transaction that began with another claim. */
    public static void check(Connection connection, String resource, Presenter holder) throws SQLException {
        judge(connection, resource, holder, "read", Mark.Operation.CLAIM);
    }

    /**
     * Before a write with a number, which is safe to repeat. {@code sequence} is its number among those of the grant;
     * {@code digest}, any 64 bits, is a checksum of its content.
     */
    public static Written write(Connection connection, String resource, Presenter holder, long sequence, long digest)
            throws SQLException {
        if (sequence < 0 || sequence > Presenter.MAX_TOKEN) {
            throw new IllegalArgumentException(
                    "the sequence number " + sequence + " is out of range: 0 to " + Presenter.MAX_TOKEN + " are allowed");
        }
        Mark.Admitted admitted = judge(connection, resource, holder, "write", new Mark.Operation(true, sequence, digest));
        return new Written(admitted.repeat(), admitted.repeat() ? admitted.next().result() : null);
    }

    /** Records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out. */
    public static void record(Connection connection, String resource, Presenter holder, long sequence, byte[] result)
            throws SQLException {
        Transaction.check(connection);
        if (result.length > MAX_RESULT_BYTES) {
            throw new IllegalArgumentException(
                    "the result has " + result.length + " bytes; 0 to " + MAX_RESULT_BYTES + " are allowed");
        }
        if (update(connection, RECORD, result, resource, holder.token(), sequence) != 1) {
            throw new IllegalArgumentException(
                    resource + ": the last write there is not number " + sequence + " of token " + holder.token());
        }
    }

    private static Mark.Admitted judge(
            Connection connection, String resource, Presenter holder, String called, Mark.Operation operation) throws SQLException {
        Transaction.checked(holder);
        Transaction.check(connection);
        if (resource == null || !resource.matches("[ -~]{1,255}")) {
            throw new IllegalArgumentException("the name of a resource is 1 to 255 printable ASCII characters");
        }
        Mark mark = take(connection, resource);
        Mark.Admitted admitted =
                Transaction.telling(holder, resource, called, () -> mark.decide(holder, operation, Mark.Rule.CLAIM));
        Mark next = admitted.next();
        if (!next.equals(mark)) {
            update(connection, STORE, next.authority(), next.lock(), next.token(), next.written() ? 1 : 0, next.sequence(),
                    next.digest(), next.result(), resource);
        }
        return admitted;
    }

    private static Mark take(Connection connection, String resource) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(TAKE)) {
            statement.setString(1, resource);
            try (ResultSet rows = statement.executeQuery()) {
                if (rows.next()) {
                    return new Mark(
                            rows.getString(1), rows.getString(2), number(rows, 3), rows.getBoolean(4), number(rows, 5),
                            number(rows, 6), rows.getBytes(7));
                }
            }
        } catch (SQLException error) {
            if (String.valueOf(error.getMessage()).contains("no such table: main.palisade_fence")) {
                throw new PalisadeException(PalisadeException.Kind.OPERATOR, "not_installed",
                        "the file has no table palisade_fence; run `palisade fence install sqlite sqlite:///FILE`");
            }
            throw error;
        }
        update(connection, CREATE, resource);
        return Mark.NONE;
    }

    private static Long number(ResultSet rows, int column) throws SQLException {
        long number = rows.getLong(column);
        return rows.wasNull() ? null : number;
    }

    private static int update(Connection connection, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < arguments.length; at++) {
                statement.setObject(at + 1, arguments[at]);
            }
            return statement.executeUpdate();
        }
    }
}
