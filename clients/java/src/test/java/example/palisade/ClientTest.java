package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The API and its errors, which the holder suite cannot see. */
public final class ClientTest {
    private Servers.Running server;
    private Client client;

    @BeforeEach
    public void start() {
        server = Servers.serve();
        client = Client.builder().endpoints(server.url()).build();
    }

    @AfterEach
    public void stop() {
        client.close();
        server.close();
    }

    private void awaitWaiters(int waiters) throws InterruptedException {
        // The server has no event for a request that begins to wait.
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); client.show("orders").waiters() != waiters; ) {
            assertTrue(System.nanoTime() < end, "never " + waiters + " waiters");
        }
    }

    @Test
    public void whatIsWrongWithSeveralLocksIsToldBeforeAnythingIsSent() {
        String[] many = IntStream.range(0, 65).mapToObj(number -> "lock-" + number).toArray(String[]::new);
        Map<String, Executable> wrong = new LinkedHashMap<>();
        wrong.put("0 locks", () -> client.locks());
        wrong.put("65 locks", () -> client.locks(many));
        wrong.put("\"a\" is named twice", () -> client.locks("a", "b", "a"));
        wrong.put("name of a lock", () -> client.locks("a", ""));
        wrong.put("exclusive", () -> client.locks("a", "b").shared().acquire());
        wrong.put("are exclusive", () -> client.locks("a", "b").permits(1, 2).acquire());
        wrong.put("several locks at once", () -> client.locks("a", "b").lockDelay(Duration.ofSeconds(1)).acquire());
        wrong.put("lockDelay and atLeastFor", () -> client.locks("a", "b").atLeastFor(Duration.ofSeconds(1)).acquire());
        server.close();
        wrong.forEach((says, request) -> {
            PalisadeException refused = assertThrows(PalisadeException.class, request, says);
            assertEquals(PalisadeException.Kind.INVALID, refused.kind(), says);
            assertTrue(refused.getMessage().contains(says), refused.getMessage());
        });
    }

    @Test
    public void aSilentServerEndsTheLeaseAtItsDeadline() throws Exception {
        Lease lease = client.lock("orders").ttl(Duration.ofSeconds(1)).acquire();
        Servers.run(List.of("kill", "-STOP", Long.toString(server.process().pid())));
        try {
            assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code());
        } finally {
            Servers.run(List.of("kill", "-CONT", Long.toString(server.process().pid())));
        }
    }

    /** It would carry the lease key elsewhere. */
    @Test
    public void aRedirectIsNotFollowed() throws Exception {
        HttpServer front = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        front.createContext("/", exchange -> {
            exchange.getResponseHeaders().set("Location", server.url() + exchange.getRequestURI());
            exchange.sendResponseHeaders(307, -1);
            exchange.close();
        });
        front.start();
        try (Client redirected = Client.builder().endpoints("http://127.0.0.1:" + front.getAddress().getPort())
                .patience(Duration.ofSeconds(1)).build()) {
            LockRequest request = redirected.lock("orders").waitUpTo(Duration.ZERO);
            assertEquals("unknown_outcome", assertThrows(PalisadeException.class, request::acquire).code());
            assertNull(client.show("orders").holder());
        } finally {
            front.stop(0);
        }
    }

    /** Of many connections that look alive, all have become silent. Trying one after the other would take too long. */
    @Test
    public void silentConnectionsAreReplacedAtOnce() throws Exception {
        int many = 16;
        try (Relay relay = new Relay(server.url());
                Client through = Client.builder().endpoints(relay.url()).build()) {
            Lease first = through.lock("orders").acquire();
            List<CompletableFuture<Void>> turns = new ArrayList<>();
            ExecutorService threads = Executors.newCachedThreadPool();
            for (int turn = 0; turn < many; turn++) {
                turns.add(CompletableFuture.runAsync(() -> takeATurn(through), threads));
            }
            awaitWaiters(many);
            first.release();
            for (CompletableFuture<Void> turn : turns) {
                turn.get(30, TimeUnit.SECONDS);
            }
            threads.shutdown();

            Lease lease = through.lock("orders").ttl(Duration.ofSeconds(6)).acquire();
            assertTrue(relay.freeze() >= many);
            Duration before = lease.remaining();
            Duration left = before;
            while (left.compareTo(before) <= 0) {
                lease.check();
                // real time: the renewal has a time of its own.
                TimeUnit.MILLISECONDS.sleep(50);
                before = left;
                left = lease.remaining();
            }
            relay.freeze();
            assertEquals(Lease.Release.RELEASED, lease.release());
        }
    }

    private static void takeATurn(Client client) {
        try {
            client.lock("orders").waitUpTo(Duration.ofMinutes(1)).acquire().release();
        } catch (InterruptedException gone) {
            throw new IllegalStateException(gone);
        }
    }

    /** A server that takes no connection has heard nothing. The control takes one, and answers nothing. */
    @Test
    public void aConnectionThatNeverCameSentNothing() throws Exception {
        for (boolean isFull : List.of(true, false)) {
            List<Socket> queue = new ArrayList<>();
            try (ServerSocket deaf = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                    Client nobody = Client.builder()
                            .endpoints("http://127.0.0.1:" + deaf.getLocalPort())
                            .patience(Duration.ofSeconds(1))
                            .build()) {
                while (isFull && queue.add(new Socket())) {
                    try {
                        queue.get(queue.size() - 1).connect(deaf.getLocalSocketAddress(), 300);
                    } catch (SocketTimeoutException full) {
                        break;
                    }
                }
                LockRequest request = nobody.lock("orders").waitUpTo(Duration.ZERO);
                PalisadeException silent = assertThrows(PalisadeException.class, request::acquire);
                assertEquals(
                        isFull ? PalisadeException.Kind.UNAVAILABLE : PalisadeException.Kind.UNKNOWN_OUTCOME, silent.kind());
                assertEquals(isFull, silent.getMessage().contains("palisade serve"), silent.getMessage());
            }
            for (Socket waiting : queue) {
                waiting.close();
            }
        }
    }

    @Test
    public void badArgumentsAreNamed() {
        Client nobody = Client.builder().endpoints("http://127.0.0.1:1").patience(Duration.ofSeconds(2)).build();
        for (String name : List.of("", ".", "..", "ä", "a\n", "x".repeat(256))) {
            assertThrows(PalisadeException.class, () -> nobody.lock(name), name);
        }
        LockRequest request = nobody.lock("orders");
        String says = assertThrows(PalisadeException.class, () -> request.ttl(Duration.ofMillis(50))).getMessage();
        assertTrue(says.contains("the TTL is 50 ms: 100 ms to 86400000 ms are allowed"), says);
        assertThrows(PalisadeException.class, () -> request.waitUpTo(Duration.ofMillis(-1)));
        assertThrows(PalisadeException.class, () -> request.ttl(Duration.ofSeconds(Long.MAX_VALUE)));
        assertThrows(PalisadeException.class, () -> request.metadata("x".repeat(257)));
        for (String bad : List.of("a:1", "ftp://a", "http://a/x", "http://u:s3cret@a", "")) {
            PalisadeException refused = assertThrows(
                    PalisadeException.class, () -> Client.builder().endpoints(bad).build(), bad);
            assertFalse(refused.getMessage().contains("s3cret"));
        }
        PalisadeException unavailable =
                assertThrows(PalisadeException.class, () -> request.waitUpTo(Duration.ZERO).acquire());
        assertEquals(PalisadeException.Kind.UNAVAILABLE, unavailable.kind());
        says = unavailable.getMessage();
        assertTrue(says.contains("http://127.0.0.1:1: ") && says.contains("palisade serve"), says);
        nobody.close();
        assertThrows(PalisadeException.class, () -> nobody.lock("orders"));
    }

    @Test
    public void aBearerTokenIsForTlsAndThisMachineOnly() {
        for (String kept : List.of("http://localhost:1", "http://127.9.9.9:1", "http://[::1]:1", "https://a")) {
            Client.builder().endpoints(kept).bearerToken("pal_given\n").build().close();
        }
        String says = assertThrows(PalisadeException.class,
                () -> Client.builder().endpoints("https://a", "http://10.0.0.1:1").bearerToken("pal_given").build()).getMessage();
        assertTrue(says.contains("not sent to http://10.0.0.1:1") && !says.contains("pal_"), says);
        for (String bad : List.of("a b", "a\nb", "ä", "")) {
            assertThrows(PalisadeException.class, () -> Client.builder().bearerToken(bad).build(), bad);
        }
    }

    /** A server behind TLS: a real one behind a proxy, which asks for the token. */
    @Test
    public void tlsAndBearerToken() throws Exception {
        SSLContext context = selfSigned();
        HttpsServer front = HttpsServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        front.setHttpsConfigurator(new HttpsConfigurator(context));
        AtomicInteger asked = new AtomicInteger();
        AtomicReference<String> key = new AtomicReference<>();
        forward(front, asked, key);
        String url = "https://localhost:" + front.getAddress().getPort();
        try (Client trusted = Client.builder().endpoints(url).sslContext(context).bearerToken("s3cret").build();
                Client bare = Client.builder().endpoints(url).sslContext(context).build();
                Client stranger = Client.builder().endpoints(url).bearerToken("s3cret")
                        .patience(Duration.ofSeconds(1)).build()) {
            try (Lease lease = trusted.lock("orders").acquire()) {
                assertEquals(32, key.get().length());
                assertFalse(lease.toString().contains(key.get()));
            }
            assertEquals("unauthenticated", assertThrows(
                    PalisadeException.class, () -> bare.lock("orders").acquire()).code());
            int before = asked.get();
            // On a busy machine the patience may be over before the handshake has failed.
            String refused = assertThrows(
                    PalisadeException.class, () -> stranger.lock("orders").waitUpTo(Duration.ZERO).acquire()).code();
            assertTrue(List.of("unavailable", "unknown_outcome").contains(refused), refused);
            assertEquals(before, asked.get(), "a request was sent to a server that nobody vouches for");
        } finally {
            front.stop(0);
        }
    }

    private void forward(HttpServer front, AtomicInteger asked, AtomicReference<String> key) {
        HttpClient http = HttpClient.newHttpClient();
        front.setExecutor(Executors.newCachedThreadPool());
        front.createContext("/", exchange -> {
            asked.incrementAndGet();
            byte[] answer = "{\"error\": {\"code\": \"unauthenticated\", \"message\": \"a token is needed\"}}".getBytes();
            int status = 401;
            if ("Bearer s3cret".equals(exchange.getRequestHeaders().getFirst("Authorization"))) {
                HttpRequest request = HttpRequest.newBuilder(URI.create(server.url() + exchange.getRequestURI()))
                        .method(exchange.getRequestMethod(),
                                HttpRequest.BodyPublishers.ofByteArray(exchange.getRequestBody().readAllBytes()))
                        .build();
                try {
                    HttpResponse<byte[]> told = http.send(request, HttpResponse.BodyHandlers.ofByteArray());
                    status = told.statusCode();
                    answer = told.body();
                    String text = new String(answer);
                    int at = text.indexOf("\"lock_token\":\"");
                    if (at >= 0) {
                        key.set(text.substring(at + 14, at + 46));
                    }
                } catch (InterruptedException gone) {
                    Thread.currentThread().interrupt();
                }
            }
            exchange.getResponseHeaders().set("Palisade-Nonce", exchange.getRequestHeaders().getFirst("Palisade-Nonce"));
            exchange.sendResponseHeaders(status, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        front.start();
    }

    private static SSLContext selfSigned() throws Exception {
        Path file = Servers.folder("tls").resolve("keys");
        Servers.run(List.of(System.getProperty("java.home") + "/bin/keytool", "-genkeypair", "-keystore", file.toString(),
                "-storepass", "changeit", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "SAN=dns:localhost"));
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream stored = Files.newInputStream(file)) {
            keys.load(stored, "changeit".toCharArray());
        }
        KeyManagerFactory own = KeyManagerFactory.getInstance("SunX509");
        own.init(keys, "changeit".toCharArray());
        TrustManagerFactory trusted = TrustManagerFactory.getInstance("PKIX");
        KeyStore authorities = KeyStore.getInstance("PKCS12");
        authorities.load(null, null);
        authorities.setCertificateEntry("front", keys.getCertificate("mykey"));
        trusted.init(authorities);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(own.getKeyManagers(), trusted.getTrustManagers(), null);
        return context;
    }
}
