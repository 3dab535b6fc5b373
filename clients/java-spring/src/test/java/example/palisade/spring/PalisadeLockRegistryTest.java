package example.palisade.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariDataSource;
import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.LeaseLostException;
import example.palisade.PalisadeException;
import example.palisade.testing.MemoryServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.DistributedLock;

/** Locks of Spring Integration. */
public final class PalisadeLockRegistryTest {
    private final MemoryServer server = new MemoryServer();
    private final Client client = server.client();
    /** With short leases: a loss is noticed at a renewal. */
    private final PalisadeLockRegistry registry = new PalisadeLockRegistry(client, Duration.ofSeconds(2), "");
    private final DistributedLock lock = registry.obtain("nightly");

    @AfterEach
    public void end() {
        client.close();
    }

    private static <T> T elsewhere(Callable<T> work) throws Exception {
        FutureTask<T> task = new FutureTask<>(work);
        new Thread(task).start();
        return task.get(1, TimeUnit.MINUTES);
    }

    private void lose() throws Exception {
        Lease lease = registry.lease("nightly");
        server.expire("nightly");
        lease.lost().get(1, TimeUnit.MINUTES);
    }

    @Test
    public void aThreadMayTakeItsLockAgain() throws Exception {
        lock.lock();
        Lease lease = registry.lease("nightly");
        assertTrue(lock.tryLock());
        lock.lockInterruptibly();
        assertSame(lease, registry.lease("nightly"));
        assertEquals(false, elsewhere(lock::tryLock));
        assertFalse(elsewhere(() -> lock.tryLock(1, TimeUnit.MILLISECONDS)));
        lock.unlock();
        lock.unlock();
        assertTrue(lease.isHeld());
        lock.unlock();
        assertFalse(lease.isHeld());
        assertThrows(IllegalStateException.class, () -> registry.lease("nightly"));
        assertEquals(true, elsewhere(lock::tryLock));
    }

    @Test
    public void onlyTheThreadThatHasItUnlocks() throws Exception {
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        lock.lock();
        elsewhere(() -> assertThrows(IllegalMonitorStateException.class, lock::unlock));
        assertTrue(registry.lease("nightly").isHeld());
        lock.unlock();
    }

    @Test
    public void conditionsAreNotSupported() {
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }

    @Test
    public void anotherProcessHasTheLock() throws Exception {
        try (var other = server.hold("nightly")) {
            assertFalse(lock.tryLock());
            assertFalse(lock.tryLock(10, TimeUnit.MILLISECONDS));
            assertFalse(lock.tryLock(Duration.ofMillis(10), Duration.ofMinutes(1)));
        }
        assertTrue(lock.tryLock(1, TimeUnit.MINUTES));
        lock.unlock();
        try (var other = server.hold("nightly")) {
            Thread waits = new Thread(lock::lock);
            waits.start();
            while (waits.getState() == Thread.State.RUNNABLE) {
                Thread.onSpinWait();
            }
            // An interruption does not end lock().
            waits.interrupt();
            other.close();
            waits.join();
            assertTrue(registry.lease("nightly").isHeld());
        }
    }

    @Test
    public void anInterruptedThreadHasNothing() throws Exception {
        try (var other = server.hold("nightly")) {
            CompletableFuture<Throwable> ended = new CompletableFuture<>();
            Thread waits = new Thread(() -> {
                try {
                    lock.lockInterruptibly();
                    ended.complete(null);
                } catch (InterruptedException expected) {
                    ended.complete(expected);
                }
            });
            waits.start();
            waits.interrupt();
            assertInstanceOf(InterruptedException.class, ended.get(1, TimeUnit.MINUTES));
        }
        assertTrue(lock.tryLock(1, TimeUnit.MINUTES));
    }

    @Test
    public void withoutAServerTryLockThrowsAndLockWaits() throws Exception {
        try (Client impatient = server.client(builder -> builder.patience(Duration.ofSeconds(1)))) {
            DistributedLock other = new PalisadeLockRegistry(impatient).obtain("other");
            server.down();
            assertEquals(PalisadeException.Kind.UNAVAILABLE, assertThrows(PalisadeException.class, other::tryLock).kind());
            assertThrows(IllegalMonitorStateException.class, other::unlock);
            Thread waits = new Thread(other::lock);
            waits.start();
            server.up();
            waits.join();
            assertTrue(server.holder("other").isPresent());
        }
    }

    /** The local lock is free by then: another thread goes on. */
    @Test
    public void unlockTellsThatTheLeaseWasLost() throws Exception {
        lock.lock();
        lock.lock();
        lose();
        lock.unlock();
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertTrue(elsewhere(() -> {
            boolean had = lock.tryLock(1, TimeUnit.MINUTES);
            // A control: it was not lost.
            lock.unlock();
            return had;
        }));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    /** A silent second grant would change the token under a leader that is never told. */
    @Test
    public void aLostLockIsNotTakenAgainUnawares() throws Exception {
        assertTrue(lock.tryLock());
        lock.lock();
        long token = registry.lease("nightly").token();
        lose();
        assertThrows(LeaseLostException.class, lock::lock);
        assertFalse(lock.tryLock(500, TimeUnit.MILLISECONDS));
        assertThrows(IllegalStateException.class, () -> registry.lease("nightly"));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(lock.tryLock(500, TimeUnit.MILLISECONDS));
        assertTrue(registry.lease("nightly").token() > token);
        lock.unlock();
    }

    @Test
    public void aTimeToLiveEndsALockUnlessItIsRenewed() throws Exception {
        assertThrows(IllegalStateException.class, () -> registry.renewLock("nightly"));
        assertTrue(lock.tryLock(Duration.ZERO, Duration.ofMillis(300)));
        assertEquals("expired", registry.lease("nightly").lost().get(1, TimeUnit.MINUTES).code());
        assertThrows(IllegalStateException.class, () -> registry.renewLock("nightly"));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        // Renewed, it outlives the first one's time: of two in a row the second is asked when the first is over.
        DistributedLock first = registry.obtain("first");
        lock.lock(Duration.ofSeconds(2));
        registry.renewLock("nightly", Duration.ofHours(1));
        first.lock(Duration.ofSeconds(2));
        registry.lease("first").lost().get(1, TimeUnit.MINUTES);
        assertTrue(registry.lease("nightly").isHeld());
        registry.renewLock("nightly");
        lock.unlock();
        // Any time is one.
        assertTrue(lock.tryLock(Duration.ZERO, Duration.ofSeconds(Long.MAX_VALUE)));
        registry.renewLock("nightly", Duration.ofSeconds(Long.MAX_VALUE));
        lock.unlock();
        // Without a time to live there is nothing to move.
        lock.lock();
        registry.renewLock("nightly");
        lock.unlock();
    }

    @Test
    public void unusedLocksAreForgotten() {
        lock.lock();
        DistributedLock unused = registry.obtain("unused");
        registry.expireUnusedOlderThan(-1);
        assertSame(lock, registry.obtain("nightly"));
        assertTrue(unused != registry.obtain("unused"));
        lock.unlock();
    }

    private static LockRegistryLeaderInitiator candidate(PalisadeLockRegistry registry, String id, BlockingQueue<String> told) {
        LockRegistryLeaderInitiator initiator = new LockRegistryLeaderInitiator(registry, new DefaultCandidate(id, "nightly") {
            @Override
            public void onGranted(Context context) {
                told.add(id + " leads");
            }

            @Override
            public void onRevoked(Context context) {
                told.add(id + " is revoked");
            }
        });
        initiator.setHeartBeatMillis(20);
        initiator.setBusyWaitMillis(20);
        return initiator;
    }

    /** Spring's own elector calls tryLock while it leads: one lease until it is lost, and then it is told. */
    @Test
    public void aLeaderIsToldOfItsLoss() throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        LockRegistryLeaderInitiator one = candidate(registry, "one", told);
        one.start();
        assertEquals("one leads", told.poll(1, TimeUnit.MINUTES));
        Lease first = registry.lease("nightly");
        try (Client other = server.client()) {
            LockRegistryLeaderInitiator two = candidate(new PalisadeLockRegistry(other), "two", told);
            two.start();
            // A control, real time: some 15 heartbeats of a leader that lost nothing.
            assertNull(told.poll(300, TimeUnit.MILLISECONDS));
            assertSame(first, registry.lease("nightly"));
            assertEquals(List.of(first.token()), server.tokens("nightly"));
            server.expire("nightly");
            List<String> next = List.of(told.poll(1, TimeUnit.MINUTES), told.poll(1, TimeUnit.MINUTES));
            assertTrue(next.contains("one is revoked"), next.toString());
            assertFalse(first.isHeld());
            String leader = next.stream().filter(each -> each.endsWith("leads")).findFirst().orElseThrow();
            (leader.startsWith("one") ? one : two).stop();
            (leader.startsWith("one") ? two : one).stop();
        }
        assertFalse(one.isRunning());
    }

    @Test
    public void aLeaderThatStopsMakesWay() throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        LockRegistryLeaderInitiator one = candidate(registry, "one", told);
        one.start();
        assertEquals("one leads", told.poll(1, TimeUnit.MINUTES));
        try (Client other = server.client()) {
            LockRegistryLeaderInitiator two = candidate(new PalisadeLockRegistry(other), "two", told);
            two.start();
            one.stop();
            List<String> next = List.of(told.poll(1, TimeUnit.MINUTES), told.poll(1, TimeUnit.MINUTES));
            assertTrue(next.contains("one is revoked") && next.contains("two leads"), next.toString());
            two.stop();
        }
    }

    /**
     * A node is stopped past its lease. Another one has the lock after the lease, and what the first one writes when it goes on is
     * refused. Without the fence the acknowledged write is lost.
     */
    @Test
    public void aStoppedNodeLosesNothing() throws Exception {
        Map<String, String> ends = new LinkedHashMap<>();
        ends.put("bare", "written 10");
        ends.put("fenced", "expired 70");
        ends.put("late", "stale 70");
        try (Server real = new Server(); Client here = Client.builder().endpoints(real.url).build()) {
            PalisadeLockRegistry mine = new PalisadeLockRegistry(here);
            for (Map.Entry<String, String> each : ends.entrySet()) {
                try (HikariDataSource pool = Databases.pool(Databases.postgres())) {
                    Orders orders = Orders.jdbc(new PalisadeDataSource(pool));
                    assertEquals(each.getValue(), stopped(real, mine, orders, each.getKey()), each.getKey());
                }
            }
        }
    }

    private static String stopped(Server real, PalisadeLockRegistry mine, Orders orders, String mode) throws Exception {
        Process node = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                System.getProperty("java.class.path"), "example.palisade.spring.Node", real.url, Databases.postgres(), mode)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        try (Writer in = node.outputWriter(StandardCharsets.UTF_8);
                BufferedReader out = new BufferedReader(new InputStreamReader(node.getInputStream()))) {
            assertEquals("computed", out.readLine());
            Databases.run(List.of("kill", "-STOP", Long.toString(node.pid())));
            DistributedLock lock = mine.obtain("nightly");
            assertTrue(lock.tryLock(1, TimeUnit.MINUTES));
            try (var bound = Fenced.bind("orders", mine.lease("nightly"))) {
                orders.add(70);
            }
            lock.unlock();
            in.write("go on\n");
            in.flush();
            Databases.run(List.of("kill", "-CONT", Long.toString(node.pid())));
            assertEquals("lost", out.readLine());
            return out.readLine() + " " + orders.total();
        } finally {
            node.destroyForcibly();
        }
    }
}
