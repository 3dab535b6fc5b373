package example.palisade.spring;

import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.LeaseLostException;
import example.palisade.LockRequest;
import example.palisade.PalisadeException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Locks of Spring Integration at a Palisade server: {@code new PalisadeLockRegistry(Client.builder().build())}.
 *
 * <p>A lock is a lease of 15 s that the client renews until {@code unlock}; {@code renewLock} is not needed. A lock that was taken with
 * a time to live is renewed, too, and is over after that time, which {@code renewLock} counts anew.
 *
 * <p>As in Spring's other registries a thread of this process first waits for the others of it. The thread that has a lock may take it
 * again, and no other thread unlocks it. If the lease was lost meanwhile, {@code unlock} throws {@link
 * ConcurrentModificationException}. {@code tryLock} by the thread that has it answers false then, and forgets the lock: so {@code
 * LockRegistryLeaderInitiator} revokes its leader. {@code lock} throws {@link LeaseLostException} there.
 *
 * <p>While no server answers, {@code lock} waits for one, and {@code tryLock} throws a {@link PalisadeException} after its time and the
 * client's patience.
 *
 * <p>{@link #lease} is for a fence, where the work writes.
 */
public final class PalisadeLockRegistry implements RenewableLockRegistry<DistributedLock>, ExpirableLockRegistry<DistributedLock> {
    private static final Duration SHORTEST = Duration.ofMillis(100);
    private static final Duration LONGEST_WAIT = Duration.ofHours(24);
    /** A longer time to live is for ever. */
    private static final Duration LONGEST = Duration.ofDays(3650);

    private final Client client;
    private final Duration ttl;
    private final String prefix;
    private final Map<String, Local> locks = new ConcurrentHashMap<>();

    /** With leases of 15 s. */
    public PalisadeLockRegistry(Client client) {
        this(client, Duration.ofSeconds(15), "");
    }

    /**
     * With leases of that time: so long after a node's death its locks are free.
     *
     * @param prefix stands before each key; both together are 1 to 255 characters of printable ASCII
     */
    public PalisadeLockRegistry(Client client, Duration ttl, String prefix) {
        this.client = Objects.requireNonNull(client, "the client is needed, and not null");
        this.ttl = ttl;
        this.prefix = prefix;
    }

    /** The lock of a key, of which {@code toString} is the name. */
    @Override
    public DistributedLock obtain(Object key) {
        return local(key);
    }

    private Local local(Object key) {
        return locks.compute(prefix + Objects.requireNonNull(key, "the key of a lock is needed, and not null"), (name, known) -> {
            Local local = known == null ? new Local(name) : known;
            local.usedAt = System.nanoTime();
            return local;
        });
    }

    /**
     * The lease of a lock that a thread of this process has, for a fence: {@code Fenced.bind("orders", registry.lease("leader"))}. One
     * that was lost is refused there.
     *
     * @throws IllegalStateException if no thread of this process has the lock
     */
    public Lease lease(Object key) {
        Local local = locks.get(prefix + key);
        Lease lease = local == null ? null : local.lease;
        if (lease == null) {
            throw new IllegalStateException("no thread of this process has the lock \"" + prefix + key + "\" of this registry");
        }
        return lease;
    }

    /** As {@link #renewLock(Object, Duration)}, with the time to live that the lock was taken with. */
    @Override
    public void renewLock(Object key) {
        renew(key, null);
    }

    /**
     * Counts a time to live from now.
     *
     * @throws IllegalStateException if no thread of this process has the lock, or its lease was lost
     */
    @Override
    public void renewLock(Object key, Duration most) {
        renew(key, Objects.requireNonNull(most, "a time to live is needed, and not null"));
    }

    private void renew(Object key, Duration most) {
        Lease lease = lease(key);
        Duration wanted = most == null ? locks.get(prefix + key).most : most;
        try {
            if (wanted == null) {
                lease.check();
            } else {
                lease.atMostFor(longer(shorter(wanted, LONGEST), SHORTEST));
            }
        } catch (LeaseLostException lost) {
            throw new IllegalStateException("the lock \"" + prefix + key + "\" cannot be renewed: its lease was lost", lost);
        }
    }

    /** Forgets the locks that nobody has, and that nobody has obtained for so many milliseconds. */
    @Override
    public void expireUnusedOlderThan(long age) {
        long now = System.nanoTime();
        locks.values().removeIf(each -> !each.local.isLocked() && now - each.usedAt > TimeUnit.MILLISECONDS.toNanos(age));
    }

    private static Duration longer(Duration one, Duration other) {
        return one.compareTo(other) > 0 ? one : other;
    }

    private static Duration shorter(Duration one, Duration other) {
        return one.compareTo(other) < 0 ? one : other;
    }

    /** A lock of this process, and its lease while a thread has it. */
    private final class Local implements DistributedLock {
        private final String name;
        private final ReentrantLock local = new ReentrantLock();
        private volatile long usedAt;
        private volatile Lease lease;
        /** How long it lasts at most, or null. */
        private volatile Duration most;
        /** The thread whose lock was forgotten, for what its {@code unlock} says. */
        private volatile Thread forgot;

        Local(String name) {
            this.name = name;
        }

        @Override
        public void lock() {
            lockFor(null);
        }

        @Override
        public void lock(Duration atMost) {
            lockFor(Objects.requireNonNull(atMost, "a time to live is needed, and not null"));
        }

        private void lockFor(Duration atMost) {
            local.lock();
            boolean interrupted = false;
            try {
                while (true) {
                    try {
                        enter(atMost);
                        return;
                    } catch (InterruptedException later) {
                        interrupted = true;
                    }
                }
            } finally {
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            local.lockInterruptibly();
            try {
                enter(null);
            } catch (InterruptedException gone) {
                local.unlock();
                throw gone;
            }
        }

        /** Waits for the server without end. After an interruption the thread still has the local lock. */
        private void enter(Duration atMost) throws InterruptedException {
            boolean done = false;
            try {
                if (local.getHoldCount() > 1) {
                    lease.check();
                } else {
                    while (!acquire(LONGEST_WAIT, atMost)) {
                        // It is asked for again.
                    }
                }
                done = true;
            } catch (InterruptedException gone) {
                done = true;
                throw gone;
            } finally {
                if (!done) {
                    local.unlock();
                }
            }
        }

        @Override
        public boolean tryLock() {
            if (!local.tryLock()) {
                return false;
            }
            try {
                return tryEnter(Duration.ZERO, null);
            } catch (InterruptedException gone) {
                Thread.currentThread().interrupt();
                return false;
            }
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return tryLockFor(Duration.ofNanos(unit.toNanos(time)), null);
        }

        @Override
        public boolean tryLock(Duration wait, Duration atMost) throws InterruptedException {
            return tryLockFor(wait, Objects.requireNonNull(atMost, "a time to live is needed, and not null"));
        }

        private boolean tryLockFor(Duration wait, Duration atMost) throws InterruptedException {
            Duration longest = shorter(longer(wait, Duration.ZERO), LONGEST_WAIT);
            long began = System.nanoTime();
            if (!local.tryLock(longest.toNanos(), TimeUnit.NANOSECONDS)) {
                return false;
            }
            return tryEnter(longer(longest.minusNanos(System.nanoTime() - began), Duration.ZERO), atMost);
        }

        private boolean tryEnter(Duration wait, Duration atMost) throws InterruptedException {
            boolean done = false;
            try {
                if (local.getHoldCount() == 1) {
                    done = acquire(wait, atMost);
                } else if (lease.isHeld()) {
                    done = true;
                } else {
                    // A new grant would have a new token, of which the holder would not learn.
                    forget();
                }
                return done;
            } finally {
                if (!done) {
                    local.unlock();
                }
            }
        }

        /** Gives up what the thread had before, except for one hold. */
        private void forget() {
            lease.close();
            lease = null;
            forgot = Thread.currentThread();
            while (local.getHoldCount() > 1) {
                local.unlock();
            }
        }

        private boolean acquire(Duration wait, Duration atMost) throws InterruptedException {
            Duration first = atMost == null ? ttl : longer(shorter(atMost, ttl), SHORTEST);
            LockRequest request = client.lock(name).ttl(first);
            try {
                Optional<Lease> granted = (wait.isZero() ? request : request.waitUpTo(wait)).tryAcquire();
                if (granted.isEmpty()) {
                    return false;
                }
                if (atMost != null) {
                    granted.get().atMostFor(longer(shorter(atMost, LONGEST), SHORTEST));
                }
                most = atMost;
                forgot = null;
                lease = granted.get();
                return true;
            } catch (LeaseLostException late) {
                // The process was paused for longer than the lease before it could begin.
                return false;
            }
        }

        @Override
        public void unlock() {
            if (!local.isHeldByCurrentThread()) {
                if (forgot == Thread.currentThread()) {
                    forgot = null;
                    throw lost();
                }
                throw new IllegalMonitorStateException("this thread does not have the lock \"" + name + "\"");
            }
            if (local.getHoldCount() > 1) {
                local.unlock();
                return;
            }
            boolean held;
            try {
                held = release(lease);
            } finally {
                lease = null;
                local.unlock();
            }
            if (!held) {
                throw lost();
            }
        }

        private ConcurrentModificationException lost() {
            return new ConcurrentModificationException("the lease of \"" + name + "\" was lost before unlock(): another holder may have"
                    + " had the lock meanwhile");
        }

        /** Whether it was held until now. */
        private boolean release(Lease ending) {
            boolean held = ending.isHeld();
            try {
                return ending.release() == Lease.Release.RELEASED && held;
            } catch (InterruptedException gone) {
                // The release goes on in the background.
                Thread.currentThread().interrupt();
            } catch (LeaseLostException handedOver) {
                return false;
            } catch (PalisadeException nobodyAnswered) {
                // The work is done, and the lock is free when the lease expires.
            }
            return held;
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("a lock of a server has no conditions");
        }

        @Override
        public String toString() {
            return "PalisadeLock(" + name + ")";
        }
    }
}
