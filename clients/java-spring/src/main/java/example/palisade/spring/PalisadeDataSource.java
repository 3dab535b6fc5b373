package example.palisade.spring;

import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.SqliteFence;
import java.io.PrintWriter;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.util.Locale;
import java.util.Objects;
import java.util.logging.Logger;
import javax.sql.DataSource;
import javax.sql.XADataSource;

/**
 * A {@link DataSource} whose transactions claim: {@code new PalisadeDataSource(pool)}, around the pool. JdbcTemplate, JPA, jOOQ and
 * MyBatis on top of it need nothing more. In a thread with a lease that {@link Fenced#bind} has bound,
 *
 * <ul>
 *   <li>each transaction claims before its first statement, and before its first savepoint;
 *   <li>a statement with auto-commit, or in a read-only transaction, passes if it begins with SELECT, SHOW or VALUES, and is refused
 *       otherwise;
 *   <li>a transaction that has sent statements before the lease was bound is refused, because it may have read;
 *   <li>a second transaction of the thread at the same resource is refused while the first one is open ({@code REQUIRES_NEW}): it
 *       would wait for the first one, and the first one for it.
 * </ul>
 *
 * <p>A refusal is a {@link RefusedException}, and the transaction commits nothing. Without a bound lease everything passes.
 *
 * <p>Not fenced: what {@code unwrap} of this DataSource, {@code DatabaseMetaData.getConnection} and {@code ResultSet.getStatement}
 * return, later transactions of a connection that was unwrapped, an updatable result set that was opened before the lease was bound,
 * a text or a batch of several statements with COMMIT in it, a DDL statement of MySQL, a SELECT that calls a function that writes,
 * distributed transactions and R2DBC. The triggers of the fence on a table ({@code palisade fence install postgres URL TABLE}) refuse
 * those, too.
 */
public class PalisadeDataSource implements DataSource {
    private final DataSource target;
    private final Claim claim;

    /** Raises the fence of one resource, on a connection in a transaction. */
    @FunctionalInterface
    public interface Claim {
        /** As {@link PostgresFence#claim}. */
        void of(Connection connection, String resource, Presenter holder) throws SQLException;
    }

    /** For PostgreSQL, MySQL, MariaDB or SQLite: each claim asks the driver. */
    public PalisadeDataSource(DataSource target) {
        this(target, null);
    }

    /** With a claim of your own. */
    public PalisadeDataSource(DataSource target, Claim claim) {
        this.target = Objects.requireNonNull(target, "the DataSource that is fenced is needed, and not null");
        this.claim = claim;
        if (isDistributed(target)) {
            throw new IllegalArgumentException("distributed transactions (XA) are not fenced: their manager commits past this"
                    + " DataSource. Give it a DataSource of local transactions");
        }
    }

    private static boolean isDistributed(DataSource target) {
        try {
            return target instanceof XADataSource || target.isWrapperFor(XADataSource.class);
        } catch (SQLException | RuntimeException notKnown) {
            // One that routes may know its target only inside of a request.
            return false;
        }
    }

    @Override
    public Connection getConnection() throws SQLException {
        return FencedConnection.around(target.getConnection(), this);
    }

    @Override
    public Connection getConnection(String username, String password) throws SQLException {
        return FencedConnection.around(target.getConnection(username, password), this);
    }

    void claim(Connection connection, String resource, Presenter holder) throws SQLException {
        Claim found = claim;
        if (found == null) {
            String product = connection.getMetaData().getDatabaseProductName();
            found = switch (product.toLowerCase(Locale.ROOT)) {
                case "postgresql" -> PostgresFence::claim;
                case "mysql", "mariadb" -> MySqlFence::claim;
                case "sqlite" -> SqliteFence::claim;
                default -> throw RefusedException.of("invalid", "there is no fence for " + product
                        + ": PostgreSQL, MySQL, MariaDB and SQLite have one");
            };
        }
        found.of(connection, resource, holder);
    }

    /** Whether a claim sets something for the session: see {@link MySqlFence}. */
    boolean setsBounds(Connection connection) throws SQLException {
        String product = connection.getMetaData().getDatabaseProductName();
        return claim == null && (product.equalsIgnoreCase("mysql") || product.equalsIgnoreCase("mariadb"));
    }

    @Override
    public <T> T unwrap(Class<T> wanted) throws SQLException {
        if (wanted.isInstance(this)) {
            return wanted.cast(this);
        }
        return wanted.isInstance(target) ? wanted.cast(target) : target.unwrap(wanted);
    }

    @Override
    public boolean isWrapperFor(Class<?> wanted) throws SQLException {
        return wanted.isInstance(this) || wanted.isInstance(target) || target.isWrapperFor(wanted);
    }

    @Override
    public PrintWriter getLogWriter() throws SQLException {
        return target.getLogWriter();
    }

    @Override
    public void setLogWriter(PrintWriter out) throws SQLException {
        target.setLogWriter(out);
    }

    @Override
    public void setLoginTimeout(int seconds) throws SQLException {
        target.setLoginTimeout(seconds);
    }

    @Override
    public int getLoginTimeout() throws SQLException {
        return target.getLoginTimeout();
    }

    @Override
    public Logger getParentLogger() throws SQLFeatureNotSupportedException {
        return target.getParentLogger();
    }

    @Override
    public String toString() {
        return "PalisadeDataSource(" + target + ")";
    }
}
