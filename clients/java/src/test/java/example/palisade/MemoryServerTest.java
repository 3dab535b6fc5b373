package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.HttpFence;
import example.palisade.testing.MemoryServer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The levers of the double, as a user's unit test pulls them. */
public final class MemoryServerTest {
    private static final Duration PATIENCE = Duration.ofSeconds(1);
    /** Its first renewal comes after a second. */
    private static final Duration TTL = Duration.ofSeconds(3);

    private final MemoryServer server = new MemoryServer();
    private final Client client = server.client(builder -> builder.patience(PATIENCE));

    @AfterEach
    public void close() {
        client.close();
    }

    @Test
    public void theExampleOfTheReadmeFindsTheLockTaken() throws Exception {
        assertTrue(Examples.tested().contains("clientId=other"), Examples.tested());
    }

    @Test
    public void theExampleOfTheNoticesYields() throws Exception {
        Lease lease = client.lock("orders").ttl(Duration.ofHours(1)).acquire();
        Examples.listening(lease, lease::close);
        try (Lease next = client.lock("orders").acquire()) {
            assertEquals(2, next.token());
        }
    }

    @Test
    public void somebodyElseHasALock() throws Exception {
        try (MemoryServer.Held other = server.hold("orders", "another")) {
            LockRequest request = client.lock("orders").waitUpTo(Duration.ZERO);
            LockHeldException held = assertThrows(LockHeldException.class, request::acquire);
            assertEquals("another", held.holder().orElseThrow().clientId());
            assertEquals(other.token(), server.holder("orders").orElseThrow().token());
            assertThrows(IllegalStateException.class, () -> server.hold("orders"));
        }
        assertEquals(Optional.empty(), server.holder("orders"));
        try (Lease lease = client.lock("orders").clientId("me").tryAcquire().orElseThrow()) {
            assertEquals("me", server.holder("orders").orElseThrow().clientId());
            assertEquals(List.of(1L, 2L), server.tokens("orders"));
            assertEquals(2, lease.token());
        }
    }

    /** The client learns of it as in production, and its fences send nothing from then on. */
    @Test
    public void aLeaseExpiresOrIsRevoked() throws Exception {
        Lease expired = client.lock("a").ttl(TTL).acquire();
        Lease revoked = client.lock("b").ttl(TTL).acquire();
        // A control: it is renewed.
        Lease kept = client.lock("c").ttl(TTL).acquire();
        server.expire("a");
        server.revoke("b", "the test");
        assertEquals("expired", expired.lost().get(30, TimeUnit.SECONDS).code());
        assertEquals("revoked", revoked.lost().get(30, TimeUnit.SECONDS).code());
        assertThrows(LeaseLostException.class, () -> HttpFence.headers(revoked));
        kept.check();
        try (Lease next = client.lock("a").tryAcquire().orElseThrow()) {
            assertTrue(next.token() > expired.token());
        }
    }

    @Test
    public void aServerThatIsDownIsUnavailable() throws Exception {
        Lease lease = client.lock("orders").ttl(TTL).acquire();
        try (Watch watch = client.watch("", 0)) {
            assertEquals("granted", watch.next().kind());
            server.down();
            PalisadeException error = assertThrows(PalisadeException.class, () -> client.lock("other").tryAcquire());
            assertEquals(PalisadeException.Kind.UNAVAILABLE, error.kind());
            assertFalse(server.holder("other").isPresent());
            server.up();
            client.lock("other").tryAcquire().orElseThrow().release();
            assertEquals("granted other", said(watch.next()));
            assertEquals("released other", said(watch.next()));
        }
        lease.check();
        lease.release();
    }

    private static String said(Event event) {
        return event.kind() + " " + event.name();
    }

    @Test
    public void aServerThatStallsLeavesTheOutcomeUnknown() throws Exception {
        Lease lease = client.lock("orders").ttl(Duration.ofSeconds(1)).acquire();
        server.stall();
        PalisadeException error = assertThrows(PalisadeException.class, () -> client.lock("other").tryAcquire());
        assertEquals(PalisadeException.Kind.UNKNOWN_OUTCOME, error.kind());
        assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code());
        server.up();
        client.lock("orders").acquire().release();
    }

    /** A program may hold many: between their renewals they share a few threads. */
    @Test
    public void manyLeasesAreRenewedWithoutAThreadEach() throws Exception {
        int many = 200;
        List<Lease> leases = new ArrayList<>();
        for (int number = 0; number < many; number++) {
            leases.add(client.lock("many/" + number).ttl(TTL).acquire());
        }
        // Nobody renews this one: when it has expired, the others would have, too.
        client.lock("last").ttl(TTL).acquire().export();
        client.lock("last").waitUpTo(Duration.ofMinutes(1)).acquire();
        leases.forEach(Lease::check);
        long threads = Thread.getAllStackTraces().keySet().stream().filter(one -> one.getName().startsWith("palisade")).count();
        assertTrue(threads < many / 2, threads + " threads");
    }

    /** It counts from before the renewal that was answered, and not from the answer. */
    @Test
    public void anAdoptedLeaseCountsFromItsOwnFirstRenewal() throws Exception {
        Duration stalled = Duration.ofSeconds(1);
        String text = client.lock("orders").ttl(Duration.ofMinutes(1)).acquire().export();
        server.stall();
        PalisadeException silent = assertThrows(PalisadeException.class, () -> client.adopt(text));
        assertEquals(PalisadeException.Kind.UNAVAILABLE, silent.kind());
        try (Client patient = server.client(builder -> builder.patience(Duration.ofSeconds(30)))) {
            CompletableFuture<Lease> adopting = new CompletableFuture<>();
            Thread thread = new Thread(() -> {
                try {
                    adopting.complete(patient.adopt(text));
                } catch (InterruptedException | PalisadeException failed) {
                    adopting.completeExceptionally(failed);
                }
            });
            thread.start();
            while (thread.getState() != Thread.State.TIMED_WAITING) {
                Thread.onSpinWait();
            }
            // real time: the answer comes so much later than the request.
            TimeUnit.MILLISECONDS.sleep(stalled.toMillis());
            server.up();
            try (Lease lease = adopting.get(30, TimeUnit.SECONDS)) {
                Duration most = Duration.ofMinutes(1).multipliedBy(99).dividedBy(101).minus(stalled);
                assertTrue(lease.remaining().compareTo(most) <= 0, lease.remaining() + " of at most " + most);
            }
        }
    }
}
