package example.palisade;

import example.palisade.internal.Json;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** An answer whose body is a JSON object. */
record Reply(int status, Map<String, Object> value) {
    static final long MAX_TOKEN = (1L << 53) - 1;
    private static final int MAX_PERMITS = 64;
    private static final long LONGEST_MS = Duration.ofDays(4).toMillis();
    private static final Set<String> OVER = Set.of("expired", "revoked", "superseded", "not_held", "stale");

    /**
     * Why an attempt is to be repeated. {@code unknown}: it may have happened. {@code silent}: its time ended, and a shorter
     * one after it has less to say.
     */
    static final class Fault extends Exception {
        private static final long serialVersionUID = 1;
        final boolean unknown;
        final boolean silent;

        Fault(String message, boolean unknown) {
            this(message, unknown, false);
        }

        Fault(String message, boolean unknown, boolean silent) {
            super(message, null, false, false);
            this.unknown = unknown;
            this.silent = silent;
        }
    }

    /** Accepts only answers of a Palisade server. Anything else leaves the outcome unknown. */
    static Reply read(int status, String body) throws Fault {
        boolean expected = status == 200 || status == 202 || status >= 400 && status < 600;
        try {
            if (expected) {
                return new Reply(status, Json.object(body));
            }
        } catch (IllegalArgumentException notJson) {
            // As any other answer that is not the server's.
        }
        throw new Fault("the answer (status " + status + ") is not one of a Palisade server", true);
    }

    /** The server says that the request waits: it is to be asked again. */
    boolean waits() {
        return status == 202;
    }

    /**
     * Tells which of these fields the answer has with another value; null: none. The value null is that of a field that it must
     * not have. The lease key is not printed.
     */
    String difference(Map<String, ?> wanted) {
        for (Map.Entry<String, ?> field : wanted.entrySet()) {
            Object found = value.get(field.getKey());
            if (!Objects.equals(found, field.getValue())) {
                return field.getKey() + (field.getKey().equals("lock_token")
                        ? " is another" : " is " + found + ", and not " + field.getValue());
            }
        }
        return null;
    }

    /** Whether it says that another grant than this one is over. */
    boolean endsAnotherThan(long grant) {
        Object ended = over() ? problem().get("fencing_token") : null;
        return ended != null && !ended.equals(grant);
    }

    private Map<String, Object> problem() {
        Map<String, Object> found = Json.asObject(value.get("error"));
        return found == null ? Map.of() : found;
    }

    String code() {
        return problem().get("code") instanceof String code ? code : status >= 500 ? "internal" : "invalid";
    }

    String leader() {
        return problem().get("leader") instanceof String leader ? leader : "";
    }

    String message() {
        return problem().get("message") instanceof String message ? message : "status " + status;
    }

    boolean isToBeRepeated() {
        try {
            checkFault();
            return false;
        } catch (Fault again) {
            return true;
        }
    }

    /** Throws if the request is to be repeated: the rows of the table of codes (docs/reference/protocol.md) that say so. */
    void checkFault() throws Fault {
        if (status < 300) {
            return;
        }
        switch (code()) {
            case "unavailable", "request_timeout", "not_leader" -> throw new Fault(message(), false);
            case "unknown_outcome", "internal" -> throw new Fault(message(), true);
            case "tokens_exhausted", "storage_full" -> {
                // The caller gets these.
            }
            default -> {
                if (status >= 500) {
                    throw new Fault(message(), true);
                }
            }
        }
    }

    /** Whether the answer says that a grant is over. */
    boolean over() {
        return status != 200 && OVER.contains(code());
    }

    /** The error for an answer that is not repeated. */
    PalisadeException error() {
        String code = code();
        if (code.equals("held") || code.equals("delayed")) {
            Object after = problem().get("retry_after_ms");
            return new LockHeldException(code, message(), lenientHolder(), after instanceof Long ms ? duration(ms) : null);
        }
        boolean nothing = Set.of("queue_full", "too_many_locks", "over_quota", "abandoned").contains(code) || over();
        PalisadeException.Kind kind = nothing
                ? PalisadeException.Kind.NOT_ACQUIRED
                : code.equals("tokens_exhausted") ? PalisadeException.Kind.OPERATOR : PalisadeException.Kind.INVALID;
        return new PalisadeException(kind, code, message());
    }

    /** The holder is for people: an acquire is denied whether it can be read or not. */
    private Holder lenientHolder() {
        try {
            return holder(value);
        } catch (Fault unreadable) {
            return null;
        }
    }

    static Holder holder(Map<String, Object> lock) throws Fault {
        Map<String, Object> found = Json.asObject(lock.get("holder"));
        return found == null ? null : oneHolder(found);
    }

    private static Holder oneHolder(Map<String, Object> found) throws Fault {
        return new Holder(
                text(found, "client_id"), token(found), duration(number(found, "remaining_ms")),
                found.get("metadata") instanceof String metadata ? metadata : null,
                found.get("acquired_at") instanceof String at ? at : null,
                found.get("grant_id") instanceof Long id ? id : null,
                slots(found));
    }

    static LockInfo lock(Map<String, Object> found) throws Fault {
        List<Holder> readers = new ArrayList<>();
        for (Object one : found.get("readers") instanceof List<?> list ? list : List.of()) {
            Map<String, Object> reader = Json.asObject(one);
            readers.add(oneHolder(reader == null ? Map.of() : reader));
        }
        int count = found.containsKey("reader_count") ? (int) number(found, "reader_count") : 0;
        int permits = found.containsKey("permits") ? (int) number(found, "permits") : 0;
        return new LockInfo(
                text(found, "resource_id"), holder(found), (int) number(found, "waiters"), count, List.copyOf(readers), permits);
    }

    /** Slots of a semaphore: rising numbers from 1; none where they are missing. */
    static List<Integer> slots(Map<String, Object> from) throws Fault {
        List<Integer> slots = new ArrayList<>();
        long before = 0;
        for (Object one : from.getOrDefault("slots", List.of()) instanceof List<?> list ? list : List.of(0L)) {
            if (!(one instanceof Long slot) || slot <= before || slot > MAX_PERMITS) {
                throw broken("slots are no rising numbers");
            }
            before = slot;
            slots.add(slot.intValue());
        }
        return List.copyOf(slots);
    }

    /** How many requests wait for a lock; null if the server does not say so. */
    static Integer waiters(Map<String, Object> from) {
        return from.get("waiters") instanceof Long number && number >= 0 && number <= Integer.MAX_VALUE ? number.intValue() : null;
    }

    static Fault broken(String why) {
        return new Fault("a broken answer: " + why, true);
    }

    static String text(Map<String, Object> from, String name) throws Fault {
        if (from.get(name) instanceof String text) {
            return text;
        }
        throw new Fault("a broken answer: no " + name, true);
    }

    static long number(Map<String, Object> from, String name) throws Fault {
        if (from.get(name) instanceof Long number && number >= 0 && number <= MAX_TOKEN) {
            return number;
        }
        throw new Fault("a broken answer: " + name + " is missing or out of range", true);
    }

    static long token(Map<String, Object> from) throws Fault {
        return token(from, "fencing_token");
    }

    static long token(Map<String, Object> from, String name) throws Fault {
        long token = number(from, name);
        if (token == 0) {
            throw new Fault("a broken answer: " + name + " is 0", true);
        }
        return token;
    }

    /** No lease is longer than a wait and a TTL, two days. A bound keeps the results of computations in range. */
    static Duration duration(long milliseconds) {
        return Duration.ofMillis(Math.min(milliseconds, LONGEST_MS));
    }
}
