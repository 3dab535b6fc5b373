package example.palisade.spring;

import example.palisade.PalisadeException;
import java.sql.SQLException;
import java.sql.SQLNonTransientException;

/**
 * The refusal in the form that frameworks of JDBC know. Spring, Hibernate, jOOQ and MyBatis wrap it in exceptions of their own; {@link
 * Fenced#rejection} finds its cause there. To repeat the transaction is of no use.
 */
public final class RefusedException extends SQLNonTransientException {
    private static final long serialVersionUID = 1;

    RefusedException(PalisadeException cause) {
        super(cause.getMessage(), cause.getCause() instanceof SQLException told ? told.getSQLState() : null, cause);
    }

    static RefusedException of(String code, String message) {
        return new RefusedException(new PalisadeException(PalisadeException.Kind.INVALID, code, message));
    }

    /** The reason. */
    public PalisadeException rejection() {
        return (PalisadeException) getCause();
    }
}
