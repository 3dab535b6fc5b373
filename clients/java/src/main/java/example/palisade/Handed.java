package example.palisade;

import example.palisade.internal.Json;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** A lease on its way to another process. No deadline is among its fields: clocks of two machines differ. */
record Handed(List<String> names, String authority, long token, long number, String leaseKey, Duration ttl, String clientId,
        LockRequest.Mode mode, List<Integer> slots, LockRequest.Permits permits, String metadata) {
    private static final String HEAD = "palisade-lease/1.";
    private static final int MAX_PERMITS = 64;

    Handed(List<String> held, LockRequest.Wish wish, Granted grant) {
        this(held, grant.authority(), grant.token(), grant.number(), grant.leaseKey(), grant.ttl(), wish.clientId(), wish.mode(),
                grant.slots(), wish.permits(), wish.metadata());
    }

    String text() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("lock", names.get(0));
        fields.put("authority", authority);
        fields.put("fencing_token", token);
        fields.put("lock_token", leaseKey);
        fields.put("ttl_ms", Client.milliseconds(ttl));
        fields.put("client_id", clientId);
        fields.put("parts", names.size() > 1 ? names : null);
        fields.put("mode", mode.isReader() ? mode.name().toLowerCase(Locale.ROOT) : null);
        fields.put("grant_id", mode.isReader() ? number : null);
        fields.put("slots", slots.isEmpty() ? null : slots);
        fields.put("permits", permits == null ? null : permits.of());
        fields.put("metadata", metadata);
        byte[] json = Json.write(fields).getBytes(StandardCharsets.UTF_8);
        return HEAD + Base64.getUrlEncoder().withoutPadding().encodeToString(json);
    }

    /** No error repeats the text: it is a secret. */
    static Handed of(String text) {
        if (text == null || !text.strip().startsWith(HEAD)) {
            throw PalisadeException.invalid("it is not an exported lease: the text begins with " + HEAD);
        }
        try {
            byte[] json = Base64.getUrlDecoder().decode(text.strip().substring(HEAD.length()));
            return of(Json.object(new String(json, StandardCharsets.UTF_8)));
        } catch (Reply.Fault | IllegalArgumentException broken) {
            throw PalisadeException.invalid("it is not an exported lease: it was cut off or changed");
        }
    }

    private static Handed of(Map<String, Object> from) throws Reply.Fault {
        Set<String> names = new TreeSet<>(Set.of(LockRequest.checkedName(Reply.text(from, "lock"))));
        for (Object part : from.get("parts") instanceof List<?> parts ? parts : List.of()) {
            names.add(LockRequest.checkedName(part instanceof String name ? name : null));
        }
        LockRequest.Mode mode = LockRequest.Mode.EXCLUSIVE;
        if (from.get("mode") instanceof String name) {
            mode = LockRequest.Mode.valueOf(name.toUpperCase(Locale.ROOT));
        }
        LockRequest.Permits permits = null;
        List<Integer> slots = Reply.slots(from);
        if (from.containsKey("permits")) {
            permits = new LockRequest.Permits(slots.size(), (int) Math.min(Reply.number(from, "permits"), MAX_PERMITS));
        }
        long token = Reply.token(from);
        return new Handed(
                List.copyOf(names), Reply.text(from, "authority"), token, mode.isReader() ? Reply.token(from, "grant_id") : token,
                Reply.text(from, "lock_token"), Reply.duration(Reply.number(from, "ttl_ms")), Reply.text(from, "client_id"), mode,
                slots, permits, from.get("metadata") instanceof String metadata ? metadata : null);
    }

    /** Renews each lock. The lease counts from the first renewal that is acknowledged here, and the earliest deadline counts. */
    Lease adopt(Client client) throws InterruptedException {
        long until = Clock.earliest() + client.patience();
        Granted adopted = null;
        for (String name : names) {
            Transport.Timed told = renewed(client, name, until);
            Reply reply = told.reply();
            if (reply.over()) {
                // The others are useless without it.
                names.stream().filter(other -> !other.equals(name)).forEach(other -> release(client, other, until));
                throw new LeaseLostException(reply.code(), name, token);
            }
            if (reply.status() != 200) {
                throw reply.error();
            }
            try {
                Granted next = grant(
                        told.t0(), Reply.duration(Reply.number(reply.value(), "valid_for_ms")),
                        Reply.duration(Reply.number(reply.value(), "lease_duration_ms")));
                boolean earlier = adopted == null || end(next) < end(adopted);
                adopted = earlier ? next : adopted;
            } catch (Reply.Fault broken) {
                throw unavailable(broken.getMessage());
            }
        }
        return new Lease(client, new LockRequest.Wish(client, this), adopted);
    }

    private Transport.Timed renewed(Client client, String name, long until) throws InterruptedException {
        Granted asked = grant(0, Duration.ZERO, ttl);
        try {
            return client.transport().repeatTimed(asked.renewal(name, null), until, Client::sleepUntil);
        } catch (PalisadeException silent) {
            // A renewal that may have happened does no harm.
            throw silent.kind() == PalisadeException.Kind.UNKNOWN_OUTCOME ? unavailable(silent.getMessage()) : silent;
        }
    }

    private void release(Client client, String name, long until) {
        Transport.Request release = grant(0, Duration.ZERO, ttl).release(name);
        client.inBackground(() -> client.transport().repeat(release, until + client.patience(), Client::sleepUntil));
    }

    private Granted grant(long t0, Duration validFor, Duration lasts) {
        return new Granted(t0, token, number, leaseKey, authority, validFor, Duration.ZERO, lasts, slots);
    }

    private static long end(Granted grant) {
        return Hold.deadline(grant.t0(), grant.validFor().toNanos(), 0);
    }

    private static PalisadeException unavailable(String message) {
        return new PalisadeException(PalisadeException.Kind.UNAVAILABLE, "unavailable", message);
    }

    /** Never contains the lease key. */
    @Override
    public String toString() {
        return "lease that is handed over, fencing token " + token;
    }
}
