package example.palisade;

import java.util.Map;
import java.util.Optional;

/** The lease is over: stop the work. The next grant has another token. */
public final class LeaseLostException extends PalisadeException {
    private static final long serialVersionUID = 1;
    private static final Map<String, String> REASONS = Map.of(
            "expired", "no renewal was acknowledged in time",
            "not_held", "it was released",
            "handed_over", "it was handed over",
            "revoked", "an operator revoked it",
            "superseded", "the same client id acquired the lock again",
            "stale", "the lock is held with another token");

    private final String name;
    private final long token;
    /** Or null. */
    private final String reason;

    LeaseLostException(String code, String name, long token) {
        this(code, name, token, null);
    }

    LeaseLostException(String code, String name, long token, String reason) {
        super(Kind.LOST, code, "the lease of \"" + name + "\" (fencing token " + token + ") is lost: "
                + REASONS.getOrDefault(code, code) + (reason == null ? "" : " (\"" + reason + "\")"));
        this.name = name;
        this.token = token;
        this.reason = reason;
    }

    /** The name of the lock. */
    public String name() {
        return name;
    }

    /** The fencing token of the grant that is over. */
    public long token() {
        return token;
    }

    /** What the operator said, if the lease was revoked and the client heard the reason. */
    public Optional<String> reason() {
        return Optional.ofNullable(reason);
    }
}
