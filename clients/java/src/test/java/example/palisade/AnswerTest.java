package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import example.palisade.internal.Json;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Answers of other requests, and addresses at which nothing answers as it should. */
public final class AnswerTest {
    private static final String NONCE = "Palisade-Nonce";

    /** An answer on its way. */
    private static final class Told {
        String nonce;
        int status = 200;
        Map<String, Object> body = new HashMap<>();

        Told with(String name, Object value) {
            body.put(name, value);
            return this;
        }

        Told refused(int status, String code, Map<String, Object> more) {
            Map<String, Object> error = new HashMap<>(more);
            error.put("code", code);
            error.put("message", "m");
            this.status = status;
            body = new HashMap<>(Map.of("error", error));
            return this;
        }
    }

    private interface Lie {
        void about(Map<String, Object> asked, Told answer);

        static Lie field(String name, Object value) {
            return (asked, answer) -> answer.with(name, value);
        }
    }

    /** A server that grants everything, and may change an answer on its way. */
    private static final class Liar implements AutoCloseable {
        private final HttpServer server;
        private final ExecutorService threads = Executors.newCachedThreadPool();
        private final Set<String> nonces = new HashSet<>();
        final Set<Object> connections = new HashSet<>();
        final List<String> verbs = new ArrayList<>();
        private Lie lie = (asked, answer) -> {};

        Liar() throws IOException {
            server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.setExecutor(threads);
            server.createContext("/", this::answer);
            server.start();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort();
        }

        synchronized void does(Lie next) {
            lie = next;
        }

        private void answer(HttpExchange exchange) throws IOException {
            String text = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            String[] path = exchange.getRequestURI().getPath().split("/");
            Told told = new Told().with("resource_id", path[Math.min(3, path.length - 1)]).with("authority", "a").with("fencing_token", 7);
            told.nonce = exchange.getRequestHeaders().getFirst(NONCE);
            switch (path[path.length - 1]) {
                case "acquire" -> told.with("lock_acquired", true).with("lock_token", "k").with("valid_for_ms", 30_000)
                        .with("waited_ms", 0);
                case "renew" -> told.with("valid_for_ms", 30_000);
                case "release" -> told.with("released", true);
                case "abandon" -> told.with("request_id", path[3]);
                case "listen" -> told.refused(404, "not_found", Map.of());
                default -> told.with("waiters", 0);
            }
            synchronized (this) {
                connections.add(exchange.getRemoteAddress());
                verbs.add(path[path.length - 1]);
                if (!nonces.add(told.nonce)) {
                    told.refused(400, "invalid", Map.of());
                }
                lie.about(text.isEmpty() ? Map.of() : Json.object(text), told);
            }
            if (told.nonce != null) {
                exchange.getResponseHeaders().set(NONCE, told.nonce);
            }
            byte[] body = Json.write(told.body).getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(told.status, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        }

        @Override
        public void close() {
            server.stop(0);
            threads.shutdownNow();
        }
    }

    private static Client client(String... urls) {
        return Client.builder().endpoints(urls).patience(Duration.ofSeconds(1)).build();
    }

    /** Every way in which an answer to an acquire belongs to another request. */
    @Test
    public void aGrantOfAnotherRequestIsNotBelieved() throws Exception {
        Map<String, Lie> lies = new LinkedHashMap<>();
        lies.put("another lock", Lie.field("resource_id", "other"));
        lies.put("no lock", Lie.field("resource_id", null));
        lies.put("a renewal", Lie.field("lock_acquired", null));
        lies.put("a denial", Lie.field("lock_acquired", false));
        lies.put("no nonce", (asked, answer) -> answer.nonce = null);
        lies.put("another nonce", (asked, answer) -> answer.nonce = "AAAAAAAAAAAAAAAAAAAAAA");
        lies.put("a grant that waits", (asked, answer) -> answer.status = 202);
        lies.put("another denial", (asked, answer) -> answer.refused(409, "held", Map.of()).with("resource_id", "other"));
        lies.put("a proxy's refusal", (asked, answer) -> answer.refused(403, "forbidden", Map.of()).nonce = null);
        try (Liar liar = new Liar(); Client client = client(liar.url())) {
            LockRequest request = client.lock("orders").waitUpTo(Duration.ZERO);
            lies.forEach((name, lie) -> {
                liar.does(lie);
                assertEquals("unknown_outcome", assertThrows(PalisadeException.class, request::acquire, name).code(), name);
            });
            // A control: without a lie it is granted.
            liar.does((asked, answer) -> {});
            try (Client patient = Client.builder().endpoints(liar.url()).build();
                    Lease lease = patient.lock("orders").waitUpTo(Duration.ZERO).acquire()) {
                assertEquals(7, lease.token());
            }
        }
    }

    @Test
    public void anAnswerWithoutAListIsNoEmptyList() throws Exception {
        try (Liar liar = new Liar(); Client client = client(liar.url())) {
            PalisadeException broken = assertThrows(PalisadeException.class, client.list("").iterator()::hasNext);
            assertEquals("unknown_outcome", broken.code());
            // A control: an empty list is believed.
            liar.does(Lie.field("locks", List.of()));
            assertFalse(client.list("").iterator().hasNext());
        }
    }

    /** The next answer on such a connection is wrong, too. */
    @Test
    public void aStrayAnswerEndsItsConnection() throws Exception {
        for (Lie lie : List.<Lie>of((asked, answer) -> answer.nonce = "late", Lie.field("resource_id", "other"))) {
            try (Liar liar = new Liar(); Client client = Client.builder().endpoints(liar.url()).build()) {
                liar.does((asked, answer) -> {
                    if (liar.verbs.size() <= 3) {
                        lie.about(asked, answer);
                    }
                });
                assertEquals("orders", client.show("orders").name());
                // A control: a good answer keeps its connection.
                client.show("orders");
                assertEquals(4, liar.connections.size(), "connections of " + liar.verbs.size() + " requests");
            }
        }
    }

    /** There is time for two renewals, also on a machine that does much else. */
    private static final Duration TTL = Duration.ofSeconds(3);

    /** A renewal is believed only if it is that of this lease. The deadline does not move, and ends the lease. */
    @Test
    public void aRenewalOfAnotherRequestDoesNotMoveTheDeadline() throws Exception {
        Map<String, Lie> lies = new LinkedHashMap<>();
        lies.put("another lock", Lie.field("resource_id", "other"));
        lies.put("another token", Lie.field("fencing_token", 8));
        lies.put("another authority", Lie.field("authority", "b"));
        lies.put("no authority", Lie.field("authority", null));
        lies.put("a grant", Lie.field("lock_acquired", true));
        lies.put("a release", Lie.field("released", true));
        lies.put("no nonce", (asked, answer) -> answer.nonce = null);
        // Also the answers to the same lease's earlier requests.
        String[] before = {"first"};
        lies.put("late by one", (asked, answer) -> {
            String own = answer.nonce;
            answer.nonce = before[0];
            before[0] = own;
        });
        lies.put("another end", (asked, answer) -> answer.refused(410, "expired", Map.of("fencing_token", 8)));
        ExecutorService atOnce = Executors.newFixedThreadPool(lies.size());
        List<Future<?>> trials = new ArrayList<>();
        lies.forEach((name, lie) -> trials.add(atOnce.submit(() -> {
            try (Liar liar = new Liar(); Client client = client(liar.url())) {
                liar.does(Lie.field("valid_for_ms", TTL.toMillis()));
                Lease lease = client.lock("orders").ttl(TTL).acquire();
                liar.does(lie);
                assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code(), name);
                assertTrue(liar.verbs.stream().filter("renew"::equals).count() >= 2, name);
            }
            return null;
        })));
        for (Future<?> trial : trials) {
            trial.get();
        }
        atOnce.shutdown();
        // A control: its own renewal moves it.
        try (Liar liar = new Liar(); Client client = client(liar.url())) {
            liar.does(Lie.field("valid_for_ms", TTL.toMillis()));
            try (Lease lease = client.lock("orders").ttl(TTL).acquire()) {
                liar.does((asked, answer) -> {});
                while (lease.remaining().compareTo(Duration.ofSeconds(10)) < 0) {
                    lease.check();
                    Thread.onSpinWait();
                }
            }
        }
    }

    /** An answer that says only that the request waits is asked for again, with the same request id and less to wait. */
    @Test
    public void aWaitIsPolled() throws Exception {
        List<Map<String, Object>> asked = new ArrayList<>();
        try (Liar liar = new Liar(); Client client = client(liar.url())) {
            liar.does((request, answer) -> {
                if (request.containsKey("request_id")) {
                    asked.add(request);
                    if (asked.size() < 4) {
                        answer.status = 202;
                        answer.with("lock_acquired", false).with("waiting", true);
                    }
                }
            });
            try (Lease lease = client.lock("orders").waitUpTo(Duration.ofMinutes(1)).acquire()) {
                // Three answers that come at once are not asked for in a loop: 10 ms lie between them.
                assertTrue(lease.waited().toMillis() >= 30 && lease.waited().toMinutes() < 1, lease.waited().toString());
            }
        }
        assertEquals(4, asked.size());
        for (int at = 0; at < 4; at++) {
            // An address that did not answer yet may be dead.
            assertEquals(at == 0 ? 1_000L : 10_000L, asked.get(at).get("poll_ms"));
            assertEquals(asked.get(0).get("request_id"), asked.get(at).get("request_id"));
            assertTrue(at == 0 || (Long) asked.get(at).get("wait_ms") < (Long) asked.get(at - 1).get("wait_ms"));
        }
    }

    private interface Serve {
        void on(Socket connection) throws IOException, InterruptedException;
    }

    /** A stand-in for an address at which nothing answers as it should. */
    private record Address(ServerSocket listener) implements AutoCloseable {
        Address(Serve serve) throws IOException {
            this(new ServerSocket(0, 50, InetAddress.getLoopbackAddress()));
            daemon(() -> {
                while (true) {
                    Socket connection = listener.accept();
                    daemon(() -> serve.on(connection));
                }
            });
        }

        private interface Work {
            void run() throws IOException, InterruptedException;
        }

        private static void daemon(Work work) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (IOException | InterruptedException ended) {
                    // The connection, or the test, is over.
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        String url() {
            return "http://127.0.0.1:" + listener.getLocalPort();
        }

        @Override
        public void close() throws IOException {
            listener.close();
        }
    }

    private static void silent(Socket connection) throws IOException {
        connection.getInputStream().transferTo(OutputStream.nullOutputStream());
    }

    /** Sends the head of an answer and never its body. */
    private static void halfOpen(Socket connection) throws IOException {
        InputStream in = connection.getInputStream();
        StringBuilder head = new StringBuilder();
        while (head.indexOf("\r\n\r\n") < 0) {
            head.append((char) in.read());
        }
        Matcher nonce = Pattern.compile(NONCE + ": (\\S+)").matcher(head);
        assertTrue(nonce.find());
        connection.getOutputStream()
                .write(("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n" + nonce.group() + "\r\n\r\n{").getBytes());
        silent(connection);
    }

    /** Sends a byte at a time: each of them comes in time, and the answer never does. */
    private static void slow(Socket connection) throws IOException, InterruptedException {
        OutputStream out = connection.getOutputStream();
        out.write("HTTP/1.1 200 OK\r\nX-Long: ".getBytes());
        while (true) {
            out.write('x');
            // real time: its own slowness.
            Thread.sleep(50);
        }
    }

    /** Every call asks the next address in time, also an acquire that waits, and the release. */
    @Test
    public void anAddressThatIsSilentIsLeftInTime() throws Exception {
        List<CompletableFuture<Void>> all = new ArrayList<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        for (int many : new int[] {1, 2}) {
            all.add(CompletableFuture.runAsync(() -> isLeftInTime(AnswerTest::silent, many, true), threads));
            // A stream that is open and silent is left after 45 s.
            all.add(CompletableFuture.runAsync(() -> isLeftInTime(AnswerTest::halfOpen, many, false), threads));
            all.add(CompletableFuture.runAsync(() -> isLeftInTime(AnswerTest::slow, many, true), threads));
        }
        for (CompletableFuture<Void> one : all) {
            one.get();
        }
        threads.shutdown();
    }

    /**
     * A control: the same request without a good address, which gives up when the wait and the patience are over. Its client is
     * not closed, because that would wait for its patience.
     */
    private static Thread givesUp(Duration patience, String... urls) {
        Thread control = new Thread(() -> {
            try {
                Client client = Client.builder().endpoints(urls).patience(patience).build();
                client.lock("orders").waitUpTo(Duration.ofSeconds(3)).acquire();
            } catch (InterruptedException | PalisadeException gaveUp) {
                // The thread is over.
            }
        });
        control.setDaemon(true);
        control.start();
        return control;
    }

    private static void isLeftInTime(Serve serve, int many, boolean watches) {
        Duration patience = Duration.ofSeconds(2);
        try (Servers.Running server = Servers.serve(); Address first = new Address(serve); Address second = new Address(serve)) {
            String[] urls = many == 1
                    ? new String[] {first.url(), server.url()} : new String[] {first.url(), second.url(), server.url()};
            Thread control = givesUp(patience, Arrays.copyOf(urls, many));
            try (Client client = Client.builder().endpoints(urls).patience(patience).build();
                    Lease lease = client.lock("orders").waitUpTo(Duration.ofSeconds(3)).acquire()) {
                assertTrue(control.isAlive(), many + " addresses: granted after the control had given up");
                assertTrue(lease.isHeld());
            }
            control.interrupt();
            try (Client fresh = Client.builder().endpoints(urls).patience(patience).build()) {
                assertEquals("orders", fresh.show("orders").name());
            }
            if (watches) {
                try (Client fresh = Client.builder().endpoints(urls).patience(patience).build();
                        Watch watch = fresh.watch("", 0)) {
                    assertEquals("granted", watch.next().kind());
                }
            }
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A lease that nobody renews any more is lost at its deadline, and says so. */
    @Test
    public void aLeaseOfAClosedClientAnnouncesItsLoss() throws Exception {
        try (Liar liar = new Liar()) {
            liar.does(Lie.field("valid_for_ms", 400));
            Client client = client(liar.url());
            Lease lease = client.lock("orders").acquire();
            client.close();
            assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code());
            assertThrows(PalisadeException.class, lease::release);
            lease.close();
            assertThrows(PalisadeException.class, () -> client.lock("orders"));
        }
    }

    /** The last attempt of a call has the least time, and may get none at all on a busy machine. */
    @Test
    public void aSilentAttemptDoesNotHideWhatAnotherOneHeard() throws Exception {
        long until = Clock.earliest() + TimeUnit.SECONDS.toNanos(3);
        record Case(String says, Reply.Fault first, Reply.Fault last, Transport.Backoff backoff) {}
        List<Case> cases = new ArrayList<>();
        for (boolean unknown : new boolean[] {false, true}) {
            Reply.Fault heard = new Reply.Fault("heard", unknown);
            Reply.Fault silent = new Reply.Fault("silent", unknown, true);
            Reply.Fault later = new Reply.Fault("later", unknown);
            Reply.Fault quiet = new Reply.Fault("quiet", unknown, true);
            cases.add(new Case("later", heard, later, new Transport.Backoff(until, instant -> {})));
            cases.add(new Case("silent", silent, quiet, new Transport.Backoff(until, instant -> {})));
            cases.add(new Case("heard", heard, silent, new Transport.Backoff(until, instant -> {})));
            cases.add(new Case("heard", silent, heard, new Transport.Backoff(until, instant -> {})));
        }
        // An unknown outcome outweighs a certain failure.
        Reply.Fault silent = new Reply.Fault("silent", true, true);
        cases.add(new Case("silent", silent, new Reply.Fault("heard", false), new Transport.Backoff(until, instant -> {})));
        for (Case one : cases) {
            one.backoff.after(one.first);
        }
        Client.sleepUntil(until);
        for (Case one : cases) {
            PalisadeException raised = assertThrows(PalisadeException.class, () -> one.backoff.after(one.last));
            assertTrue(raised.getMessage().endsWith(": " + one.says), raised.getMessage());
        }
    }
}
