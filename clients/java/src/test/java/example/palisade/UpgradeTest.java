package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Mode update, and the file of a bearer token. */
public final class UpgradeTest {
    private static final Duration MINUTE = Duration.ofMinutes(1);

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
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (client.show("report").waiters() != waiters) {
            assertTrue(System.nanoTime() < end, "there were never " + waiters + " waiters");
        }
    }

    private static CompletableFuture<Lease> upgrading(Lease reader) {
        CompletableFuture<Lease> writer = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                writer.complete(reader.upgrade(MINUTE));
            } catch (InterruptedException | PalisadeException ended) {
                writer.completeExceptionally(ended);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return writer;
    }

    private static Throwable failure(CompletableFuture<Lease> writer) {
        return assertThrows(ExecutionException.class, () -> writer.get(30, TimeUnit.SECONDS)).getCause();
    }

    @Test
    public void aReaderBecomesTheWriterAndAReaderAgain() throws Exception {
        Lease reader = client.lock("report").update().clientId("me").acquire();
        assertTrue(reader.isShared() && reader.isUpdate());
        Lease writer = reader.upgrade(Duration.ZERO);
        assertFalse(writer.isShared() || writer.isUpdate());
        assertEquals("me", writer.clientId());
        assertTrue(writer.token() > reader.token());
        assertEquals("not_held", assertThrows(LeaseLostException.class, reader::check).code());
        assertFalse(reader.lost().isDone(), "the upgrade was announced as a loss");
        Lease again = writer.downgrade();
        assertTrue(again.isShared() && !again.isUpdate() && again.token() > writer.token());
        assertEquals(Lease.Release.OVER, reader.release());
        assertEquals(Lease.Release.RELEASED, again.release());
        assertNull(client.show("report").holder());
    }

    @Test
    public void aDenialNamesAReaderAndTheReaderGoesOn() throws Exception {
        Lease slow = client.lock("report").shared().clientId("slow").acquire();
        Lease reader = client.lock("report").update().acquire();
        LockHeldException held = assertThrows(LockHeldException.class, () -> reader.upgrade(Duration.ofMillis(50)));
        assertEquals("slow", held.holder().orElseThrow().clientId());
        reader.check();
        CompletableFuture<Lease> writer = upgrading(reader);
        awaitWaiters(1);
        String says = assertThrows(PalisadeException.class, () -> reader.upgrade(Duration.ZERO)).getMessage();
        assertTrue(says.contains("under way already"), says);
        reader.check();
        slow.release();
        writer.get(30, TimeUnit.SECONDS).release();
    }

    @Test
    public void anInterruptedUpgradeLeavesTheQueueAndTheReaderGoesOn() throws Exception {
        Lease beside = client.lock("report").shared().acquire();
        Lease reader = client.lock("report").update().acquire();
        AtomicReference<Throwable> ended = new AtomicReference<>();
        Thread thread = new Thread(() -> ended.set(assertThrows(InterruptedException.class, () -> reader.upgrade(MINUTE))));
        thread.start();
        awaitWaiters(1);
        thread.interrupt();
        thread.join(30_000);
        assertTrue(ended.get() instanceof InterruptedException, String.valueOf(ended.get()));
        awaitWaiters(0);
        reader.check();
        assertEquals(Lease.Release.RELEASED, reader.release());
        beside.release();
    }

    @Test
    public void aReaderThatEndsEndsItsUpgradeWithTheLoss() throws Exception {
        Lease beside = client.lock("report").shared().acquire();
        Lease revoked = client.lock("report").update().acquire();
        CompletableFuture<Lease> writer = upgrading(revoked);
        awaitWaiters(1);
        client.breakLock("report", revoked.grantId(), "the test");
        assertEquals("revoked", ((LeaseLostException) failure(writer)).code());
        assertEquals("revoked", revoked.lost().get(30, TimeUnit.SECONDS).code());
        Lease released = client.lock("report").update().acquire();
        CompletableFuture<Lease> other = upgrading(released);
        awaitWaiters(1);
        released.release();
        assertEquals("not_held", ((LeaseLostException) failure(other)).code());
        beside.release();
        assertNull(client.show("report").holder());
    }

    @Test
    public void aWrongUpgradeIsNamed() throws Exception {
        for (LockRequest request : List.of(client.lock("report").shared(), client.lock("report"))) {
            try (Lease lease = request.acquire()) {
                String says = assertThrows(PalisadeException.class, () -> lease.upgrade(Duration.ZERO)).getMessage();
                assertTrue(says.contains("update()"), says);
                lease.check();
            }
        }
        try (Lease reader = client.lock("report").update().acquire()) {
            assertThrows(PalisadeException.class, () -> reader.upgrade(Duration.ofMillis(-1)));
        }
        assertThrows(PalisadeException.class, () -> client.lock("gpu").update().permits(1, 2).acquire());
        assertThrows(PalisadeException.class, () -> client.locks("a", "b").update().acquire());
    }

    /** As Kubernetes does: the new file takes the old one's place. */
    private static void replace(Path file, String text) throws Exception {
        Path fresh = Files.writeString(file.resolveSibling("fresh"), text);
        Files.move(fresh, file, StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE);
    }

    @Test
    public void aBearerTokenThatIsReplacedInItsFileIsTaken() throws Exception {
        AtomicReference<String> counts = new AtomicReference<>("one");
        HttpServer guarded = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        guarded.createContext("/", exchange -> {
            boolean known = ("Bearer " + counts.get()).equals(exchange.getRequestHeaders().getFirst("Authorization"));
            byte[] body = (known
                    ? "{\"resource_id\": \"report\", \"holder\": null, \"waiters\": 0}"
                    : "{\"error\": {\"code\": \"unauthenticated\", \"message\": \"another token counts\"}}")
                    .getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Palisade-Nonce", exchange.getRequestHeaders().getFirst("Palisade-Nonce"));
            exchange.sendResponseHeaders(known ? 200 : 401, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        guarded.start();
        Path folder = Files.createTempDirectory("palisade-java-");
        Path file = folder.resolve("token");
        replace(file, "one\n");
        String url = "http://127.0.0.1:" + guarded.getAddress().getPort();
        try (Client renewed = Client.builder().endpoints(url).bearerTokenFile(file).build();
                Client fixed = Client.builder().endpoints(url).bearerToken("one").build()) {
            renewed.show("report");
            fixed.show("report");
            replace(file, "two\n");
            counts.set("two");
            renewed.show("report");
            // A control: a client that does not read the file again is refused.
            assertEquals("unauthenticated", assertThrows(PalisadeException.class, () -> fixed.show("report")).code());
            // While the file cannot be used, the last token stays.
            replace(file, "two words");
            renewed.show("report");
            Files.delete(file);
            renewed.show("report");
            assertThrows(PalisadeException.class, () -> Client.builder().bearerTokenFile(file).build());
            assertThrows(
                    PalisadeException.class, () -> Client.builder().bearerTokenFile(file).bearerToken("one").build());
        } finally {
            guarded.stop(0);
            Files.deleteIfExists(file);
            Files.delete(folder);
        }
    }
}
