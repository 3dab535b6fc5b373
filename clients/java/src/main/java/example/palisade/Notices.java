package example.palisade;

import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** What the listeners of a lease are told. Whoever changes it waits for none of them. */
final class Notices {
    /** It ends with no client: a lease that nobody renews any more is lost even so. Each listener may block its thread. */
    private static final ExecutorService THREADS = new ThreadPoolExecutor(
            0, Integer.MAX_VALUE, 1, TimeUnit.SECONDS, new SynchronousQueue<>(), Client::thread);

    private final Lease lease;
    private final Set<Listener> listeners = new HashSet<>();
    /** How many requests wait, by lock. */
    private final Map<String, Integer> waiting = new HashMap<>();
    private boolean suspended;
    private int waiters;
    private boolean lost;
    /** It was released or handed over. */
    private boolean closed;

    Notices(Lease lease) {
        this.lease = lease;
    }

    /** One function, and what the calls so far amount to. */
    private final class Listener {
        private final Consumer<? super Notice> tell;
        private boolean toldSuspended;
        private int toldWaiters;
        private boolean toldLost;
        /** A thread calls the function, which is only while there is something to tell. */
        private boolean busy;

        Listener(Consumer<? super Notice> tell) {
            this.tell = tell;
        }

        /** Within the lock. */
        void inform() {
            if (!busy) {
                busy = true;
                THREADS.execute(this::run);
            }
        }

        private void run() {
            Thread.currentThread().setName("palisade: listener of " + lease.locks().get(0));
            for (Notice.Kind kind = next(); kind != null; kind = next()) {
                try {
                    // A lease that ends meanwhile has nothing left.
                    tell.accept(new Notice(
                            kind, kind == Notice.Kind.SUSPENDED ? lease.remaining() : Duration.ZERO,
                            kind == Notice.Kind.WANTED ? toldWaiters : 0, kind == Notice.Kind.LOST ? lease.loss() : null));
                } catch (RuntimeException | Error mistake) {
                    System.getLogger("example.palisade").log(
                            System.Logger.Level.ERROR, "a listener failed at the notice " + kind + " of " + lease, mistake);
                }
            }
        }

        /** What it is to be told now; null: nothing. */
        private Notice.Kind next() {
            synchronized (Notices.this) {
                if (closed || toldLost || !listeners.contains(this)) {
                    busy = false;
                    return null;
                }
                if (lost) {
                    toldLost = true;
                    return Notice.Kind.LOST;
                }
                if (suspended != toldSuspended) {
                    toldSuspended = suspended;
                    return suspended ? Notice.Kind.SUSPENDED : Notice.Kind.RESTORED;
                }
                if (waiters != toldWaiters) {
                    toldWaiters = waiters;
                    return waiters > 0 ? Notice.Kind.WANTED : Notice.Kind.UNWANTED;
                }
                busy = false;
                return null;
            }
        }
    }

    synchronized Lease.Registration listen(Consumer<? super Notice> tell) {
        Listener listener = new Listener(tell);
        listeners.add(listener);
        listener.inform();
        return () -> {
            synchronized (this) {
                listeners.remove(listener);
            }
        };
    }

    private void inform() {
        listeners.forEach(Listener::inform);
    }

    synchronized void suspended(boolean is) {
        if (suspended != is) {
            suspended = is;
            inform();
        }
    }

    /** Records how many requests wait for one of the locks. Tells whether that is news. */
    synchronized boolean wanted(String lock, int by) {
        Integer before = waiting.put(lock, by);
        int most = waiting.values().stream().mapToInt(Integer::intValue).max().orElse(0);
        if (waiters != most) {
            waiters = most;
            inform();
        }
        return by != (before == null ? 0 : before);
    }

    synchronized int waiters() {
        return waiters;
    }

    /** How many requests are known to wait for one of the locks. */
    synchronized int waiters(String lock) {
        return waiting.getOrDefault(lock, 0);
    }

    /** The lease is over. Only a loss is told. */
    synchronized void end(boolean isLoss) {
        if (isLoss) {
            lost = true;
            inform();
        } else {
            closed = true;
        }
    }
}
