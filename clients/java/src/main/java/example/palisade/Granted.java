package example.palisade;

import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A grant, with the clock's reading from before the request that it answers. {@code number} names it: the token, or a
 * reader's grant id.
 */
record Granted(long t0, long token, long number, String leaseKey, String authority, Duration validFor, Duration waited,
        Duration ttl, List<Integer> slots) {
    /** Renews the lease, by one of its locks. {@code lasts}: for how long, or null. */
    Transport.Request renewal(String name, Duration lasts) {
        Map<String, Object> wanted = new HashMap<>(Map.of("fencing_token", token, "authority", authority));
        // An answer to a renewal has neither of them.
        wanted.put("lock_acquired", null);
        wanted.put("released", null);
        Map<String, Object> more = lasts == null ? Map.of() : Map.of("lease_duration_ms", lasts.toMillis());
        return request(name, "/renew", more, wanted);
    }

    /** Releases one of its locks. */
    Transport.Request release(String name) {
        return request(name, "/release", Map.of(), Map.of("fencing_token", number, "released", true, "authority", authority));
    }

    /**
     * Names the grant by both of its names: a late copy can never touch a later grant. A good answer has the fields that are
     * wanted; null: a field that it must not have.
     */
    Transport.Request request(String name, String verb, Map<String, Object> more, Map<String, Object> wanted) {
        Map<String, Object> good = new HashMap<>(wanted);
        good.put("resource_id", name);
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("lock_token", leaseKey);
        body.put("fencing_token", number);
        body.putAll(more);
        return Transport.Request.post(Client.lockPath(name, verb), body, answer -> {
            if (answer.endsAnotherThan(number)) {
                return "another grant is over";
            }
            return answer.status() == 200 ? answer.difference(good) : null;
        });
    }

    /** Never contains the lease key. */
    @Override
    public String toString() {
        return "grant with fencing token " + token;
    }
}
