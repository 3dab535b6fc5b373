package example.palisade.fence;

import java.sql.Connection;
import java.sql.SQLException;

/** What is done in a transaction whose claim was admitted. It must not commit, or change auto-commit: that is done for it. */
@FunctionalInterface
public interface Work<R, E extends Exception> {
    /** Reads and writes on this connection. */
    R run(Connection connection) throws SQLException, E;
}
