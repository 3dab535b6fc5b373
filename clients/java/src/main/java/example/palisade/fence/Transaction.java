package example.palisade.fence;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import javax.sql.DataSource;

/** A transaction that claims before anything else. */
final class Transaction {
    private Transaction() {}

    /** Raises the fence of one resource. */
    @FunctionalInterface
    interface Claim {
        void of(Connection connection, String resource, Presenter holder) throws SQLException;
    }

    static <R, E extends Exception> R run(
            DataSource source, Map<String, ? extends Presenter> holders, Claim claim, Work<R, E> work)
            throws SQLException, E {
        try (Connection connection = source.getConnection()) {
            if (!connection.getAutoCommit()) {
                // The pool's setting. The connection is nobody else's, and may be inside a transaction already.
                connection.rollback();
                return inTransaction(connection, holders, claim, work);
            }
            return run(connection, holders, claim, work);
        }
    }

    static <R, E extends Exception> R run(
            Connection connection, Map<String, ? extends Presenter> holders, Claim claim, Work<R, E> work)
            throws SQLException, E {
        if (!connection.getAutoCommit()) {
            throw new IllegalStateException("transact begins a transaction of its own, and this connection is in one, which may "
                    + "have read already: give it a DataSource, or a connection with setAutoCommit(true)");
        }
        connection.setAutoCommit(false);
        Throwable failed = null;
        try {
            return inTransaction(connection, holders, claim, work);
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
            Connection connection, Map<String, ? extends Presenter> holders, Claim claim, Work<R, E> work)
            throws SQLException, E {
        if (holders.isEmpty()) {
            throw new IllegalArgumentException("there is nothing to claim: name a resource");
        }
        try {
            // In the order of the names, so that no two transactions wait for each other.
            for (Map.Entry<String, ? extends Presenter> each : new TreeMap<>(holders).entrySet()) {
                Objects.requireNonNull(each.getValue(), "a fence needs a holder: the lease, or Presenter.of(token)");
                claim.of(connection, each.getKey(), each.getValue());
            }
            R result = work.run(connection);
            if (connection.getAutoCommit()) {
                throw new IllegalStateException("the work ended its transaction: leave commit and setAutoCommit to transact");
            }
            connection.commit();
            return result;
        } catch (Throwable error) {
            try {
                connection.rollback();
            } catch (SQLException broken) {
                error.addSuppressed(broken);
            }
            throw error;
        }
    }
}
