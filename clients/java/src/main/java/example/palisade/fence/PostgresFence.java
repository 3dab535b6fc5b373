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
 * PostgreSQL: the fence on your own JDBC connection, in your own transaction.
 *
 * <pre>{@code
 * PostgresFence.transact(dataSource, "orders", lease, connection -> {  // claims first: no older holder can write
 *     …                                                         // read and write
 *     return null;
 * });                                                           // committed: everything together, or nothing
 * }</pre>
 *
 * <p>In a transaction of your own, call {@link #claim} before the first read, and roll back if it throws.
 *
 * <p>{@code palisade fence install postgres} creates the functions that decide. After a {@link RejectedException} roll
 * back. Serialization failures and deadlocks come through as {@code SQLException}: begin the same transaction again.
 */
public final class PostgresFence {
    private static final Map<String, String> CODES = Map.of(
            "PF001", "stale", "PF002", "tokenless", "PF005", "wrong_authority", "PF006", "wrong_lock", "PF007", "jump",
            "PF008", "sequence_stale", "PF009", "sequence_reused", "PF010", "already_written");

    /** If this program stops inside the transaction, the database ends it when the lease is over. Your own setting is first. */
    private static final String CLAIM = "WITH bound AS (SELECT set_config('palisade.lease_left_ms',"
            + " coalesce(nullif(current_setting('palisade.lease_left_ms', true), ''), ?::text, ''), true))"
            + " SELECT palisade_claim(?, ?, ?, ?) FROM bound";

    private PostgresFence() {}

    /**
     * Runs a transaction of its own: claims before anything is read, carries out {@code work}, and commits. It rolls back if one
     * of them fails. If the connection breaks during the commit, the transaction may have been committed.
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
        return Transaction.run(source, holders, PostgresFence::claim, Transaction::end, work);
    }

    /** As for one resource, for several: all of them or none. */
    public static <R, E extends Exception> R transact(
            Connection connection, Map<String, ? extends Presenter> holders, Work<R, E> work) throws SQLException, E {
        return Transaction.run(connection, holders, PostgresFence::claim, Transaction::end, work);
    }

    /** Raises the fence: from the commit on, no older token is admitted at the resource. */
    public static void claim(Connection connection, String resource, Presenter holder) throws SQLException {
        Transaction.checked(holder);
        Long left = Transaction.leftMs(holder);
        Transaction.telling(holder, resource, "claim", () -> call(connection, CLAIM,
                left == null ? null : left.toString(), resource, holder.token(), holder.authority(), holder.name()));
    }

    /** For a read that feeds a write, in a transaction that began with another claim. */
    public static void check(Connection connection, String resource, Presenter holder) throws SQLException {
        Transaction.checked(holder);
        Transaction.telling(holder, resource, "read", () -> call(connection, "SELECT palisade_check(?, ?, ?, ?)",
                resource, holder.token(), holder.authority(), holder.name()));
    }

    /**
     * Before a write with a number, which is safe to repeat. {@code sequence} is its number among those of the grant;
     * {@code digest}, any 64 bits, is a checksum of its content.
     */
    public static Written write(Connection connection, String resource, Presenter holder, long sequence, long digest)
            throws SQLException {
        Transaction.checked(holder);
        return Transaction.telling(holder, resource, "write", () -> call(connection,
                "SELECT repeated, result FROM palisade_write(?, ?, ?, ?, ?, ?)",
                resource, holder.token(), sequence, digest, holder.authority(), holder.name()));
    }

    /** Records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out. */
    public static void record(Connection connection, String resource, Presenter holder, long sequence, byte[] result)
            throws SQLException {
        call(connection, "SELECT palisade_record(?, ?, ?, ?)", resource, sequence, result, holder.token());
    }

    /**
     * The rejection if the fence refused one of your own statements, as the trigger of a sticky table does, or null.
     */
    public static RejectedException rejection(SQLException error) {
        // An error of a pool, or of the driver itself, may have none.
        String code = CODES.get(String.valueOf(error.getSQLState()));
        return code == null ? null : RejectedException.of(code, detail(error), error.getMessage());
    }

    private static Written call(Connection connection, String statement, Object... arguments) throws SQLException {
        Transaction.check(connection);
        try (PreparedStatement prepared = connection.prepareStatement(statement)) {
            for (int at = 0; at < arguments.length; at++) {
                prepared.setObject(at + 1, arguments[at]);
            }
            try (ResultSet rows = prepared.executeQuery()) {
                rows.next();
                boolean hasResult = rows.getMetaData().getColumnCount() == 2;
                return hasResult ? new Written(rows.getBoolean(1), rows.getBytes(2)) : null;
            }
        } catch (SQLException error) {
            RejectedException rejected = rejection(error);
            if (rejected != null) {
                rejected.initCause(error);
                throw rejected;
            }
            if ("PF012".equals(error.getSQLState())) {
                throw new PalisadeException(PalisadeException.Kind.INVALID, "read_before_claim", error.getMessage());
            }
            boolean missing = "42P01".equals(error.getSQLState()) || "42883".equals(error.getSQLState());
            if (missing && error.getMessage().contains("palisade_")) {
                throw new PalisadeException(PalisadeException.Kind.OPERATOR, "not_installed",
                        error.getMessage().lines().findFirst().orElse("") + "; run `palisade fence install postgres`");
            }
            throw error;
        }
    }

    /** Of pgjdbc's exception, without depending on pgjdbc. Its message has the detail too, translated. */
    private static String detail(SQLException error) {
        try {
            Object told = error.getClass().getMethod("getServerErrorMessage").invoke(error);
            Object detail = told == null ? null : told.getClass().getMethod("getDetail").invoke(told);
            return detail == null ? "" : detail.toString();
        } catch (ReflectiveOperationException anotherDriver) {
            return "";
        }
    }
}
