package example.palisade.testing;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;

/**
 * The double's decisions: locks, leases and queues, by the rules of docs/promise/rules.md (A1, A2, A8 – A10, S1 – S10, P1 – P6,
 * M1 – M3, E1 – E4, D1, D4). Its owner calls it from one thread at a time, and passes the time.
 */
final class Authority {
    static final long MS = 1_000_000;

    private static final int MAX_PERMITS = 64;

    /** A change that watchers see. */
    record Change(long revision, String kind, String lock, Map<String, Object> fields) {}

    /** A lock that somebody has, had, or waits for. */
    private static final class Lock {
        final List<Grant> holders = new ArrayList<>();
        final List<Long> tokens = new ArrayList<>();
        long closedUntil;
        /** Of a semaphore in use, else 0. */
        int permits;

        List<Integer> freeSlots() {
            List<Integer> free = new ArrayList<>();
            for (int slot = 1; slot <= permits; slot++) {
                int wanted = slot;
                if (holders.stream().noneMatch(grant -> grant.slots.contains(wanted))) {
                    free.add(slot);
                }
            }
            return free;
        }
    }

    /** In the way of a request: a holder, or the time for which the lock stays closed. */
    private record Obstacle(Grant holder, long closed) {}

    private record Ended(String lock, long number) {}

    /** {@code key} is that of its lease; {@code reason} may be null. */
    private record Ending(String how, String key, String reason) {}

    final String id = UUID.randomUUID().toString().replace("-", "");
    final List<Change> changes = new ArrayList<>();
    private final Map<String, Lock> locks = new TreeMap<>();
    private final Map<String, Grant.Lease> leases = new HashMap<>();
    private final List<Waiter> queue = new ArrayList<>();
    private final Map<Ended, Ending> ended = new HashMap<>();
    private long counter;

    private Lock lock(String name) {
        return locks.computeIfAbsent(name, fresh -> new Lock());
    }

    long revision() {
        return changes.size();
    }

    /** Carries out what time has done. */
    void settle(long now) {
        leases.values().stream().filter(lease -> lease.expires <= now)
                .sorted(Comparator.comparingLong(lease -> lease.expires)).toList()
                .forEach(lease -> List.copyOf(lease.grants).forEach(grant -> end(grant, "expired", null, now)));
        queue.removeIf(waiter -> waiter.orphanUntil != null && waiter.orphanUntil <= now);
        admit(now);
    }

    /** When {@link #settle} has something to do, unless somebody asks before. */
    long nextChange() {
        long next = Long.MAX_VALUE;
        for (Grant.Lease lease : leases.values()) {
            next = Math.min(next, lease.expires);
        }
        for (Waiter waiter : queue) {
            next = waiter.orphanUntil == null ? next : Math.min(next, waiter.orphanUntil);
            for (String name : waiter.names) {
                long opens = lock(name).closedUntil;
                next = opens == 0 ? next : Math.min(next, opens);
            }
        }
        return next;
    }

    /** Grants what the queue allows: upgrades first, then in the order of arrival; nobody overtakes at any lock. */
    private void admit(long now) {
        for (Lock lock : locks.values()) {
            lock.closedUntil = lock.closedUntil <= now ? 0 : lock.closedUntil;
        }
        List<Waiter> ordered = new ArrayList<>(queue);
        ordered.sort(Comparator.comparing(waiter -> !waiter.mode.equals("upgrade")));
        Set<String> taken = new HashSet<>();
        for (Waiter waiter : ordered) {
            boolean goesAhead = waiter.mode.equals("upgrade") || waiter.names.stream().noneMatch(taken::contains);
            if (goesAhead && waiter.orphanUntil == null && obstacle(waiter, now) == null) {
                queue.remove(waiter);
                grant(waiter, now);
            } else {
                taken.addAll(waiter.names);
            }
        }
        for (Map.Entry<String, Lock> each : locks.entrySet()) {
            boolean wanted = queue.stream().anyMatch(waiter -> waiter.names.contains(each.getKey()));
            if (each.getValue().holders.isEmpty() && !wanted) {
                each.getValue().permits = 0;
            }
        }
    }

    private Obstacle obstacle(Waiter waiter, long now) {
        for (String name : waiter.names) {
            Lock lock = lock(name);
            if (now < lock.closedUntil && waiter.key == null) {
                return new Obstacle(null, lock.closedUntil - now);
            }
            if (waiter.isSemaphore()) {
                if (lock.freeSlots().size() < waiter.count) {
                    return new Obstacle(lock.holders.get(0), 0);
                }
                continue;
            }
            for (Grant holder : lock.holders) {
                if (isInTheWay(holder, waiter)) {
                    return new Obstacle(holder, 0);
                }
            }
        }
        return null;
    }

    private static boolean isInTheWay(Grant holder, Waiter waiter) {
        boolean own = holder.asked.clientId.equals(waiter.clientId);
        return switch (waiter.mode) {
            case "downgrade" -> false;
            case "upgrade" -> !holder.lease.key.equals(waiter.key);
            case "update" -> holder.isUpdate() || !holder.isReader() && !own;
            case "shared" -> !holder.isReader() && !own;
            default -> !own;
        };
    }

    private void grant(Waiter waiter, long now) {
        Grant.Lease lease = leases.get(waiter.key);
        if (lease == null) {
            lease = new Grant.Lease(UUID.randomUUID().toString().replace("-", ""), waiter.ttl);
            lease.expires = now + lease.ttl;
        }
        long number = ++counter;
        List<Grant> granted = new ArrayList<>();
        for (String name : waiter.names) {
            Lock lock = lock(name);
            for (Grant holder : List.copyOf(lock.holders)) {
                boolean replaced = waiter.isReader() ? !holder.isReader() : !waiter.isSemaphore();
                if (replaced) {
                    end(holder, "superseded", null, now);
                }
            }
            boolean joins = waiter.isReader() && !lock.holders.isEmpty();
            long token = joins ? lock.holders.get(0).token : number;
            List<Integer> slots = waiter.isSemaphore() ? List.copyOf(lock.freeSlots().subList(0, waiter.count)) : List.of();
            Grant grant = new Grant(name, lease, waiter, token, number, slots, now);
            lock.holders.add(grant);
            lock.tokens.add(token);
            granted.add(grant);
            change("granted", grant, null);
        }
        lease.grants.addAll(granted);
        leases.put(lease.key, lease);
        waiter.granted = granted;
    }

    private void change(String kind, Grant grant, String reason) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("revision", revision() + 1);
        fields.put("time", Instant.now().truncatedTo(ChronoUnit.MILLIS).toString());
        fields.put("resource_id", grant.lock);
        fields.put("client_id", grant.asked.clientId);
        fields.put("fencing_token", grant.token);
        fields.put("grant_id", grant.grantId());
        fields.put("reason", reason);
        changes.add(new Change(revision() + 1, kind, grant.lock, fields));
    }

    private void end(Grant grant, String how, String reason, long now) {
        Lock lock = lock(grant.lock);
        lock.holders.remove(grant);
        grant.lease.grants.remove(grant);
        if (grant.lease.grants.isEmpty()) {
            leases.remove(grant.lease.key);
        }
        ended.put(new Ended(grant.lock, grant.number), new Ending(how, grant.lease.key, reason));
        if (how.equals("expired") || how.equals("revoked")) {
            lock.closedUntil = Math.max(lock.closedUntil, now + grant.asked.lockDelay);
        }
        if (grant.asked.atLeast > 0) {
            lock.closedUntil = Math.max(lock.closedUntil, grant.grantedAt + grant.asked.atLeast);
        }
        change(how, grant, reason);
        for (Waiter waiter : List.copyOf(queue)) {
            // An upgrade ends with the grant of its reader.
            boolean ends = waiter.mode.equals("upgrade") && grant.lease.key.equals(waiter.key)
                    && waiter.names.contains(grant.lock);
            if (ends) {
                queue.remove(waiter);
                waiter.refusal = over(grant.lock, grant.number);
            }
        }
    }

    /** Takes a new request in: it is decided, or it waits. */
    void ask(Waiter waiter, long now) {
        waiter.refusal = invalid(waiter);
        if (waiter.refusal == null) {
            if (waiter.isSemaphore()) {
                lock(waiter.names.get(0)).permits = waiter.of;
            }
            queue.add(waiter);
            admit(now);
        }
    }

    private Told invalid(Waiter waiter) {
        if (!waiter.clientId.matches("[ -~]{1,255}")) {
            return Told.refused("invalid", "the client id has 1 to 255 printable ASCII characters");
        }
        Lock lock = lock(waiter.names.get(0));
        boolean used = !lock.holders.isEmpty() || queue.stream().anyMatch(other -> other.names.contains(waiter.names.get(0)));
        if (waiter.isSemaphore() && (waiter.count < 1 || waiter.count > waiter.of || waiter.of > MAX_PERMITS)) {
            return Told.refused("invalid", "permits: 1 to " + MAX_PERMITS + " of them, and no more than there are");
        }
        if (used && lock.permits != waiter.of) {
            return Told.refused("invalid", "the lock has " + lock.permits + " permits, and the request is for one of "
                    + waiter.of + " (0: no semaphore)");
        }
        if (waiter.key == null) {
            return null;
        }
        boolean knows = lock.holders.stream().anyMatch(grant -> grant.lease.key.equals(waiter.key)
                && (waiter.mode.equals("upgrade") ? grant.isUpdate() : !grant.isReader()));
        boolean second = queue.stream().anyMatch(other -> waiter.key.equals(other.key));
        return knows && !second ? null
                : Told.refused("invalid", "under this lease the lock is not held in a mode that can change so, or it waits already");
    }

    /** It waits no longer. */
    void leave(Waiter waiter, long now) {
        queue.remove(waiter);
        admit(now);
    }

    /** Refuses a request whose time is over. */
    Told denial(Waiter waiter, long now) {
        Obstacle obstacle = obstacle(waiter, now);
        Map<String, Object> more = new LinkedHashMap<>();
        Told told;
        if (obstacle == null) {
            told = Told.refused("held", "other requests wait, and come first");
        } else if (obstacle.holder() == null) {
            more.put("retry_after_ms", obstacle.closed() / MS + 1);
            told = Told.refused("delayed", "its last grant keeps it closed", more);
        } else {
            Grant holder = obstacle.holder();
            more.put("retry_after_ms", holder.remainingMs(now));
            told = Told.refused("held", "held by \"" + holder.asked.clientId + "\" with fencing token " + holder.token, more);
            told.body().put("holder", holder.shown(now));
        }
        told.body().put("resource_id", waiter.names.get(0));
        told.body().put("lock_acquired", false);
        return told;
    }

    /** Answers a request that was granted, or the end of what it was granted; {@code arrived}: when this attempt came. */
    Told answer(Waiter waiter, long arrived, long now) {
        Grant grant = waiter.granted.get(0);
        if (!lock(grant.lock).holders.contains(grant)) {
            return over(grant.lock, grant.number);
        }
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("resource_id", grant.lock);
        body.put("lock_acquired", true);
        body.put("lock_token", grant.lease.key);
        body.put("fencing_token", grant.token);
        body.put("grant_id", grant.grantId());
        body.put("slots", grant.slots.isEmpty() ? null : grant.slots);
        body.put("lease_duration_ms", grant.lease.ttl / MS);
        body.put("valid_for_ms", (grant.lease.expires - arrived) / MS);
        body.put("waited_ms", Math.max(grant.grantedAt - arrived, 0) / MS);
        body.put("remaining_ms", grant.remainingMs(now));
        body.put("acquired_at", grant.acquiredAt);
        body.put("authority", id);
        return Told.ok(body);
    }

    private Grant find(String name, Map<String, Object> asked) {
        for (Grant grant : lock(name).holders) {
            if (grant.lease.key.equals(asked.get("lock_token")) && asked.get("fencing_token").equals(grant.number)) {
                return grant;
            }
        }
        return null;
    }

    private String howEnded(String name, long number) {
        Ending ending = ended.get(new Ended(name, number));
        return ending == null ? null : ending.how();
    }

    private Told over(String name, long number) {
        String how = howEnded(name, number);
        boolean stale = how == null && !lock(name).holders.isEmpty();
        String code = stale ? "stale" : how == null || how.equals("released") ? "not_held" : how;
        return Told.refused(code, "the grant with fencing token " + number + " is over: " + (how == null ? code : how),
                new HashMap<>(Map.of("fencing_token", number)));
    }

    /** Carries out an operation of a holder: renew, release, proclaim. */
    Told hold(String verb, String name, Map<String, Object> asked, long now) {
        long number = asked.get("fencing_token") instanceof Long given ? given : 0;
        Grant grant = find(name, asked);
        boolean again = verb.equals("release") && "released".equals(howEnded(name, number));
        if (grant == null && !again) {
            return over(name, number);
        }
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("resource_id", name);
        if (verb.equals("release")) {
            body.put("fencing_token", number);
            body.put("released", true);
            body.put("already_released", again);
            body.put("authority", id);
            if (!again) {
                end(grant, "released", null, now);
                admit(now);
            }
            return Told.ok(body);
        }
        body.put("fencing_token", grant.token);
        if (verb.equals("proclaim")) {
            if (grant.isReader() || !grant.slots.isEmpty()) {
                return Told.refused("invalid", "only the holder of an exclusive grant leads");
            }
            String value = (String) asked.get("value");
            grant.value = value.isEmpty() ? null : value;
            change("proclaimed", grant, null);
            body.put("revision", revision());
            return Told.ok(body);
        }
        if (asked.containsKey("lease_duration_ms")) {
            grant.lease.ttl = Waiter.ms(asked, "lease_duration_ms");
        }
        grant.lease.expires = Math.max(grant.lease.expires, now + grant.lease.ttl);
        body.put("authority", id);
        body.put("lease_duration_ms", grant.lease.ttl / MS);
        body.put("valid_for_ms", (grant.lease.expires - now) / MS);
        body.put("remaining_ms", grant.remainingMs(now));
        body.put("waiters", waiters(grant.lease.grants.stream().map(each -> each.lock).toList()));
        return Told.ok(body);
    }

    /** What there is to say about a grant that a holder names; null: nothing. */
    Map<String, Object> notice(Map<String, Object> asked) {
        String name = (String) asked.get("resource_id");
        long number = (Long) asked.get("fencing_token");
        Map<String, Object> notice = new LinkedHashMap<>();
        notice.put("resource_id", name);
        notice.put("fencing_token", number);
        if (find(name, asked) == null) {
            Ending ending = ended.get(new Ended(name, number));
            boolean known = ending != null && ending.key().equals(asked.get("lock_token"));
            notice.put("event", "ended");
            notice.put("how", known ? ending.how() : "unknown");
            notice.put("reason", known ? ending.reason() : null);
            return notice;
        }
        long waiters = waiters(List.of(name));
        long before = asked.get("waiters") instanceof Long said ? said : 0;
        notice.put("event", "wanted");
        notice.put("waiters", waiters);
        return waiters > before || waiters == 0 && before > 0 ? notice : null;
    }

    /** How many requests wait for any of these locks. */
    private long waiters(List<String> names) {
        return queue.stream().filter(waiter -> waiter.names.stream().anyMatch(names::contains)).count();
    }

    /** What was granted is released, and reserves nothing. */
    void abandon(Waiter waiter, long now) {
        queue.remove(waiter);
        for (Grant grant : waiter.granted == null ? List.<Grant>of() : waiter.granted) {
            if (lock(grant.lock).holders.contains(grant)) {
                end(grant, "released", null, now);
                lock(grant.lock).closedUntil = 0;
            }
        }
        admit(now);
    }

    /** An operator, or a test, ends the holders of a lock: all, or the one of that number. */
    boolean end(String name, Long number, String how, String reason, long now) {
        List<Grant> ending = lock(name).holders.stream().filter(grant -> number == null || grant.number == number).toList();
        ending.forEach(grant -> end(grant, how, reason, now));
        admit(now);
        return !ending.isEmpty();
    }

    Told resize(String name, int of, long now) {
        Lock lock = lock(name);
        if (lock.permits == 0 || of < 1 || of > MAX_PERMITS) {
            return Told.refused("invalid", "it is no semaphore in use, or the number is not 1 to " + MAX_PERMITS);
        }
        lock.permits = of;
        admit(now);
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("resource_id", name);
        body.put("permits", of);
        return Told.ok(body);
    }

    /** The locks that are held. */
    List<String> held(String prefix) {
        return locks.entrySet().stream().filter(each -> !each.getValue().holders.isEmpty()).map(Map.Entry::getKey)
                .filter(name -> name.startsWith(prefix)).toList();
    }

    List<Grant> holders(String name) {
        return List.copyOf(lock(name).holders);
    }

    List<Long> tokens(String name) {
        return List.copyOf(lock(name).tokens);
    }

    Map<String, Object> show(String name, long now) {
        Lock lock = lock(name);
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("resource_id", name);
        body.put("revision", revision());
        body.put("waiters", waiters(List.of(name)));
        body.put("delayed_ms", lock.closedUntil > now ? (lock.closedUntil - now) / MS + 1 : null);
        List<Map<String, Object>> holders = lock.holders.stream().map(grant -> grant.shown(now)).toList();
        body.put("holder", holders.isEmpty() ? null : holders.get(0));
        boolean together = !lock.holders.isEmpty() && (lock.permits > 0 || lock.holders.get(0).isReader());
        body.put("reader_count", together ? holders.size() : null);
        body.put("readers", together ? holders : null);
        body.put("permits", lock.permits > 0 ? lock.permits : null);
        return body;
    }
}
