package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import example.palisade.internal.Json;
import example.palisade.testing.MemoryServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;

/** Requests that listen, at servers of many kinds. */
public final class ListeningTest {
    private static final long MS = 1_000_000;

    /** An answer; null: none ever comes. {@code nonce}: whether it is the server's own. */
    private record Answer(int status, String body, boolean nonce) {
        static Answer notices(Map<?, ?>... notices) {
            return new Answer(200, Json.write(Map.of("notices", List.of(notices))), true);
        }

        static Answer refused(int status, String code) {
            return new Answer(status, Json.write(Map.of("error", Map.of("code", code, "message", "m"))), true);
        }
    }

    private record Asked(long at, long waitMs, List<Map<String, Object>> grants) {}

    /** Grants everything. Requests that listen are answered as the test says. */
    private static final class Granting implements AutoCloseable {
        private final HttpServer server;
        private final ExecutorService threads = Executors.newCachedThreadPool();
        private final CountDownLatch end = new CountDownLatch(1);
        final List<Asked> asked = new ArrayList<>();
        private final Map<String, Integer> verbs = new HashMap<>();
        private volatile Function<List<Map<String, Object>>, Answer> answers = grants -> null;
        private volatile boolean newer = true;
        private volatile long validForMs = 30_000;

        Granting() throws IOException {
            server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.setExecutor(threads);
            server.createContext("/", this::answer);
            server.start();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort();
        }

        synchronized int requests() {
            return asked.size();
        }

        synchronized List<Asked> since(int before) {
            return List.copyOf(asked.subList(before, asked.size()));
        }

        synchronized int count(String verb) {
            return verbs.getOrDefault(verb, 0);
        }

        private void answer(HttpExchange exchange) throws IOException {
            String text = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            String[] path = exchange.getRequestURI().getPath().split("/");
            String verb = path[path.length - 1];
            Answer answer;
            if (verb.equals("listen")) {
                answer = listened(Json.object(text));
            } else {
                synchronized (this) {
                    verbs.merge(verb, 1, Integer::sum);
                }
                Map<String, Object> body = new HashMap<>(Map.of("resource_id", path[3], "authority", "a", "fencing_token", 7));
                body.put("valid_for_ms", validForMs);
                switch (verb) {
                    case "acquire" -> body.putAll(Map.of("lock_acquired", true, "lock_token", "k", "waited_ms", 0));
                    case "renew" -> body.putAll(newer ? Map.of("waiters", 0, "lease_duration_ms", 30_000) : Map.of());
                    default -> body.put("released", true);
                }
                answer = new Answer(200, Json.write(body), true);
            }
            if (answer != null) {
                if (answer.nonce()) {
                    String nonce = exchange.getRequestHeaders().getFirst("Palisade-Nonce");
                    exchange.getResponseHeaders().set("Palisade-Nonce", nonce);
                }
                byte[] body = answer.body().getBytes(StandardCharsets.UTF_8);
                exchange.sendResponseHeaders(answer.status(), body.length);
                exchange.getResponseBody().write(body);
            }
            exchange.close();
        }

        private Answer listened(Map<String, Object> body) {
            List<Map<String, Object>> grants =
                    ((List<?>) body.get("grants")).stream().map(Json::asObject).toList();
            synchronized (this) {
                asked.add(new Asked(System.nanoTime(), (Long) body.get("wait_ms"), grants));
            }
            Answer answer = answers.apply(grants);
            if (answer == null) {
                try {
                    end.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            }
            return answer;
        }

        @Override
        public void close() {
            end.countDown();
            server.stop(0);
            threads.shutdownNow();
        }
    }

    private static Map<String, Object> about(Map<String, Object> grant, String event, Map<String, Object> more) {
        Map<String, Object> notice = new LinkedHashMap<>(more);
        notice.put("resource_id", grant.get("resource_id"));
        notice.put("fencing_token", grant.get("fencing_token"));
        notice.put("event", event);
        return notice;
    }

    private interface Condition {
        boolean isThere() throws Exception;
    }

    private static void until(String what, Condition condition) throws Exception {
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); !condition.isThere(); ) {
            assertTrue(System.nanoTime() < end, "never: " + what);
            // real time: only a pause between two looks.
            Thread.sleep(2);
        }
    }

    private static BlockingQueue<Notice> heard(Lease lease) {
        BlockingQueue<Notice> notices = new LinkedBlockingQueue<>();
        lease.listen(notices::add);
        return notices;
    }

    private static Notice next(BlockingQueue<Notice> notices, Notice.Kind kind) throws InterruptedException {
        Notice notice = notices.poll(30, TimeUnit.SECONDS);
        assertNotNull(notice, "no notice came: " + kind);
        assertEquals(kind, notice.kind(), notice.toString());
        return notice;
    }

    private static Client client(Granting server) {
        return Client.builder().endpoints(server.url()).build();
    }

    private static long waiters(Map<String, Object> grant) {
        return (Long) grant.get("waiters");
    }

    /** However a server answers, it is asked at a bounded rate, and only renewals decide whether the lease is suspended. */
    @Test
    public void aServerThatAnswersAtOnceIsNotAskedInALoop() throws Exception {
        Map<String, Function<List<Map<String, Object>>, Answer>> cases = new LinkedHashMap<>();
        cases.put("nothing to say", grants -> Answer.notices());
        cases.put("no news", grants -> Answer.notices(about(grants.get(0), "wanted", Map.of("waiters", waiters(grants.get(0))))));
        cases.put("an event of a later version", grants -> Answer.notices(about(grants.get(0), "praised", Map.of())));
        String news = "news each time";
        cases.put(news, grants -> Answer.notices(about(grants.get(0), "wanted", Map.of("waiters", waiters(grants.get(0)) + 1))));
        cases.put("the end of another grant", grants -> Answer.notices(
                about(Map.of("resource_id", "orders", "fencing_token", 8L), "ended", Map.of("how", "revoked"))));
        cases.put("no notices", grants -> new Answer(200, "{}", true));
        cases.put("too many", grants -> Answer.refused(429, "busy"));
        cases.put("unavailable", grants -> Answer.refused(503, "unavailable"));
        cases.put("forbidden", grants -> Answer.refused(403, "forbidden"));
        cases.put("a proxy's 504", grants -> new Answer(504, "<html>Gateway Timeout</html>", false));
        ExecutorService atOnce = Executors.newFixedThreadPool(cases.size());
        Map<String, CompletableFuture<Void>> trials = new LinkedHashMap<>();
        cases.forEach((name, answers) -> trials.put(name, CompletableFuture.runAsync(() -> {
            try {
                isBounded(name, answers, name.equals(news));
            } catch (Exception error) {
                throw new IllegalStateException(name, error);
            }
        }, atOnce)));
        for (CompletableFuture<Void> trial : trials.values()) {
            trial.get();
        }
        atOnce.shutdown();
    }

    @Test
    public void aRequestThatIsEndedTooEarlyGetsShorter() throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            server.answers = grants -> {
                try {
                    // real time: of a proxy that ends requests after a second and a half.
                    Thread.sleep(1_500);
                } catch (InterruptedException closing) {
                    Thread.currentThread().interrupt();
                }
                return new Answer(504, "<html>Gateway Timeout</html>", false);
            };
            client.lock("orders").acquire();
            until("four requests", () -> server.requests() >= 4);
            List<Long> waits = server.since(0).stream().map(Asked::waitMs).limit(4).toList();
            assertEquals(List.of(20_000L, 10_000L, 5_000L, 2_500L), waits);
        }
    }

    private static void isBounded(String name, Function<List<Map<String, Object>>, Answer> answers, boolean isNews)
            throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            server.answers = answers;
            server.validForMs = 3_000;
            Lease lease = client.lock("orders").acquire();
            BlockingQueue<Notice> notices = heard(lease);
            until(name, () -> server.requests() >= (isNews ? 10 : 3) && server.count("renew") > 1);
            List<Asked> asked = server.since(0);
            for (int at = 1; at < asked.size(); at++) {
                long pause = isNews ? 50 * MS : Math.min(500 * MS << (at - 1), 8_000 * MS);
                long between = asked.get(at).at() - asked.get(at - 1).at();
                // The earlier time is from before its answer, so a slow machine only adds to the pause.
                assertTrue(between >= pause, name + ": request " + at + " came after " + between / MS + " ms");
            }
            lease.check();
            assertTrue(notices.stream().allMatch(
                    notice -> notice.kind() == Notice.Kind.WANTED || notice.kind() == Notice.Kind.UNWANTED), notices.toString());
        }
    }

    @Test
    public void aServerOfBeforeIsAskedOnce() throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            server.newer = false;
            server.validForMs = 1_500;
            server.answers = grants -> Answer.refused(404, "not_found");
            BlockingQueue<Notice> notices = heard(client.lock("orders").acquire());
            until("a request", () -> server.requests() == 1);
            client.lock("other").acquire();
            int renewals = server.count("renew");
            until("renewals", () -> server.count("renew") > renewals + 3);
            assertEquals(1, server.requests());
            assertEquals(0, notices.size());
            // A newer server has taken its place: its renewals say who waits.
            server.answers = grants -> null;
            server.newer = true;
            until("both leases are listened for", () -> server.since(1).stream().anyMatch(one -> one.grants().size() == 2));
        }
    }

    @Test
    public void withoutNoticesNothingIsAsked() throws Exception {
        try (Granting server = new Granting(); Client control = client(server);
                Client client = Client.builder().endpoints(server.url()).notices(false).build()) {
            server.validForMs = 1_500;
            client.lock("orders").acquire();
            control.lock("control").acquire();
            until("the control's request", () -> server.requests() == 1);
            until("renewals", () -> server.count("renew") > 5);
            for (Asked one : server.since(0)) {
                assertEquals("control", one.grants().get(0).get("resource_id"));
            }
        }
    }

    @Test
    public void aThousandLeasesAreTenRequests() throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            ExecutorService atOnce = Executors.newFixedThreadPool(20);
            List<Future<Lease>> granted = new ArrayList<>();
            for (int number = 0; number < 1000; number++) {
                LockRequest request = client.lock("lock-" + number);
                granted.add(atOnce.submit(request::acquire));
            }
            List<Lease> leases = new ArrayList<>();
            for (Future<Lease> one : granted) {
                leases.add(one.get());
            }
            atOnce.shutdown();
            until("1000 grants in 10 requests", () -> {
                List<Asked> asked = server.since(0);
                Set<Object> named = new HashSet<>();
                int requests = 0;
                for (int at = asked.size() - 1; at >= 0; at--) {
                    List<Object> locks = asked.get(at).grants().stream().map(grant -> grant.get("resource_id")).toList();
                    assertTrue(locks.size() <= 100, locks.size() + " grants");
                    // Otherwise a later one has taken its place.
                    if (named.stream().noneMatch(locks::contains)) {
                        named.addAll(locks);
                        requests++;
                    }
                }
                return named.size() == 1000 && requests == 10;
            });
            int before = server.requests();
            server.answers = grants -> grants.stream().filter(grant -> grant.get("resource_id").equals("new")).findFirst()
                    .map(grant -> Answer.notices(about(grant, "ended", Map.of("how", "expired")))).orElse(null);
            leases.get(0).release();
            Lease fresh = client.lock("new").acquire();
            assertEquals("expired", next(heard(fresh), Notice.Kind.LOST).loss().code());
            assertTrue(server.requests() - before <= 2, server.requests() - before + " more requests");
            leases.subList(1, 1000).forEach(Lease::check);
            assertTrue(threads("palisade: notices") <= 11, threads("palisade: notices") + " threads");
        }
    }

    private static long threads(String prefix) {
        return Thread.getAllStackTraces().keySet().stream().filter(one -> one.getName().startsWith(prefix)).count();
    }

    @Test
    public void newGrantsAreGathered() throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            long start = System.nanoTime();
            for (int number = 0; number < 20; number++) {
                client.lock("lock-" + number).acquire();
            }
            for (int times = 0; times < 20; times++) {
                // Held so shortly that nobody need listen.
                client.lock("short").acquire().release();
            }
            until("one request with all", () -> server.since(0).stream().anyMatch(one -> one.grants().size() >= 20));
            long most = (System.nanoTime() - start) / (100 * MS) + 1;
            assertTrue(server.requests() <= most, server.requests() + " requests");
        }
    }

    /** Both leases have the one grant, and the server takes each grant once. */
    @Test
    public void aGrantOfTwoLeasesIsNamedOnce() throws Exception {
        try (Granting server = new Granting(); Client client = client(server)) {
            String text = client.lock("orders").acquire().export();
            List<Lease> leases = List.of(client.adopt(text), client.adopt(text));
            server.answers = grants -> grants.size() > 1 ? Answer.refused(400, "invalid")
                    : Answer.notices(about(grants.get(0), "ended", Map.of("how", "unknown")));
            for (Lease lease : leases) {
                assertEquals("not_held", next(heard(lease), Notice.Kind.LOST).loss().code());
            }
        }
    }

    /** A node that does not lead names the leader; renewals stay where they were. */
    @Test
    public void theListenerFindsItsOwnWay() throws Exception {
        try (Granting leader = new Granting(); Granting other = new Granting();
                Client client = Client.builder().endpoints(other.url(), leader.url()).build()) {
            other.answers = grants -> new Answer(503, Json.write(
                    Map.of("error", Map.of("code", "not_leader", "message", "m", "leader", leader.url()))), true);
            client.lock("orders").acquire();
            until("the leader is asked", () -> leader.requests() == 1);
            // The leader cannot answer, and the other one can.
            other.answers = grants -> null;
            leader.answers = grants -> Answer.refused(503, "unavailable");
            client.lock("restarts").acquire();
            int before = other.requests();
            until("the other is asked", () -> other.since(before).stream().anyMatch(one -> one.grants().size() == 2));
            assertEquals(0, leader.count("acquire"));
        }
    }

    @Test
    public void aListenerThatThrowsOrBlocksDisturbsNobody() throws Exception {
        Set<String> said = ConcurrentHashMap.newKeySet();
        Logger log = Logger.getLogger("example.palisade");
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord entry) {
                said.add(entry.getMessage().replaceAll(" of .*", ": ") + entry.getThrown().getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        log.addHandler(handler);
        log.setUseParentHandlers(false);
        MemoryServer server = new MemoryServer();
        Duration ttl = Duration.ofSeconds(1);
        CountDownLatch blocked = new CountDownLatch(1);
        try (Client client = server.client()) {
            Lease lease = client.lock("orders").ttl(ttl).acquire();
            BlockingQueue<Notice> began = new LinkedBlockingQueue<>();
            lease.listen(notice -> {
                began.add(notice);
                try {
                    blocked.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            });
            lease.listen(notice -> {
                throw new IllegalStateException("mistake");
            });
            BlockingQueue<Notice> stopped = new LinkedBlockingQueue<>();
            lease.listen(stopped::add).close();
            BlockingQueue<Notice> notices = heard(lease);
            // real time: it is renewed for longer than a TTL although a listener blocks.
            for (long start = System.nanoTime(); System.nanoTime() - start < 2 * ttl.toNanos(); ) {
                server.down();
                next(notices, Notice.Kind.SUSPENDED);
                server.up();
                next(notices, Notice.Kind.RESTORED);
            }
            lease.check();
            server.revoke("orders", "the test");
            next(notices, Notice.Kind.LOST);
            next(began, Notice.Kind.SUSPENDED);
            assertTrue(began.isEmpty(), began.toString());
            // It is told the state, and not all that was in between.
            blocked.countDown();
            next(began, Notice.Kind.LOST);
            until("the mistake is logged", () -> said.contains("a listener failed at the notice LOST: mistake"));
            assertTrue(stopped.isEmpty(), stopped.toString());
        } finally {
            log.removeHandler(handler);
            log.setUseParentHandlers(true);
        }
    }

    @Test
    public void noThreadStaysBehind() throws Exception {
        for (boolean closed : new boolean[] {false, true}) {
            MemoryServer server = new MemoryServer();
            Set<Thread> before = Thread.getAllStackTraces().keySet();
            Client client = server.client();
            List<Lease> leases = new ArrayList<>();
            for (int number = 0; number < 150; number++) {
                Lease lease = client.lock("lock-" + number).ttl(Duration.ofSeconds(20)).acquire();
                heard(lease);
                leases.add(lease);
            }
            assertEquals(2, started(before, "palisade: notices"), "a control: two requests listen");
            Lease shortly = client.lock("short").ttl(Duration.ofSeconds(3)).acquire();
            BlockingQueue<Notice> notices = heard(shortly);
            leases.add(shortly);
            server.down();
            next(notices, Notice.Kind.SUSPENDED);
            server.up();
            if (closed) {
                client.close();
            } else {
                leases.forEach(Lease::close);
            }
            until("nobody listens", () -> started(before, "palisade: notices") == 0);
            client.close();
            // Threads of listeners, and those of the client, end a moment after their work.
            until("no thread is left", () -> started(before, "palisade: ") == 0);
        }
    }

    /** Those that are alive, were not before, and do something of that name. */
    private static long started(Set<Thread> before, String prefix) {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(one -> !before.contains(one) && one.getName().startsWith(prefix)).count();
    }
}
