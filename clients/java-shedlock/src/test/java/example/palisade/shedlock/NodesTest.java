package example.palisade.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.PalisadeException;
import example.palisade.fence.SqliteFence;
import example.palisade.testing.MemoryServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;
import org.junit.jupiter.api.Test;
import org.sqlite.SQLiteDataSource;

/** Nodes that are stopped, and what a method sees of its lock. */
public final class NodesTest {
    private final MemoryServer memory = new MemoryServer();

    private static LockConfiguration lock(String name, Duration most, Duration least) {
        return new LockConfiguration(Instant.now(), name, most, least);
    }

    /** As another node's scheduler, which tries at each of its times. */
    private static SimpleLock await(PalisadeLockProvider provider, LockConfiguration configuration) {
        long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
        Optional<SimpleLock> granted = provider.lock(configuration);
        while (granted.isEmpty()) {
            assertTrue(System.nanoTime() < end, "never granted");
            granted = provider.lock(configuration);
        }
        return granted.get();
    }

    /**
     * A node is stopped past its lease. The job runs on another one within the lease's time, although lockAtMostFor is two hours,
     * and what the first node writes when it goes on is refused. Without the fence the acknowledged write is lost.
     */
    @Test
    public void aStoppedNodeLosesNothing() throws Exception {
        Map<String, String> ends = new LinkedHashMap<>();
        ends.put("bare", "written 10");
        ends.put("fenced", "expired 70");
        ends.put("late", "stale 70");
        try (Server server = new Server(); Client client = Client.builder().endpoints(server.url).build()) {
            PalisadeLockProvider here = new PalisadeLockProvider(client);
            for (Map.Entry<String, String> each : ends.entrySet()) {
                String file = server.folder.resolve(each.getKey() + ".db").toString();
                SQLiteDataSource source = Node.source(file);
                try (Connection connection = source.getConnection(); Statement statement = connection.createStatement()) {
                    statement.execute("CREATE TABLE totals (total int)");
                    statement.execute("INSERT INTO totals VALUES (0)");
                }
                Server.run(Server.binary(), "fence", "install", "sqlite", "sqlite://" + file);
                Process node = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                        System.getProperty("java.class.path"), "example.palisade.shedlock.Node", server.url, file, each.getKey())
                        .redirectError(ProcessBuilder.Redirect.INHERIT).start();
                try (Writer in = node.outputWriter(StandardCharsets.UTF_8);
                        BufferedReader out = new BufferedReader(new InputStreamReader(node.getInputStream()))) {
                    assertEquals("computed", out.readLine());
                    Server.run("kill", "-STOP", Long.toString(node.pid()));
                    SimpleLock lock = await(here, Node.nightly());
                    SqliteFence.transact(source, "orders", PalisadeLock.current(), inside -> Node.write(inside, Node.total(inside) + 70));
                    lock.unlock();
                    in.write("go on\n");
                    in.flush();
                    Server.run("kill", "-CONT", Long.toString(node.pid()));
                    String said = out.readLine();
                    try (Connection connection = source.getConnection()) {
                        assertEquals(each.getValue(), said + " " + Node.total(connection), each.getKey());
                    }
                } finally {
                    node.destroyForcibly();
                }
            }
        }
    }

    @Test
    public void aLostLockDoesNotHideTheErrorOfItsMethod() throws Exception {
        try (Client client = memory.client()) {
            LockingTaskExecutor executor = new DefaultLockingTaskExecutor(new PalisadeLockProvider(client));
            assertThrows(ArithmeticException.class, () -> executor.executeWithLock((LockingTaskExecutor.Task) () -> {
                memory.revoke("nightly", "the test");
                throw new ArithmeticException("the job failed");
            }, Node.nightly()));
            assertThrows(IllegalStateException.class, PalisadeLock::current);
        }
    }

    @Test
    public void theMethodHasItsOwnLease() throws Exception {
        try (Client client = memory.client()) {
            PalisadeLockProvider provider = new PalisadeLockProvider(client, Duration.ofSeconds(15), "app/");
            SimpleLock outer = provider.lock(lock("outer", Duration.ofHours(1), Duration.ZERO)).orElseThrow();
            Lease lease = PalisadeLock.current();
            assertEquals("app/outer", lease.name());
            SimpleLock inner = provider.lock(lock("inner", Duration.ofHours(1), Duration.ZERO)).orElseThrow();
            assertEquals("app/inner", PalisadeLock.current().name());
            assertTrue(provider.lock(lock("outer", Duration.ofHours(1), Duration.ZERO)).isEmpty());
            assertEquals("app/inner", PalisadeLock.current().name());
            inner.unlock();
            assertEquals(lease, PalisadeLock.current());
            outer.unlock();
            assertThrows(IllegalStateException.class, PalisadeLock::current);
            assertFalse(lease.isHeld());
        }
    }

    @Test
    public void withoutAServerTheMethodDoesNotRun() throws Throwable {
        try (Client client = memory.client(builder -> builder.patience(Duration.ofSeconds(1)))) {
            LockingTaskExecutor executor = new DefaultLockingTaskExecutor(new PalisadeLockProvider(client));
            boolean[] ran = {false};
            memory.down();
            PalisadeException error = assertThrows(PalisadeException.class,
                    () -> executor.executeWithLock((Runnable) () -> ran[0] = true, Node.nightly()));
            assertEquals(PalisadeException.Kind.UNAVAILABLE, error.kind());
            assertFalse(ran[0]);
            // A control: it runs when the server is back.
            memory.up();
            executor.executeWithLock((Runnable) () -> ran[0] = true, Node.nightly());
            assertTrue(ran[0]);
        }
    }

    /** The promise of lockAtMostFor: the lock is free then, although the method goes on, whose fences refuse it. */
    @Test
    public void theLockIsFreeAfterLockAtMostFor() throws Exception {
        try (Client client = memory.client()) {
            PalisadeLockProvider provider = new PalisadeLockProvider(client);
            SimpleLock slow = provider.lock(lock("nightly", Duration.ofMillis(300), Duration.ZERO)).orElseThrow();
            Lease first = PalisadeLock.current();
            SimpleLock next = await(provider, lock("nightly", Duration.ofMinutes(1), Duration.ZERO));
            assertThrows(PalisadeException.class, first::check);
            assertTrue(PalisadeLock.current().token() > first.token());
            slow.unlock();
            PalisadeLock.current().check();
            next.unlock();
        }
    }

    /** Refused after the grant, it would be renewed for ever, and run nowhere. */
    @Test
    public void lockAtMostForMayBeForEver() throws Exception {
        try (Client client = memory.client()) {
            PalisadeLockProvider provider = new PalisadeLockProvider(client);
            for (Duration most : new Duration[] {Duration.ofDays(36_500), Duration.ofSeconds(Long.MAX_VALUE)}) {
                SimpleLock lock = provider.lock(lock("nightly", most, Duration.ZERO)).orElseThrow();
                lock.extend(most, Duration.ZERO).orElseThrow().unlock();
                assertTrue(memory.holder("nightly").isEmpty());
            }
        }
    }

    /** KeepAliveLockProvider extends in another thread, and an exception would end that without a word: there is none. */
    @Test
    public void keepingAliveIsNotEndedByAnException() throws Exception {
        Runnable[] extension = {null};
        ScheduledThreadPoolExecutor other = new ScheduledThreadPoolExecutor(1) {
            @Override
            public ScheduledFuture<?> scheduleAtFixedRate(Runnable task, long first, long period, TimeUnit unit) {
                extension[0] = task;
                return schedule(() -> {}, 1, TimeUnit.DAYS);
            }
        };
        try (Client client = memory.client()) {
            PalisadeLockProvider provider = new PalisadeLockProvider(client, Duration.ofSeconds(3), "");
            LockProvider kept = new KeepAliveLockProvider(provider, other);
            SimpleLock first = kept.lock(Node.nightly()).orElseThrow();
            memory.down();
            other.submit(extension[0]).get();
            memory.up();
            PalisadeLock.current().check();
            first.unlock();
            kept.lock(Node.nightly()).orElseThrow();
            Lease lease = PalisadeLock.current();
            memory.expire("nightly");
            lease.lost().get(1, TimeUnit.MINUTES);
            other.submit(extension[0]).get();
            assertEquals("expired", assertThrows(PalisadeException.class, () -> PalisadeLock.current().check()).code());
            // A control: a provider that throws.
            ExtensibleLockProvider throwing = configuration -> Optional.of(new AbstractSimpleLock(configuration) {
                @Override
                protected void doUnlock() {}

                @Override
                protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
                    throw new IllegalStateException("no server answers");
                }
            });
            new KeepAliveLockProvider(throwing, other).lock(Node.nightly());
            assertThrows(ExecutionException.class, () -> other.submit(extension[0]).get());
        } finally {
            other.shutdownNow();
        }
    }

    /** The lease is lost: the extension says so, and the fences of the method refuse its lease. */
    @Test
    public void aLostLockIsNotExtended() throws Exception {
        try (Client client = memory.client()) {
            PalisadeLockProvider provider = new PalisadeLockProvider(client, Duration.ofSeconds(3), "");
            LockingTaskExecutor executor = new DefaultLockingTaskExecutor(provider);
            assertThrows(RuntimeException.class, () -> executor.executeWithLock((LockingTaskExecutor.Task) () -> {
                LockExtender.extendActiveLock(Duration.ofHours(1), Duration.ZERO);
                Lease lease = PalisadeLock.current();
                lease.check();
                memory.expire("nightly");
                assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code());
                assertThrows(LockExtender.LockExtensionException.class,
                        () -> LockExtender.extendActiveLock(Duration.ofHours(1), Duration.ZERO));
                assertEquals("expired", assertThrows(PalisadeException.class, () -> PalisadeLock.current().check()).code());
                throw new IllegalArgumentException("the job gives up");
            }, Node.nightly()));
        }
    }
}
