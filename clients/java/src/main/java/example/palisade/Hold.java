package example.palisade;

/** The deadline of one grant (rules H1 – H4 of docs/promise/rules.md). No I/O here. */
final class Hold {
    static final String RELEASED = "released";
    static final String HANDED_OVER = "handed_over";

    /** Is told that it is over, and whether that is a loss. */
    interface End {
        void ended(boolean lost);
    }

    private final End end;
    private volatile long deadline;
    private volatile String over;

    /** {@code end} is told once. */
    Hold(long deadline, End end) {
        this.deadline = deadline;
        this.end = end;
    }

    /**
     * Counts from {@code t0}, which was read before the request that was answered was sent. Either clock may run 1 %
     * wrong: (1 − ε) / (1 + ε) of the time is sure. Rounded down.
     */
    static long deadline(long t0, long validForNs, long marginNs) {
        return t0 + Math.max(validForNs / 101 * 99 - marginNs, 0);
    }

    long deadline() {
        return deadline;
    }

    /** Whether the holder may act now. Once the clock has passed the deadline, it stays false. */
    boolean holds() {
        if (over == null && Clock.latest() >= deadline) {
            end("expired");
        }
        return over == null;
    }

    long remaining() {
        return holds() ? Math.max(deadline - Clock.latest(), 0) : 0;
    }

    /** Takes an acknowledged renewal: forward only, and no revival. */
    void renewed(long until) {
        if (holds()) {
            synchronized (this) {
                // A loss that came in between stays: `over` is never taken back.
                deadline = Math.max(deadline, until);
            }
        }
    }

    /** Not held from now on. The first reason stays. Tells whether this was it. */
    boolean end(String code) {
        synchronized (this) {
            if (over != null) {
                return false;
            }
            over = code;
        }
        end.ended(!code.equals(RELEASED) && !code.equals(HANDED_OVER));
        return true;
    }

    /** Why it is over; after a release it is not held. */
    String reason() {
        String code = over;
        return RELEASED.equals(code) ? "not_held" : code;
    }
}
