package example.palisade;

import java.util.Map;
import java.util.Optional;

/**
 * The leader of an election, as of one moment: the holder of an exclusive lock. It does not prove that the leader still leads; its
 * writes need a fence.
 *
 * @param clientId its id
 * @param token the fencing token of its grant, which rises with each leader
 * @param value what it announces, its metadata, or null
 */
public record Leader(String clientId, long token, String value) {
    /** The leader in what a server shows. A lock that is shared has none. */
    static Optional<Leader> of(Map<String, Object> shown) throws Reply.Fault {
        LockInfo lock = Reply.lock(shown);
        Holder holder = lock.holder();
        if (holder == null || lock.readerCount() > 0) {
            return Optional.empty();
        }
        return Optional.of(new Leader(holder.clientId(), holder.token(), holder.metadata()));
    }
}
