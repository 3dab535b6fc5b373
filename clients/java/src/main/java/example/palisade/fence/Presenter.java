package example.palisade.fence;

import java.time.Duration;

/** Presents a fencing token with its authority and its lock, where they are known. A {@code Lease} is one. */
public interface Presenter {
    /** The largest fencing token; sequence numbers end there, too. */
    long MAX_TOKEN = (1L << 53) - 1;

    /** The fencing token. */
    long token();

    /** The authority that granted it, or null. */
    default String authority() {
        return null;
    }

    /** The name of the lock, or null. */
    default String name() {
        return null;
    }

    /** How long the holder may still act; null if it is not known. A database ends a transaction that is idle for longer. */
    default Duration remaining() {
        return null;
    }

    /**
     * Throws if the holder knows that it no longer holds. Every fence calls it first: a lease that is lost, or released,
     * sends nothing.
     */
    default void check() {}

    /**
     * Every fence calls it when it refuses the token as stale, before it throws: a lease tells its authority, in the background.
     * The operation is a word or two, without anything of the write's content.
     */
    default void refused(String resource, String operation, long highest) {}

    /** Presents a bare token. */
    static Presenter of(long token) {
        return of(token, null, null);
    }

    /** Presents a token that another process handed over; the authority and the name may be null. */
    static Presenter of(long token, String authority, String name) {
        if (token < 1 || token > MAX_TOKEN) {
            throw new IllegalArgumentException(token + " is not a fencing token: 1 to " + MAX_TOKEN + " are allowed");
        }
        record Pass(long token, String authority, String name) implements Presenter {}
        return new Pass(token, authority, name);
    }
}
