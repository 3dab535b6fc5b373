package example.palisade.shedlock;

import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.LeaseLostException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * Locks of ShedLock at a Palisade server: {@code new PalisadeLockProvider(Client.builder().build())}.
 *
 * <p>A lock is a short lease, by default of 15 s, which the client renews until the method returns, at most for {@code
 * lockAtMostFor}. So the job of a node that died runs elsewhere after the lease, and not after {@code lockAtMostFor}. {@code
 * lockAtLeastFor} counts at the server, from the grant.
 *
 * <p>A method that was paused past its lease goes on, and ShedLock does not stop it: give {@link PalisadeLock#current} to a fence
 * where it writes.
 *
 * <p>{@code KeepAliveLockProvider} is not needed around it. An extension counts from its call, as in ShedLock's other providers. Its
 * {@code lockAtLeastFor} lasts no longer than a lease if the node dies.
 */
public final class PalisadeLockProvider implements ExtensibleLockProvider {
    private static final Duration SHORTEST = Duration.ofMillis(100);
    /** Longer is for ever. */
    private static final Duration LONGEST = Duration.ofDays(3650);
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "palisade-shedlock");
        thread.setDaemon(true);
        return thread;
    });

    private final Client client;
    private final Duration ttl;
    private final String prefix;

    /** With leases of 15 s. */
    public PalisadeLockProvider(Client client) {
        this(client, Duration.ofSeconds(15), "");
    }

    /**
     * With leases of that time: so long after a node's death its jobs run elsewhere.
     *
     * @param prefix stands before each name, which is printable ASCII; "" for none
     */
    public PalisadeLockProvider(Client client, Duration ttl, String prefix) {
        this.client = client;
        this.ttl = ttl;
        this.prefix = prefix;
    }

    /** Asks once. Throws if no server answers: then the method does not run. */
    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        Duration most = configuration.getLockAtMostFor();
        Duration first = longer(most.compareTo(ttl) < 0 ? most : ttl, SHORTEST);
        long asked = System.nanoTime();
        try {
            Optional<Lease> granted =
                    client.lock(prefix + configuration.getName()).ttl(first).atLeastFor(configuration.getLockAtLeastFor()).tryAcquire();
            return granted.map(lease -> new Lock(configuration, new Held(lease, asked)));
        } catch (InterruptedException gone) {
            Thread.currentThread().interrupt();
            throw new LockException("the thread was interrupted while it asked for \"" + configuration.getName() + "\"", gone);
        } catch (LeaseLostException late) {
            // It was paused for longer than the lease before it could begin.
            return Optional.empty();
        }
    }

    private static Duration longer(Duration one, Duration other) {
        return one.compareTo(other) > 0 ? one : other;
    }

    /** A lease with its end, which extensions move. */
    private static final class Held {
        final Lease lease;
        private long end;
        private boolean released;

        Held(Lease lease, long asked) {
            this.lease = lease;
            this.end = asked;
        }

        /** False: it is over. */
        synchronized boolean lastsFor(Duration wanted, long from) {
            if (released || !lease.isHeld()) {
                return false;
            }
            Duration most = wanted.compareTo(LONGEST) < 0 ? wanted : LONGEST;
            end = from + most.toNanos();
            lease.atMostFor(longer(most, SHORTEST));
            releaseAtEnd(most.toNanos());
            return true;
        }

        synchronized boolean isOver() {
            return released || System.nanoTime() - end >= 0 || !lease.isHeld();
        }

        /** An extension may have moved the end meanwhile. */
        private void releaseAtEnd(long left) {
            Executor then = CompletableFuture.delayedExecutor(left, TimeUnit.NANOSECONDS, THREADS);
            CompletableFuture.runAsync(() -> {
                if (isOver()) {
                    release();
                }
            }, then);
        }

        /** Never throws: ShedLock calls it in {@code finally}, and an error would hide the method's own. */
        void release() {
            synchronized (this) {
                released = true;
            }
            lease.close();
        }
    }

    private static final class Lock extends AbstractSimpleLock {
        private final Held held;
        /** Until when the lock stays closed by an extension, or null; by the grant's own time the server keeps it closed. */
        private final Long closedUntil;

        Lock(LockConfiguration configuration, Held held) {
            super(configuration);
            this.held = held;
            this.closedUntil = null;
            held.lastsFor(configuration.getLockAtMostFor(), held.end);
            PalisadeLock.begin(held.lease);
        }

        private Lock(LockConfiguration configuration, Held held, long closedUntil) {
            super(configuration);
            this.held = held;
            this.closedUntil = closedUntil;
        }

        @Override
        protected void doUnlock() {
            PalisadeLock.end(held.lease);
            long left = closedUntil == null ? 0 : closedUntil - System.nanoTime();
            if (left <= 0 || !held.lastsFor(Duration.ofNanos(left), System.nanoTime())) {
                held.release();
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            if (held.isOver() || !held.lastsFor(extended.getLockAtMostFor(), System.nanoTime())) {
                held.release();
                return Optional.empty();
            }
            long closedUntil = System.nanoTime() + extended.getLockAtLeastFor().toNanos();
            return Optional.of(new Lock(extended, held, closedUntil));
        }
    }
}
