package example.palisade;

/**
 * One change of a lock. An event is news, not proof: a holder learns of a loss from its own deadline.
 *
 * @param kind granted, proclaimed, opened, released, expired, revoked or superseded, or else missed: changes that did not arrive,
 *     so list the locks again
 * @param revision where to go on after this event, or null
 * @param name the lock's name, or null
 * @param clientId the holder's id, or null; a lock that was opened has none
 * @param token the fencing token; 0 for missed
 * @param reason of a revocation, or of an opening, or null
 * @param missed how many changes did not arrive; 0 if nobody knows
 * @param grantId the number that names a shared grant, or null
 * @param time the server's wall clock at the change, for people, or null
 */
public record Event(
        String kind, Long revision, String name, String clientId, long token, String reason, long missed, Long grantId,
        String time) {}
