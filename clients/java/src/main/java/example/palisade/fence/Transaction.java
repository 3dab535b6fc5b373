package example.palisade.fence;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import javax.sql.DataSource;

/** A transaction that claims before anything else. */
final class Transaction {
    private Transaction() {}

    /** Checks that there is a holder, and that it still holds its lease. */
    static Presenter checked(Presenter holder) {
        Objects.requireNonNull(holder, "a fence needs a holder: the lease, or Presenter.of(token)").check();
        return holder;
    }

    /** Refuses a connection on which nothing could be rolled back. */
    static void check(Connection connection) throws SQLException {
        if (Objects.requireNonNull(connection, "a fence needs a connection, in a transaction").getAutoCommit()) {
            throw new IllegalStateException("a fence needs a transaction: setAutoCommit(false), then claim and write in it");
        }
    }

    /** One step at the fence. */
    @FunctionalInterface
    interface Step<R> {
        R run() throws SQLException;
    }

    /** A step whose holder is told if it is refused as stale. */
    static <R> R telling(Presenter holder, String resource, String operation, Step<R> step) throws SQLException {
        try {
            return step.run();
        } catch (StaleException late) {
            late.tell(holder, resource, operation);
            throw late;
        }
    }

    /** Raises the fence of one resource. */
    @FunctionalInterface
    interface Claim {
        void of(Connection connection, String resource, Presenter holder) throws SQLException;
    }

    /** Ends the transaction. */
    @FunctionalInterface
    interface End {
        void of(Connection connection, boolean commits) throws SQLException;
    }

    private static final long MOST_LEFT_MS = 999_999_999;

    /**
     * The remaining time of a lease in milliseconds, in the form that the databases take; null if it is
     * unknown.
     */
    static Long leftMs(Presenter holder) {
        Duration left = holder.remaining();
        return left == null ? null : Long.valueOf(Math.min(left.toMillis() + 1, MOST_LEFT_MS));
    }

    static void end(Connection connection, boolean commits) throws SQLException {
        if (commits) {
            connection.commit();
        } else {
            connection.rollback();
        }
    }

    static <R, E extends Exception> R run(
            DataSource source, Map<String, ? extends Presenter> holders, Claim claim, End end, Work<R, E> work)
            throws SQLException, E {
        Objects.requireNonNull(work, "transact needs the work that it carries out");
        try (Connection connection =
                Objects.requireNonNull(source, "transact needs a DataSource, or a connection").getConnection()) {
            if (!connection.getAutoCommit()) {
                // The pool's setting. The connection is nobody else's, and may be inside a transaction already.
                connection.rollback();
                return inTransaction(connection, holders, claim, end, work);
            }
            return run(connection, holders, claim, end, work);
        }
    }

    static <R, E extends Exception> R run(
            Connection connection, Map<String, ? extends Presenter> holders, Claim claim, End end, Work<R, E> work)
            throws SQLException, E {
        Objects.requireNonNull(work, "transact needs the work that it carries out");
        if (!Objects.requireNonNull(connection, "transact needs a DataSource, or a connection").getAutoCommit()) {
            throw new IllegalStateException("transact begins a transaction of its own, and this connection is in one, which may "
                    + "have read already: give it a DataSource, or a connection with setAutoCommit(true)");
        }
        connection.setAutoCommit(false);
        Throwable failed = null;
        try {
            return inTransaction(connection, holders, claim, end, work);
        } catch (Throwable error) {
            failed = error;
            throw error;
        } finally {
            try {
                connection.setAutoCommit(true);
            } catch (SQLException broken) {
                // The first failure says more; after a commit the caller learns of it with the next statement.
                if (failed != null) {
                    failed.addSuppressed(broken);
                }
            }
        }
    }

    private static <R, E extends Exception> R inTransaction(
            Connection connection, Map<String, ? extends Presenter> holders, Claim claim, End end, Work<R, E> work)
            throws SQLException, E {
        if (holders == null || holders.isEmpty()) {
            throw new IllegalArgumentException("there is nothing to claim: name a resource");
        }
        for (String resource : holders.keySet()) {
            Objects.requireNonNull(resource, "the name of a resource is needed, and not null");
        }
        try {
            // In the order of the names, so that no two transactions wait for each other.
            for (Map.Entry<String, ? extends Presenter> each : new TreeMap<>(holders).entrySet()) {
                claim.of(connection, each.getKey(), each.getValue());
            }
            R result = work.run(connection);
            if (connection.getAutoCommit()) {
                throw new IllegalStateException("the work ended its transaction: leave commit and setAutoCommit to transact");
            }
            end.of(connection, true);
            return result;
        } catch (Throwable error) {
            try {
                end.of(connection, false);
            } catch (SQLException | RuntimeException broken) {
                error.addSuppressed(broken);
            }
            throw error;
        }
    }
}
