package example.palisade.testing;

import example.palisade.Client;
import example.palisade.Holder;
import example.palisade.internal.Exchange;
import example.palisade.internal.Json;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.function.UnaryOperator;

/**
 * A server in memory, for unit tests: no program, no socket. Its clients are real ones, which renew, count deadlines and lose
 * leases as they do in production; only the server is a double. The tests of this client run against it and against the real
 * server.
 *
 * <pre>{@code
 * MemoryServer server = new MemoryServer();
 * server.hold("orders", "another");
 * try (Client client = server.client()) {
 *     assertFalse(job.run(client)); // it finds the lock taken
 * }
 * }</pre>
 *
 * <p>Time is real: a test that waits for a loss takes a lease of a few hundred milliseconds. A client learns that its lease
 * {@linkplain #expire expired} or was {@linkplain #revoke revoked} as in production: from a notice, in a moment, and without
 * notices at its next renewal, after a third of the lease.
 *
 * <p>It has no disk, access rules, quotas, TLS, cluster, audit file or signed tokens, and promises nothing about them.
 */
public final class MemoryServer {
    /** A request that nobody waits for keeps its place for so long. */
    private static final long PLACE = 2_000 * Authority.MS;
    private static final int MAX_PAGE = 1_000;
    private static final int MAX_LISTENED = 100;
    private static final long LISTEN_MS = 20_000;
    private static final long MAX_LISTEN_MS = 60_000;

    private final Authority authority = new Authority();
    private final Map<String, Waiter> requests = new HashMap<>();
    private final long start = System.nanoTime();
    private boolean down;
    private boolean stalled;
    /** Broken connections have an older one. */
    private int connections;

    /** A server without locks. */
    public MemoryServer() {}

    /** A client of this server, with the usual settings. */
    public Client client() {
        return client(builder -> builder);
    }

    /** A client of this server: {@code server.client(builder -> builder.patience(Duration.ofMillis(200)))}. */
    public Client client(UnaryOperator<Client.Builder> settings) {
        return settings.apply(Client.builder()).exchange(new Line()).build();
    }

    /** A lock that somebody else has. */
    public interface Held extends AutoCloseable {
        /** Its fencing token. */
        long token();

        /** Releases it, if it was not ended before. */
        @Override
        void close();
    }

    /** Has somebody else take a free lock, for a day. */
    public Held hold(String lock) {
        return hold(lock, "other");
    }

    /** As {@link #hold(String)}, with that client id. */
    public synchronized Held hold(String lock, String clientId) {
        Waiter waiter = new Waiter(lock, Map.of(
                "client_id", clientId, "lease_duration_ms", Duration.ofDays(1).toMillis()));
        authority.settle(now());
        authority.ask(waiter, now());
        if (waiter.granted == null) {
            Told denial = waiter.refusal == null ? authority.denial(waiter, now()) : waiter.refusal;
            authority.abandon(waiter, now());
            throw new IllegalStateException("\"" + lock + "\" is not free: " + Json.write(denial.body()));
        }
        notifyAll();
        Grant grant = waiter.granted.get(0);
        return new Held() {
            @Override
            public long token() {
                return grant.token;
            }

            @Override
            public void close() {
                end(lock, grant.number, "released", null);
            }
        };
    }

    /** The lock's holders expire at once. */
    public void expire(String lock) {
        end(lock, null, "expired", null);
    }

    /** An operator takes the lock from its holders. */
    public void revoke(String lock, String reason) {
        end(lock, null, "revoked", reason);
    }

    private synchronized void end(String lock, Long number, String how, String reason) {
        authority.settle(now());
        authority.end(lock, number, how, reason, now());
        notifyAll();
    }

    /** Answers everything with {@code unavailable} from now on, and ends watches. */
    public synchronized void down() {
        down = true;
        connections++;
        notifyAll();
    }

    /** Answers nothing from now on: requests wait until {@link #up}, or until their time is over. */
    public synchronized void stall() {
        stalled = true;
    }

    /** Answers again, after {@link #down} or {@link #stall}. */
    public synchronized void up() {
        down = false;
        stalled = false;
        notifyAll();
    }

    /** The fencing tokens of all grants of that lock, oldest first. */
    public synchronized List<Long> tokens(String lock) {
        authority.settle(now());
        return authority.tokens(lock);
    }

    /** The holder, of several the oldest. */
    public synchronized Optional<Holder> holder(String lock) {
        authority.settle(now());
        return authority.holders(lock).stream().findFirst().map(grant -> new Holder(
                grant.asked.clientId, grant.token, Duration.ofMillis(grant.remainingMs(now())), grant.value, grant.acquiredAt,
                grant.grantId(), grant.slots));
    }

    private long now() {
        return System.nanoTime() - start;
    }

    private void waitUntil(long instant) throws InterruptedException {
        long left = instant - now();
        if (left > 0) {
            // Rounded up, or it would be asked in a loop.
            wait(Math.min(left / Authority.MS + 1, Integer.MAX_VALUE));
        }
    }

    private void awaitAnswers(long until) throws Exchange.Silence, InterruptedException {
        while (stalled) {
            if (now() >= until) {
                throw new Exchange.Silence("the server did not answer in time", false, true);
            }
            waitUntil(until);
        }
    }

    /** Carries requests out in their callers' threads. */
    private final class Line implements Exchange {
        @Override
        public Answer<String> ask(String address, String method, String path, String body, long limit)
                throws Silence, InterruptedException {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            synchronized (MemoryServer.this) {
                long until = now() + limit;
                awaitAnswers(until);
                Told told = down ? Told.refused("unavailable", "the server is down")
                        : carryOut(path, body == null ? Map.of() : Json.object(body), until);
                MemoryServer.this.notifyAll();
                awaitAnswers(until);
                return new Answer<>(told.status(), Json.write(told.body()), null);
            }
        }

        @Override
        public Answer<InputStream> open(String address, String path, long limit) throws Silence, InterruptedException {
            synchronized (MemoryServer.this) {
                awaitAnswers(now() + limit);
                Map<String, String> query = query(path);
                long after = query.containsKey("after_revision")
                        ? Long.parseLong(query.get("after_revision")) : authority.revision();
                Told refused = down ? Told.refused("unavailable", "the server is down")
                        : after > authority.revision() ? Told.refused("invalid", "the revision is another authority's") : null;
                InputStream stream = refused == null ? new Changes(query.get("prefix"), after)
                        : new ByteArrayInputStream(Json.write(refused.body()).getBytes(StandardCharsets.UTF_8));
                return new Answer<>(refused == null ? 200 : refused.status(), stream, null);
            }
        }
    }

    private static Map<String, String> query(String path) {
        Map<String, String> query = new HashMap<>();
        int at = path.indexOf('?');
        for (String one : at < 0 ? new String[0] : path.substring(at + 1).split("&")) {
            String[] both = one.split("=", 2);
            query.put(both[0], decoded(both[1]));
        }
        return query;
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private Told carryOut(String path, Map<String, Object> asked, long until) throws Exchange.Silence, InterruptedException {
        long now = now();
        authority.settle(now);
        String[] words = path.split("\\?")[0].split("/");
        String name = words.length > 3 ? decoded(words[3]) : "";
        String verb = words.length > 4 ? words[4] : "";
        return switch (words[2]) {
            case "requests" -> abandon(name, now);
            case "listen" -> listen(asked, now, until);
            case "status" -> Told.ok(new LinkedHashMap<>(Map.of("authority", authority.id, "version", "memory")));
            default -> words.length == 3 ? list(query(path), now) : about(name, verb, asked, now, until);
        };
    }

    private Told about(String name, String verb, Map<String, Object> asked, long now, long until)
            throws Exchange.Silence, InterruptedException {
        return switch (verb) {
            case "" -> Told.ok(authority.show(name, now));
            case "acquire" -> acquire(name, asked, now, until);
            case "renew", "release", "proclaim" -> authority.hold(verb, name, asked, now);
            case "rejections" -> refused(name, asked);
            case "break" -> takeAway(name, asked, now);
            case "permits" -> authority.resize(name, ((Long) asked.get("of")).intValue(), now);
            default -> Told.refused("refused", "the double has no " + verb);
        };
    }

    /** Answers when there is something to say about a grant, or when the time is over. */
    private Told listen(Map<String, Object> asked, long arrived, long until) throws Exchange.Silence, InterruptedException {
        List<?> grants = asked.get("grants") instanceof List<?> list ? list : List.of();
        long wait = asked.get("wait_ms") instanceof Long ms ? ms : LISTEN_MS;
        if (grants.isEmpty() || grants.size() > MAX_LISTENED || wait < 0 || wait > MAX_LISTEN_MS) {
            return Told.refused("invalid", "1 to " + MAX_LISTENED + " grants, and a wait_ms of 0 to " + MAX_LISTEN_MS + ", are allowed");
        }
        Set<List<Object>> names = new HashSet<>();
        for (Object one : grants) {
            Map<String, Object> grant = Json.asObject(one);
            if (grant == null || !(grant.get("resource_id") instanceof String lock) || !(grant.get("lock_token") instanceof String)
                    || !(grant.get("fencing_token") instanceof Long number)) {
                return Told.refused("invalid", "a grant needs resource_id, lock_token and fencing_token");
            }
            if (!names.add(List.of(lock, number))) {
                return Told.refused("invalid", "the grant " + number + " of \"" + lock + "\" is named twice");
            }
        }
        long ends = arrived + wait * Authority.MS;
        while (true) {
            if (down) {
                return Told.refused("unavailable", "the server is down");
            }
            List<Map<String, Object>> told =
                    grants.stream().map(grant -> authority.notice(Json.asObject(grant))).filter(Objects::nonNull).toList();
            if (!told.isEmpty() || now() >= ends) {
                return Told.ok(new LinkedHashMap<>(Map.of("notices", told)));
            }
            if (now() >= until) {
                throw new Exchange.Silence("the server did not answer in time", false, true);
            }
            waitUntil(Math.min(Math.min(ends, until), authority.nextChange()));
            authority.settle(now());
        }
    }

    private Told list(Map<String, String> query, long now) {
        String after = query.getOrDefault("cursor", "");
        List<String> names = authority.held(query.getOrDefault("prefix", "")).stream()
                .filter(name -> name.compareTo(after) > 0).toList();
        List<String> page = names.subList(0, Math.min(names.size(), MAX_PAGE));
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("locks", page.stream().map(name -> authority.show(name, now)).toList());
        body.put("next_cursor", page.size() < names.size() ? page.get(page.size() - 1) : null);
        return Told.ok(body);
    }

    private Told takeAway(String name, Map<String, Object> asked, long now) {
        Long token = (Long) asked.get("fencing_token");
        if (authority.holders(name).isEmpty()) {
            return Told.refused("not_held", "nobody holds the lock");
        }
        if (!authority.end(name, token, "revoked", (String) asked.get("reason"), now)) {
            return Told.refused("stale", "the lock is held with another token");
        }
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("resource_id", name);
        body.put("revoked", true);
        body.put("fencing_token", token);
        return Told.ok(body);
    }

    /** A report of a late write, for a grant that there was. */
    private Told refused(String name, Map<String, Object> asked) {
        if (!(asked.get("fencing_token") instanceof Long token) || !(asked.get("highest") instanceof Long highest)
                || !(asked.get("resource") instanceof String)) {
            return Told.refused("invalid", "fencing_token, resource and highest are needed");
        }
        return Told.ok(new LinkedHashMap<>(Map.of("recorded", token < highest && authority.tokens(name).contains(token))));
    }

    private Told abandon(String id, long now) {
        Waiter waiter = requests.get(id);
        if (waiter != null) {
            authority.abandon(waiter, now);
            waiter.attempt++;
        } else {
            waiter = new Waiter("", Map.of());
            requests.put(id, waiter);
        }
        waiter.granted = null;
        waiter.refusal = Told.refused("abandoned", "this request_id was abandoned: choose a new one");
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("request_id", id);
        body.put("abandoned", true);
        return Told.ok(body);
    }

    /** Waits as {@code wait_ms} and {@code poll_ms} say, and keeps the place of a request that nobody waits for. */
    private Told acquire(String name, Map<String, Object> asked, long arrived, long until)
            throws Exchange.Silence, InterruptedException {
        String id = (String) asked.get("request_id");
        long wait = Waiter.ms(asked, "wait_ms");
        Waiter waiter = requests.get(id);
        if (waiter == null || waiter.orphanUntil != null && waiter.orphanUntil <= arrived) {
            waiter = new Waiter(name, asked);
            requests.put(id, waiter);
            waiter.deadline = arrived + wait;
            authority.ask(waiter, arrived);
        } else if (wait == 0) {
            waiter.deadline = arrived;
        }
        waiter.orphanUntil = null;
        int mine = ++waiter.attempt;
        // The attempt before learns that this one took its place.
        notifyAll();
        authority.settle(arrived);
        long poll = asked.containsKey("poll_ms") ? arrived + Waiter.ms(asked, "poll_ms") : Long.MAX_VALUE;
        try {
            while (!waiter.isDecided() && waiter.attempt == mine) {
                long now = now();
                if (now >= waiter.deadline) {
                    waiter.refusal = authority.denial(waiter, now);
                    authority.leave(waiter, now);
                } else if (down) {
                    return Told.refused("unavailable", "the server is down");
                } else if (now >= poll && !stalled) {
                    Map<String, Object> body = new LinkedHashMap<>();
                    body.put("resource_id", name);
                    body.put("lock_acquired", false);
                    body.put("waiting", true);
                    return new Told(202, body);
                } else if (now >= until) {
                    throw new Exchange.Silence("the server did not answer in time", false, true);
                } else {
                    long answers = Math.min(stalled ? until : poll, until);
                    waitUntil(Math.min(Math.min(waiter.deadline, answers), authority.nextChange()));
                    authority.settle(now());
                }
            }
        } finally {
            if (!waiter.isDecided() && waiter.attempt == mine) {
                waiter.orphanUntil = now() + PLACE;
            }
        }
        if (waiter.attempt != mine) {
            return waiter.refusal != null ? waiter.refusal : Told.refused("unknown_outcome", "the request was repeated");
        }
        return waiter.refusal != null ? waiter.refusal : authority.answer(waiter, arrived, now());
    }

    /** The stream of a watch. */
    private final class Changes extends InputStream {
        private final String prefix;
        private final int connection = connections;
        private int next;
        private byte[] line = new byte[0];
        private int at;
        private boolean closed;

        Changes(String prefix, long after) {
            this.prefix = prefix;
            this.next = (int) after;
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] into, int offset, int length) throws IOException {
            synchronized (MemoryServer.this) {
                while (at == line.length) {
                    if (closed || connection != connections) {
                        throw new IOException("the connection broke");
                    }
                    authority.settle(now());
                    fill();
                    if (at == line.length) {
                        try {
                            waitUntil(authority.nextChange());
                        } catch (InterruptedException gone) {
                            Thread.currentThread().interrupt();
                            throw new InterruptedIOException("interrupted");
                        }
                    }
                }
                int many = Math.min(length, line.length - at);
                System.arraycopy(line, at, into, offset, many);
                at += many;
                return many;
            }
        }

        private void fill() {
            StringBuilder text = new StringBuilder();
            for (; next < authority.changes.size() && !stalled; next++) {
                Authority.Change change = authority.changes.get(next);
                if (change.lock().startsWith(prefix)) {
                    text.append("event: ").append(change.kind()).append("\nid: ").append(change.revision())
                            .append("\ndata: ").append(Json.write(change.fields())).append("\n\n");
                }
            }
            line = text.toString().getBytes(StandardCharsets.UTF_8);
            at = 0;
        }

        @Override
        public void close() {
            synchronized (MemoryServer.this) {
                closed = true;
                MemoryServer.this.notifyAll();
            }
        }
    }
}
