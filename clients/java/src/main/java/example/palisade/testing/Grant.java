package example.palisade.testing;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** One lock that somebody has. {@code number} names it: the token, or a reader's grant id. */
final class Grant {
    /** What lives and expires together. Times are nanoseconds of the double's clock. */
    static final class Lease {
        final String key;
        long ttl;
        final List<Grant> grants = new ArrayList<>();
        long expires;

        Lease(String key, long ttl) {
            this.key = key;
            this.ttl = ttl;
        }
    }

    final String lock;
    final Lease lease;
    final Waiter asked;
    final long token;
    final long number;
    final List<Integer> slots;
    final long grantedAt;
    final String acquiredAt = Instant.now().truncatedTo(ChronoUnit.MILLIS).toString();
    String value;

    Grant(String lock, Lease lease, Waiter asked, long token, long number, List<Integer> slots, long grantedAt) {
        this.lock = lock;
        this.lease = lease;
        this.asked = asked;
        this.token = token;
        this.number = number;
        this.slots = slots;
        this.grantedAt = grantedAt;
        this.value = asked.metadata;
    }

    boolean isReader() {
        return asked.isReader();
    }

    boolean isUpdate() {
        return asked.mode.equals("update");
    }

    /** The number of a reader's grant, or null. */
    Long grantId() {
        return isReader() ? number : null;
    }

    long remainingMs(long now) {
        return Math.max((lease.expires - now) / Authority.MS, 0);
    }

    Map<String, Object> shown(long now) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("client_id", asked.clientId);
        shown.put("fencing_token", token);
        shown.put("remaining_ms", remainingMs(now));
        shown.put("metadata", value);
        shown.put("acquired_at", acquiredAt);
        shown.put("grant_id", grantId());
        shown.put("slots", slots.isEmpty() ? null : slots);
        return shown;
    }
}
