package example.palisade.fence;

import example.palisade.PalisadeException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Collections;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/**
 * MySQL and MariaDB: the fence on your own JDBC connection, in your own transaction.
 *
 * <pre>{@code
 * MySqlFence.transact(dataSource, "orders", lease, connection -> {  // claims first: no older holder can write
 *     …                                                         // read and write
 *     return null;
 * });                                                           // committed: everything together, or nothing
 * }</pre>
 *
 * <p>In a transaction of your own, call {@link #claim} before the first read, and roll back if it throws.
 *
 * <p>{@code palisade fence install mysql} creates the procedures that decide. After a {@link RejectedException} roll back:
 * MySQL does not end a transaction after an error. A claim comes before the first read of its transaction, which would
 * otherwise go on seeing an older state; else it throws a {@link PalisadeException} with the code
 * {@code read_before_claim}. All tables must be InnoDB. Deadlocks, lock time-outs and error 1615 (routines were replaced)
 * come through as {@code SQLException}: roll back and begin again.
 *
 * <p>MariaDB ends a transaction of a claim that stays idle for 10 seconds, or for longer than the rest of the lease. That
 * bound is the session's, and {@code transact} gives the connection its own one back. In a transaction of your own, {@code
 * CALL palisade_end(TRUE)} does that and commits, and with {@code FALSE} it rolls back.
 */
public final class MySqlFence {
    private static final Map<String, String> CODES = Map.of(
            "PF001", "stale", "PF002", "tokenless", "PF005", "wrong_authority", "PF006", "wrong_lock", "PF007", "jump",
            "PF008", "sequence_stale", "PF009", "sequence_reused", "PF010", "already_written");
    private static final Pattern JUMP = Pattern.compile("more than (\\d+) above the highest, which is (\\d+)$");
    private static final Pattern LAST_WORD = Pattern.compile("\\d+$");
    private static final Pattern NAME = Pattern.compile("belongs to another (?:authority|lock): (.*)$");

    private MySqlFence() {}

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
        return Transaction.run(source, holders, claimOf(holders), MySqlFence::end, work);
    }

    /** As for one resource, for several: all of them or none. */
    public static <R, E extends Exception> R transact(
            Connection connection, Map<String, ? extends Presenter> holders, Work<R, E> work) throws SQLException, E {
        return Transaction.run(connection, holders, claimOf(holders), MySqlFence::end, work);
    }

    /** Claims with the shortest lease of the transaction. */
    private static Transaction.Claim claimOf(Map<String, ? extends Presenter> holders) {
        return (connection, resource, holder) -> {
            Transaction.checked(holder);
            Long shortest = null;
            for (Presenter one : holders.values()) {
                Long left = one == null ? null : Transaction.leftMs(one);
                shortest = left == null || (shortest != null && shortest < left) ? shortest : left;
            }
            claim(connection, resource, holder, shortest);
        };
    }

    /** The procedure commits: between a commit and another statement this program could stop with the wrong bound. */
    private static void end(Connection connection, boolean commits) throws SQLException {
        try {
            carryOut(connection, commits ? "CALL palisade_end(TRUE)" : "CALL palisade_end(FALSE)");
        } finally {
            // The driver knows nothing of it. Without the procedure only this rolls back.
            if (!connection.getAutoCommit()) {
                connection.rollback();
            }
        }
    }

    /** Raises the fence: from the commit on, no older token is admitted at the resource. */
    public static void claim(Connection connection, String resource, Presenter holder) throws SQLException {
        Transaction.checked(holder);
        claim(connection, resource, holder, Transaction.leftMs(holder));
    }

    private static void claim(Connection connection, String resource, Presenter holder, Long leftMs) throws SQLException {
        if (leftMs != null) {
            // If this program stops inside the transaction, MariaDB ends it when the lease is over.
            call(connection, "SET @palisade_lease_left_ms = ?", leftMs);
        }
        Transaction.telling(holder, resource, "claim", () -> call(connection, "CALL palisade_claim(?, ?, ?, ?)",
                resource, holder.token(), holder.authority(), holder.name()));
    }

    /** For a read that feeds a write, in a transaction that began with another claim. */
    public static void check(Connection connection, String resource, Presenter holder) throws SQLException {
        Transaction.checked(holder);
        Transaction.telling(holder, resource, "read", () -> call(connection, "CALL palisade_check(?, ?, ?, ?)",
                resource, holder.token(), holder.authority(), holder.name()));
    }

    /**
     * Before a write with a number, which is safe to repeat. {@code sequence} is its number among those of the grant;
     * {@code digest}, any 64 bits, is a checksum of its content.
     */
    public static Written write(Connection connection, String resource, Presenter holder, long sequence, long digest)
            throws SQLException {
        Transaction.checked(holder);
        return Transaction.telling(holder, resource, "write", () -> call(connection, "CALL palisade_write(?, ?, ?, ?, ?, ?)",
                resource, holder.token(), sequence, digest, holder.authority(), holder.name()));
    }

    /** Records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out. */
    public static void record(Connection connection, String resource, long sequence, byte[] result)
            throws SQLException {
        call(connection, "CALL palisade_record(?, ?, ?)", resource, sequence, result);
    }

    /**
     * The rejection if the fence refused one of your own statements, as the trigger of a sticky table does, or null.
     * Of the name of another authority or lock it tells the first 80 bytes.
     */
    public static RejectedException rejection(SQLException error) {
        // An error of a pool, or of the driver itself, may have none.
        String code = CODES.get(String.valueOf(error.getSQLState()));
        return code == null ? null : RejectedException.of(code, detail(code, error.getMessage()), error.getMessage());
    }

    private static Written call(Connection connection, String statement, Object... arguments) throws SQLException {
        Transaction.check(connection);
        return carryOut(connection, statement, arguments);
    }

    private static Written carryOut(Connection connection, String statement, Object... arguments) throws SQLException {
        try (PreparedStatement prepared = connection.prepareStatement(statement)) {
            for (int at = 0; at < arguments.length; at++) {
                prepared.setObject(at + 1, arguments[at]);
            }
            return prepared.execute() ? written(prepared) : null;
        } catch (SQLException error) {
            RejectedException rejected = rejection(error);
            if (rejected != null) {
                rejected.initCause(error);
                throw rejected;
            }
            String message = error.getMessage();
            if ("PF012".equals(error.getSQLState())) {
                throw new PalisadeException(PalisadeException.Kind.INVALID, "read_before_claim", message);
            }
            String first = message.lines().findFirst().orElse("");
            // No such procedure.
            if (error.getErrorCode() == 1305 && message.contains("palisade_")) {
                throw new PalisadeException(PalisadeException.Kind.OPERATOR, "not_installed",
                        first + "; it was never installed, or by an older version: run `palisade fence install mysql`");
            }
            if (error.getErrorCode() == 1370 && message.contains("palisade_")) {
                throw new PalisadeException(PalisadeException.Kind.OPERATOR, "forbidden",
                        first + "; the user needs the right to call the fence: GRANT EXECUTE ON the database");
            }
            throw error;
        }
    }

    private static Written written(Statement statement) throws SQLException {
        try (ResultSet rows = statement.getResultSet()) {
            rows.next();
            return new Written(rows.getBoolean(1), rows.getBytes(2));
        }
    }

    /** As the messages of crates/palisade-fence/sql/mysql tell it. */
    private static String detail(String code, String message) {
        Matcher found = (code.equals("jump") ? JUMP : code.startsWith("wrong_") ? NAME : LAST_WORD).matcher(message);
        if (!found.find()) {
            return "";
        }
        return code.equals("jump") ? found.group(2) + " " + found.group(1) : found.group(found.groupCount());
    }
}
