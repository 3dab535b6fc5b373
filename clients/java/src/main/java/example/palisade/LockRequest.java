package example.palisade;

import example.palisade.internal.Json;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;

/** A request for a lock, or for several at once; every {@link #acquire} asks anew. It is for one thread. */
public final class LockRequest {
    private static final SecureRandom RANDOM = new SecureRandom();
    static final Duration SHORTEST_TTL = Duration.ofMillis(100);
    static final Duration DEFAULT_WAIT = Duration.ofSeconds(30);
    private static final Duration DAY = Duration.ofDays(1);
    private static final int MAX_METADATA_BYTES = 256;
    private static final int MAX_LOCKS = 64;
    /** A server that is asked to wait says so after this time: proxies end connections on which nothing comes. */
    private static final long POLL_TIME = 10 * Clock.SECOND;
    /** An address that did not answer last is asked to say so soon: it may be dead. */
    private static final long FIRST_POLL_TIME = Clock.SECOND;

    private final Client client;
    private final List<String> names;
    private Duration ttl = Duration.ofSeconds(15);
    /** Null: 30 s, and for a try none. */
    private Duration wait;
    private String clientId;
    private String metadata;
    private Mode mode = Mode.EXCLUSIVE;
    private Permits permits;
    /** The options of an exclusive grant, by their fields in a request; 0 is left out. */
    private final Map<String, Long> options = new LinkedHashMap<>();

    /** How a lock is asked for. */
    enum Mode {
        EXCLUSIVE,
        /** Beside other readers. */
        SHARED,
        /** As the one reader that may become the writer. */
        UPDATE,
        /** That reader becomes the writer. */
        UPGRADE;

        boolean isReader() {
            return this == SHARED || this == UPDATE;
        }
    }

    /** So many of a semaphore's permits. */
    record Permits(int count, int of) {}

    LockRequest(Client client, String... names) {
        this.client = client;
        this.names = checkedNames(names);
    }

    /** How long the lease lasts without renewal, 100 ms – 24 h. The default is 15 s. */
    public LockRequest ttl(Duration duration) {
        ttl = within("the TTL", duration, SHORTEST_TTL, DAY);
        return this;
    }

    /** How long to stay in the queue, 0 – 24 h; 0 tries once. The default is 30 s, and for {@link #tryAcquire} 0. */
    public LockRequest waitUpTo(Duration duration) {
        wait = within("the wait", duration, Duration.ZERO, DAY);
        return this;
    }

    /**
     * An id that is shown to others. A lock that a client id holds is granted to the same client id again at once, and its
     * earlier grant is over. By default each acquire has one of its own.
     */
    public LockRequest clientId(String id) {
        clientId = id;
        return this;
    }

    /** Text that is shown with the holder, at most 256 bytes. */
    public LockRequest metadata(String text) {
        metadata = checkedMetadata("the metadata", text);
        return this;
    }

    static String checkedMetadata(String what, String text) {
        int bytes = text == null ? 0 : text.getBytes(StandardCharsets.UTF_8).length;
        if (bytes > MAX_METADATA_BYTES) {
            throw PalisadeException.invalid(
                    what + " has " + bytes + " bytes; 0 to " + MAX_METADATA_BYTES + " are allowed");
        }
        return text;
    }

    /**
     * Asks for the lock as a reader, beside other readers; a writer keeps all of them out. Readers claim at the resource
     * before they read, and never write.
     */
    public LockRequest shared() {
        mode = Mode.SHARED;
        return this;
    }

    /**
     * Asks for the lock as the one reader that may become the writer, by {@link Lease#upgrade}, beside plain readers. It is
     * instead of {@link #shared}.
     */
    public LockRequest update() {
        mode = Mode.UPDATE;
        return this;
    }

    /**
     * Asks for {@code count} permits of a semaphore that has {@code of}, 1 – 64, all or none. Claim each of
     * {@link Lease#slotKeys}.
     */
    public LockRequest permits(int count, int of) {
        permits = new Permits(count, of);
        return this;
    }

    /** How long nobody is granted the lock after this grant expires or is revoked, 0 – 60 s. */
    public LockRequest lockDelay(Duration duration) {
        return option("lock_delay_ms", within("the lock-delay", duration, Duration.ZERO, Duration.ofMinutes(1)));
    }

    /** How long nobody else is granted the lock from this grant on, however early it is released, 0 – 24 h. */
    public LockRequest atLeastFor(Duration duration) {
        return option("at_least_for_ms", within("the time at least", duration, Duration.ZERO, DAY));
    }

    private LockRequest option(String field, Duration duration) {
        return option(field, Client.milliseconds(duration));
    }

    private LockRequest option(String field, long value) {
        if (value == 0) {
            options.remove(field);
        } else {
            options.put(field, value);
        }
        return this;
    }

    /**
     * Waits in the queue for as long as the request says. However it ends, no lock stays behind: a request that may have
     * been granted is abandoned in the background.
     *
     * @throws LockHeldException if another client keeps the lock
     * @throws PalisadeException if nobody answers, or the call is wrong
     * @throws InterruptedException if the thread is interrupted
     */
    public Lease acquire() throws InterruptedException {
        return wish(DEFAULT_WAIT).lease();
    }

    /**
     * As {@link #acquire}, in the background. If the future ends in another way, as by {@code cancel} or {@code orTimeout}, the
     * request is given up as if its thread were interrupted, and no lock stays behind. A future that is derived from it, as by
     * {@code thenApply}, does not pass its own cancellation on.
     */
    public CompletableFuture<Lease> acquireAsync() {
        return new Acquiring(client, wish(DEFAULT_WAIT)).lease();
    }

    private Wish wish(Duration otherwise) {
        boolean shared = mode != Mode.EXCLUSIVE;
        if (shared && permits != null) {
            throw PalisadeException.invalid("ask for a shared lock or for permits, not both");
        }
        if (names.size() > 1 && (shared || permits != null || !options.isEmpty())) {
            throw PalisadeException.invalid(
                    "several locks at once are exclusive: leave out shared, update, permits, lockDelay and atLeastFor");
        }
        return new Wish(client, this, wait == null ? otherwise : wait);
    }

    /** As {@link #acquire}, but it waits only if {@link #waitUpTo} was called; empty if another client has the lock. */
    public Optional<Lease> tryAcquire() throws InterruptedException {
        try {
            return Optional.of(wish(Duration.ZERO).lease());
        } catch (LockHeldException held) {
            return Optional.empty();
        }
    }

    static Duration within(String what, Duration given, Duration low, Duration high) {
        if (given == null) {
            throw PalisadeException.invalid(what + " is null: a Duration is needed, such as Duration.ofSeconds(10)");
        }
        if (given.compareTo(low) < 0 || given.compareTo(high) > 0) {
            // A duration may have more milliseconds than a number holds.
            String found = Math.abs(given.toSeconds() / 2) > DAY.toSeconds() ? given.toString() : given.toMillis() + " ms";
            throw PalisadeException.invalid(what + " is " + found + ": " + low.toMillis() + " ms to "
                    + high.toMillis() + " ms are allowed");
        }
        return given;
    }

    /** Sorted. */
    private static List<String> checkedNames(String... names) {
        if (names == null) {
            throw PalisadeException.invalid("names of locks are needed, and not null");
        }
        if (names.length < 1 || names.length > MAX_LOCKS) {
            throw PalisadeException.invalid(names.length + " locks are named; 1 to " + MAX_LOCKS + " are allowed");
        }
        Set<String> found = new TreeSet<>();
        for (String name : names) {
            if (!found.add(checkedName(name))) {
                throw PalisadeException.invalid("the lock \"" + name + "\" is named twice");
            }
        }
        return List.copyOf(found);
    }

    /** Also refuses "." and "..": proxies tidy them away, however they are written. */
    static String checkedName(String name) {
        if (name == null) {
            throw PalisadeException.invalid("the name of a lock is needed, and not null");
        }
        boolean printable = name.chars().allMatch(one -> one >= ' ' && one <= '~');
        if (name.isEmpty() || name.length() > 255 || !printable || name.equals(".") || name.equals("..")) {
            throw PalisadeException.invalid(
                    "\"" + name + "\" is not the name of a lock: 1 to 255 printable ASCII characters, not . or ..");
        }
        return name;
    }

    /** One acquire, with one request id until the outcome is known. */
    static final class Wish {
        private final Client client;
        private final List<String> names;
        private final Duration ttl;
        private final Duration wait;
        private final String clientId;
        private final String metadata;
        private final Mode mode;
        /** Of a semaphore, or null. */
        private final Permits permits;
        private final Map<String, Long> options;
        /** Under whose lease it comes, or null. */
        private final Granted under;
        /** The reader that this makes the writer, or null. */
        private final Lease reader;
        private final String requestId = random();
        /** An attempt is under way, or ended without certainty: it must be abandoned. */
        private boolean mayHaveHappened;
        private long firstSent;
        private long lastSent;

        Wish(Client client, LockRequest asked, Duration wait) {
            this.client = client;
            this.names = asked.names;
            this.ttl = asked.ttl;
            this.wait = wait;
            this.metadata = asked.metadata;
            this.clientId = asked.clientId == null ? client.host() + "-" + random() : asked.clientId;
            this.mode = asked.mode;
            this.permits = asked.permits;
            this.options = new LinkedHashMap<>(asked.options);
            this.under = null;
            this.reader = null;
        }

        /** Stands for the acquire of a lease that another process hands over. */
        Wish(Client client, Handed handed) {
            this.client = client;
            this.names = handed.names();
            this.ttl = handed.ttl();
            this.wait = Duration.ZERO;
            this.clientId = handed.clientId();
            this.metadata = handed.metadata();
            this.mode = handed.mode();
            this.permits = handed.permits();
            this.options = Map.of();
            this.under = null;
            this.reader = null;
        }

        private Wish(Wish before, Mode mode, Duration wait, Granted under, Lease reader) {
            this.client = before.client;
            this.names = before.names;
            this.ttl = before.ttl;
            this.wait = wait;
            this.metadata = before.metadata;
            this.clientId = before.clientId;
            this.mode = mode;
            this.permits = null;
            this.options = Map.of();
            this.under = under;
            this.reader = reader;
        }

        /** The request that makes the writer a reader. */
        Wish asReader(Granted under) {
            return new Wish(this, Mode.SHARED, Duration.ZERO, under, null);
        }

        /** The request that makes the reader in mode update the writer. */
        Wish asWriter(Lease reader, Duration wait, Granted under) {
            return new Wish(this, Mode.UPGRADE, wait, under, reader);
        }

        /** Sorted. */
        List<String> names() {
            return names;
        }

        /** The first one represents all of them in paths and messages. */
        String name() {
            return names.get(0);
        }

        String clientId() {
            return clientId;
        }

        Mode mode() {
            return mode;
        }

        /** Of a semaphore, or null. */
        Permits permits() {
            return permits;
        }

        /** Null if there is none. */
        String metadata() {
            return metadata;
        }

        /** The reader that this makes the writer, or null. */
        Lease reader() {
            return reader;
        }

        /**
         * Asks until the outcome is known; a grant that may exist without a known outcome is abandoned in the background.
         */
        Lease lease() throws InterruptedException {
            try {
                return new Lease(client, this, acquire());
            } finally {
                if (mayHaveHappened) {
                    client.inBackground(this::abandon);
                }
            }
        }

        private Granted acquire() throws InterruptedException {
            long waitUntil = Clock.earliest() + wait.toNanos();
            long giveUp = waitUntil + client.patience();
            Transport.Backoff backoff = new Transport.Backoff(giveUp, Client::sleepUntil);
            while (true) {
                if (reader != null) {
                    reader.check();
                }
                boolean earlier = mayHaveHappened;
                long t0 = Clock.earliest();
                mayHaveHappened = true;
                lastSent = t0;
                firstSent = firstSent == 0 ? t0 : firstSent;
                try {
                    Transport.Attempt attempt = attempt(t0, waitUntil, giveUp);
                    Reply reply = attempt.reply();
                    if (attempt.follow()) {
                        mayHaveHappened = earlier;
                        continue;
                    }
                    if (reply.waits()) {
                        if (Clock.earliest() + Transport.LEAST_TIME >= giveUp) {
                            throw new Reply.Fault("the server said that the request still waits, after its wait was over", true);
                        }
                        // It is asked again at once, and not in a loop if it said so at once.
                        Client.sleepUntil(t0 + Transport.FIRST_PAUSE);
                        continue;
                    }
                    reply.checkFault();
                    if (reply.status() != 200) {
                        mayHaveHappened = false;
                        if (reader != null && reply.over()) {
                            reader.lose(name(), reply.code());
                            reader.check();
                        }
                        throw reply.error();
                    }
                    Granted granted = granted(t0, reply.value());
                    if (reader != null) {
                        reader.makeWay();
                    }
                    mayHaveHappened = false;
                    return granted;
                } catch (Reply.Fault fault) {
                    if (!fault.unknown) {
                        mayHaveHappened = earlier;
                    }
                    backoff.after(fault);
                }
            }
        }

        /** Asks the current address, for as long as leaves time for the next one. */
        private Transport.Attempt attempt(long t0, long waitUntil, long giveUp) throws Reply.Fault, InterruptedException {
            Transport transport = client.transport();
            String address = transport.endpoints.current();
            // The last attempt of a wait waits a moment, too: then the answer says who holds the lock.
            long left = wait.isZero() ? 0 : Math.max(waitUntil - t0, Clock.MILLISECOND);
            long poll = transport.endpoints.isAlive(address) ? POLL_TIME : FIRST_POLL_TIME;
            long time = Transport.attemptTime(Math.min(left, poll), giveUp - t0, client.patience());
            return transport.attempt(address, request(left, poll), t0 + time);
        }

        /** Why an answer is not that of this request, or null. */
        private String differs(Reply answer) {
            Map<String, Object> wanted = new LinkedHashMap<>();
            if (answer.waits()) {
                wanted.put("lock_acquired", false);
                wanted.put("waiting", true);
            } else if (answer.status() == 200) {
                wanted.put("lock_acquired", true);
                if (under != null) {
                    wanted.put("authority", under.authority());
                    wanted.put("lock_token", under.leaseKey());
                }
            } else if (!answer.value().containsKey("resource_id")) {
                return null; // A denial names its lock, and other refusals do not.
            }
            wanted.put("resource_id", name());
            return answer.difference(wanted);
        }

        private Transport.Request request(long left, long poll) {
            Map<String, Object> body = new LinkedHashMap<>();
            body.put("client_id", clientId);
            if (under == null) {
                body.put("lease_duration_ms", Client.milliseconds(ttl));
            } else {
                body.put("lock_token", under.leaseKey());
            }
            if (mode != Mode.EXCLUSIVE) {
                body.put("mode", mode.name().toLowerCase(Locale.ROOT));
            }
            if (permits != null) {
                body.put("permits", Map.of("count", permits.count(), "of", permits.of()));
            }
            body.putAll(options);
            body.put("wait_ms", Client.milliseconds(Duration.ofNanos(left)));
            if (left > 0 && poll > 0) {
                body.put("poll_ms", poll / Clock.MILLISECOND);
            }
            body.put("request_id", requestId);
            if (names.size() > 1) {
                body.put("also", names.subList(1, names.size()));
            }
            body.put("metadata", metadata);
            return new Transport.Request(
                    "POST", Client.lockPath(name(), "/acquire"), Json.write(body), true, this::differs);
        }

        private Granted granted(long t0, Map<String, Object> value) throws Reply.Fault {
            List<Integer> slots = Reply.slots(value);
            if (slots.size() != (permits == null ? 0 : permits.count())) {
                throw Reply.broken("slots are not those that were asked for");
            }
            return new Granted(
                    t0, Reply.token(value), Reply.token(value, mode.isReader() ? "grant_id" : "fencing_token"),
                    Reply.text(value, "lock_token"), Reply.text(value, "authority"),
                    Reply.duration(Reply.number(value, "valid_for_ms")),
                    // Earlier attempts waited, too.
                    Reply.duration(Reply.number(value, "waited_ms")).plusNanos(t0 - firstSent), ttl, slots);
        }

        /**
         * Until the server has acknowledged it, or must have forgotten the grant by itself.
         *
         * <p>An upgrade may have been granted, and abandoning it would free the lock while the reader still believes. So as
         * long as the reader holds, the same request is tried once more: a denial settles it, and the reader goes on.
         */
        void abandon() throws InterruptedException {
            long until = lastSent + wait.toNanos() + 2 * ttl.toNanos();
            Transport.Backoff backoff = new Transport.Backoff(until, Client::sleepUntil);
            Transport.Request request = Transport.Request.post(
                    "/v1/requests/" + requestId + "/abandon", Map.of(),
                    Transport.Differs.unless(Map.of("request_id", requestId)));
            while (true) {
                try {
                    long limit = Math.min(until - Clock.earliest(), 2 * Clock.SECOND);
                    boolean settles = reader != null && reader.isHeld();
                    // It takes the place of an attempt that still waits at the server, and leaves the queue with its
                    // connection.
                    Reply reply = client.transport().send(settles ? request(0, 0) : request, limit);
                    reply.checkFault();
                    if (settles && (reply.status() == 200 || reply.over())) {
                        reader.lose(name(), reply.over() ? reply.code() : "superseded");
                    }
                    if (!settles || reply.status() != 200) {
                        return;
                    }
                } catch (Reply.Fault fault) {
                    backoff.after(fault);
                }
            }
        }

        private static String random() {
            byte[] bits = new byte[16];
            RANDOM.nextBytes(bits);
            return HexFormat.of().formatHex(bits);
        }
    }
}
