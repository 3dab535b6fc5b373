package example.palisade.fence;

import example.palisade.Lease;
import java.util.List;

/**
 * The content of a signed token whose signature {@link SequencerKeys} has verified. A fence accepts it like a lease.
 *
 * @param authority the authority that signed it
 * @param name the name of the lock
 * @param mode the mode of the grant
 * @param token the fencing token
 * @param slots the slots of a semaphore, rising; none for other locks
 * @param principal who holds the grant, or null where the authority does not know
 */
public record Sequencer(String authority, String name, Mode mode, long token, List<Integer> slots, String principal)
        implements Presenter {
    /** The header of a request that carries a sequencer. */
    public static final String HEADER = "X-Fencing-Sequencer";

    /** The length of the longest sequencer that is looked at, in bytes. */
    public static final int MAX_BYTES = 4_096;

    /** The mode of a grant. */
    public enum Mode {
        /** A writer's. */
        EXCLUSIVE,
        /** A reader's: its holder does not write. */
        SHARED,
        /** A semaphore's. */
        PERMITS,
    }

    /**
     * Checks that it is for this resource: the one with the lock's name, or for permits one of {@code LOCK~SLOT}. Without
     * this check, a holder of any lock could raise every fence.
     *
     * @throws BadSequencerException with the code {@code wrong_lock}
     */
    public void checkCovers(String resource) {
        List<String> held = mode == Mode.PERMITS
                ? slots.stream().map(slot -> Lease.slotKey(name, slot)).toList()
                : List.of(name);
        if (!held.contains(resource)) {
            throw new BadSequencerException("wrong_lock", "the sequencer is for " + String.join(", ", held)
                    + ", and this resource is " + resource + ": acquire that lock");
        }
    }
}
