package example.palisade.fence;

import java.sql.Connection;
import java.sql.SQLException;

/**
 * The caller's work in a transaction whose claim was admitted. It must not commit or change auto-commit: the fence does both.
 */
@FunctionalInterface
public interface Work<R, E extends Exception> {
    /** Reads and writes on this connection. */
    R run(Connection connection) throws SQLException, E;
}
