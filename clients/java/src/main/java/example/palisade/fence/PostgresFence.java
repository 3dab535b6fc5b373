package example.palisade.fence;

import example.palisade.PalisadeException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Map;

/**
 * PostgreSQL: the fence on your own JDBC connection, in your own transaction.
 *
 * <pre>{@code
 * connection.setAutoCommit(false);
 * PostgresFence.claim(connection, "orders", lease);  // first: raises the fence
 * …                                                  // then read and write
 * connection.commit();                               // everything together, or nothing
 * }</pre>
 *
 * <p>{@code palisade fence install postgres} creates the functions that decide. After a {@link RejectedException} roll
 * back. Serialization failures and deadlocks come through as {@code SQLException}: begin the same transaction again.
 */
public final class PostgresFence {
    private static final Map<String, String> CODES = Map.of(
            "PF001", "stale", "PF002", "tokenless", "PF005", "wrong_authority", "PF006", "wrong_lock", "PF007", "jump",
            "PF008", "sequence_stale", "PF009", "sequence_reused", "PF010", "already_written");

    private PostgresFence() {}

    /** Raises the fence: from the commit on, no older token is admitted at the resource. */
    public static void claim(Connection connection, String resource, Presenter holder) throws SQLException {
        holder.check();
        call(connection, "SELECT palisade_claim(?, ?, ?, ?)",
                resource, holder.token(), holder.authority(), holder.name());
    }

    /** For a read that feeds a write, in a transaction that began with another claim. */
    public static void check(Connection connection, String resource, Presenter holder) throws SQLException {
        holder.check();
        call(connection, "SELECT palisade_check(?, ?, ?, ?)",
                resource, holder.token(), holder.authority(), holder.name());
    }

    /**
     * Before a write with a number, which is safe to repeat. {@code sequence} is its number among those of the grant;
     * {@code digest}, any 64 bits, is a checksum of its content.
     */
    public static Written write(Connection connection, String resource, Presenter holder, long sequence, long digest)
            throws SQLException {
        holder.check();
        return call(connection, "SELECT repeated, result FROM palisade_write(?, ?, ?, ?, ?, ?)",
                resource, holder.token(), sequence, digest, holder.authority(), holder.name());
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
        String code = CODES.get(error.getSQLState());
        return code == null ? null : RejectedException.of(code, detail(error));
    }

    private static Written call(Connection connection, String statement, Object... arguments) throws SQLException {
        if (connection.getAutoCommit()) {
            throw new IllegalStateException("a fence needs a transaction: setAutoCommit(false), claim, and write in the same");
        }
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
