package example.palisade.internal;

import java.io.InputStream;

/**
 * Internal. Carries requests to an address and answers back: HTTP, or a stand-in for tests. An implementation returns only the
 * answer to its own request; its caller compares what the answer says.
 */
public interface Exchange {
    /**
     * An answer.
     *
     * @param via the connections that brought it, for {@link #leave}; or null
     */
    record Answer<T>(int status, T body, Object via) {}

    /** There is no answer. */
    final class Silence extends Exception {
        private static final long serialVersionUID = 1;
        private final boolean nothing;
        private final boolean late;

        /**
         * {@code nothing}: the request was certainly not carried out. {@code late}: the time of the attempt ended, and a
         * shorter one after it has less to say.
         */
        public Silence(String message, boolean nothing, boolean late) {
            super(message, null, false, false);
            this.nothing = nothing;
            this.late = late;
        }

        /** Whether the request was certainly not carried out. */
        public boolean nothing() {
            return nothing;
        }

        /** Whether the time of the attempt ended. */
        public boolean late() {
            return late;
        }
    }

    /**
     * Asks once, for at most so many nanoseconds.
     *
     * @param body null for GET
     */
    Answer<String> ask(String address, String method, String path, String body, long limit)
            throws Silence, InterruptedException;

    /** Opens a stream, whose head comes within so many nanoseconds. */
    Answer<InputStream> open(String address, String path, long limit) throws Silence, InterruptedException;

    /** These connections brought a wrong answer: the next request goes over others. */
    default void leave(Object via) {}
}
