package example.palisade.shedlock;

import example.palisade.Lease;
import java.util.ArrayDeque;
import java.util.Deque;

/** The lock under which a scheduled method runs. */
public final class PalisadeLock {
    /** A method may call another one that is locked, too. */
    private static final ThreadLocal<Deque<Lease>> LEASES = ThreadLocal.withInitial(ArrayDeque::new);

    private PalisadeLock() {}

    /**
     * The lease of the method that runs in this thread, for a fence: {@code PostgresFence.claim(connection, "orders",
     * PalisadeLock.current())}. A lease that was lost is refused there. A thread that the method hands work to has none: pass it on.
     *
     * @throws IllegalStateException if no method with a lock of Palisade runs in this thread
     */
    public static Lease current() {
        Lease innermost = LEASES.get().peek();
        if (innermost == null) {
            throw new IllegalStateException("no method with a lock of Palisade runs in this thread: call it inside of @SchedulerLock,"
                    + " in the thread that the method was called in");
        }
        return innermost;
    }

    static void begin(Lease lease) {
        // After an extension that was refused, ShedLock unlocks nothing.
        LEASES.get().removeIf(over -> !over.isHeld());
        LEASES.get().push(lease);
    }

    static void end(Lease lease) {
        LEASES.get().remove(lease);
        if (LEASES.get().isEmpty()) {
            LEASES.remove();
        }
    }
}
