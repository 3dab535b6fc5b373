package example.palisade.testing;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** One acquire, from its first attempt on. Times are nanoseconds of the double's clock. */
final class Waiter {
    final List<String> names = new ArrayList<>();
    final String clientId;
    final String metadata;
    /** exclusive, shared, update, upgrade; or downgrade: shared, under a writer's lease. */
    final String mode;
    final int count;
    final int of;
    final long ttl;
    final long lockDelay;
    final long atLeast;
    /** Of the lease that it comes under, or null. */
    final String key;
    long deadline;
    /** The number of the attempt that waits for the answer. */
    int attempt;
    /** Nobody waits for the answer: until then the place is kept. */
    Long orphanUntil;
    /** Once it is granted. */
    List<Grant> granted;
    /** Once it is refused. */
    Told refusal;

    Waiter(String name, Map<String, Object> asked) {
        names.add(name);
        for (Object also : asked.get("also") instanceof List<?> list ? list : List.of()) {
            names.add((String) also);
        }
        clientId = asked.get("client_id") instanceof String id ? id : "";
        metadata = asked.get("metadata") instanceof String text ? text : null;
        key = asked.get("lock_token") instanceof String given ? given : null;
        String wanted = asked.get("mode") instanceof String given ? given : "exclusive";
        mode = wanted.equals("shared") && key != null ? "downgrade" : wanted;
        Map<?, ?> permits = asked.get("permits") instanceof Map<?, ?> map ? map : Map.of();
        count = permits.get("count") instanceof Long number ? number.intValue() : 0;
        of = permits.get("of") instanceof Long number ? number.intValue() : 0;
        ttl = ms(asked, "lease_duration_ms");
        lockDelay = ms(asked, "lock_delay_ms");
        atLeast = ms(asked, "at_least_for_ms");
    }

    static long ms(Map<String, Object> asked, String field) {
        return asked.get(field) instanceof Long number ? number * Authority.MS : 0;
    }

    boolean isReader() {
        return mode.equals("shared") || mode.equals("update") || mode.equals("downgrade");
    }

    boolean isSemaphore() {
        return of > 0;
    }

    boolean isDecided() {
        return granted != null || refusal != null;
    }
}
