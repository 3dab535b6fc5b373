package example.palisade;

/** The failure of a call. {@link #kind} tells the caller how to proceed. */
public class PalisadeException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The caller's next step. */
    public enum Kind {
        /** Another client has the lock: try again later. A {@link LockHeldException}. */
        HELD,
        /** The lock was not granted, and nothing is held: trying again later is safe. */
        NOT_ACQUIRED,
        /** The lease is over: stop the work. A {@link LeaseLostException}. */
        LOST,
        /** No server could answer, and nothing happened: the same call may be made again. */
        UNAVAILABLE,
        /** No answer came, and the call may have taken effect. An acquire is being abandoned in the background. */
        UNKNOWN_OUTCOME,
        /** The call is wrong, and repeating it does not help. The message names the field and its range. */
        INVALID,
        /** The fence refuses the operation, and nothing changed: a {@code RejectedException} or a {@code BadSequencerException}. */
        REJECTED,
        /** Only an operator can help. */
        OPERATOR,
    }

    private final Kind kind;
    private final String code;

    /** Makes one with the name that the server's table of codes (docs/reference/errors.md) has for it. */
    public PalisadeException(Kind kind, String code, String message) {
        super(code + ": " + message);
        this.kind = kind;
        this.code = code;
    }

    /** The caller's next step. */
    public Kind kind() {
        return kind;
    }

    /** The name in the server's table of codes. */
    public String code() {
        return code;
    }

    static PalisadeException invalid(String message) {
        return new PalisadeException(Kind.INVALID, "invalid", message);
    }
}
