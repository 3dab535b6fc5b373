package example.palisade;

import java.time.Duration;

/**
 * Tells a holder about its lease: {@link Lease#listen}.
 *
 * @param kind of the notice
 * @param remaining of {@link Kind#SUSPENDED}: how long the lease is held without a renewal; else zero
 * @param waiters of {@link Kind#WANTED}: how many requests wait, for several locks the largest number for any of them; else 0
 * @param loss of {@link Kind#LOST}: why the lease is over; else null
 */
public record Notice(Kind kind, Duration remaining, int waiters, LeaseLostException loss) {
    /** Later versions may have more kinds. */
    public enum Kind {
        /** A renewal failed. The lease is still held, for as long as remains if no renewal is acknowledged until then. */
        SUSPENDED,
        /** Renewals are acknowledged again. */
        RESTORED,
        /** Requests wait for the lock. */
        WANTED,
        /** No request waits any more. */
        UNWANTED,
        /** The lease is over. It is the last notice. */
        LOST,
    }
}
