package example.palisade;

import java.io.Serializable;
import java.time.Duration;
import java.util.List;

/**
 * The client that has a lock.
 *
 * @param clientId its id
 * @param token its fencing token
 * @param remaining until its lease is over unless it is renewed
 * @param metadata what it wrote beside the lock, or null
 * @param acquiredAt the server's wall clock at the grant, for people, or null
 * @param grantId the number that names a reader's grant, for {@link Client#breakLock}, or null; only where one lock is shown
 * @param slots the slots of a semaphore that it has
 */
public record Holder(String clientId, long token, Duration remaining, String metadata, String acquiredAt, Long grantId,
        List<Integer> slots) implements Serializable {}
