package example.palisade;

import java.time.Duration;
import java.util.Optional;

/**
 * Another client has the lock, and kept it for as long as the caller was willing to wait. Or nobody has it, and its last grant
 * keeps it closed: the code is {@code delayed}.
 */
public final class LockHeldException extends PalisadeException {
    private static final long serialVersionUID = 1;

    private final Holder holder;
    private final Duration retryAfter;

    LockHeldException(String code, String message, Holder holder, Duration retryAfter) {
        super(Kind.HELD, code, message);
        this.holder = holder;
        this.retryAfter = retryAfter;
    }

    /** The holder; empty if it was released in the meantime, or is closed. */
    public Optional<Holder> holder() {
        return Optional.ofNullable(holder);
    }

    /** When the holder's lease is over unless it is renewed, or when the lock opens; empty if that is not known. */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }
}
