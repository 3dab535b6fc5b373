package example.palisade;

import example.palisade.internal.Exchange;
import example.palisade.internal.Json;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Hears from the server what becomes of the client's leases: one request for up to 100 grants is always under way, while there
 * are any. Only renewals decide whether a lease is suspended: when nothing is heard, nothing happens.
 */
final class Listening {
    /** The server takes no more grants in a request. */
    private static final int MOST = 100;
    /** The server answers after this time, if it has nothing to say before; less, where something on the way ends requests. */
    private static final long LONGEST_WAIT = 20 * Clock.SECOND;
    private static final long SHORTEST_WAIT = 2 * Clock.SECOND;
    /** A request that ends earlier did not wait. */
    private static final long HAS_WAITED = Clock.SECOND;
    /** How much later an answer may come. */
    private static final long PATIENCE = 5 * Clock.SECOND;
    /** New grants are named together, and a lease that is released sooner is never named. */
    private static final long GATHER = 100 * Clock.MILLISECOND;
    /** After an answer with news. */
    private static final long SHORTEST_REST = 50 * Clock.MILLISECOND;
    private static final long LONGEST_REST = 150 * Clock.MILLISECOND;
    /** After requests without a good answer, doubled each time. */
    private static final long FIRST_REST = 500 * Clock.MILLISECOND;
    private static final long LAST_REST = 8 * Clock.SECOND;
    /** When no lease is left, the server may still say so: that keeps the connection. */
    private static final long LAST_ANSWER = 500 * Clock.MILLISECOND;

    private final Endpoints endpoints;
    private final Supplier<Exchange> exchange;
    private final Executor threads;
    private final boolean on;
    /** Its failures change nothing for renewals: it has an order of addresses, and connections, of its own. */
    private Transport transport;
    private final List<Shard> shards = new ArrayList<>();
    /** The addresses that said that they know no notices. */
    private final Set<String> mute = new HashSet<>();
    /** No address knows them. */
    private boolean deaf;
    /** The last renewal did not say how many requests wait, so its server is an older one. */
    private boolean old;
    private boolean closed;

    /** {@code exchange} is asked for once there is a lease. */
    Listening(Endpoints endpoints, Supplier<Exchange> exchange, Executor threads, boolean on) {
        this.endpoints = endpoints;
        this.exchange = exchange;
        this.threads = threads;
        this.on = on;
    }

    /** One lock of a lease. */
    private record Named(Lease lease, String lock) {}

    /** Names the grants of a lease soon. */
    void add(Lease lease) {
        synchronized (this) {
            if (!on || deaf || closed || lease.listened) {
                return;
            }
            lease.listened = true;
            lease.locks().forEach(lock -> add(new Named(lease, lock)));
        }
        if (!lease.isHeld()) {
            remove(lease);
        }
    }

    private void add(Named named) {
        for (Shard shard : shards) {
            if (shard.grants.size() < MOST && !shard.stopped) {
                shard.add(named);
                return;
            }
        }
        Shard shard = new Shard();
        shard.grants.put(named, false);
        try {
            threads.execute(shard::run);
            shards.add(shard);
        } catch (RejectedExecutionException closing) {
            // Nothing is heard any more.
        }
    }

    /** Forgets the grants of a lease. The request under way goes on for the others. */
    synchronized void remove(Lease lease) {
        for (Shard shard : shards) {
            lease.locks().forEach(lock -> shard.forget(new Named(lease, lock)));
        }
    }

    /**
     * Is told of each renewal, and whether its answer said how many requests wait. An older server does not; when one does that
     * did not, a newer server has taken its place, which may know notices.
     */
    void renewed(Lease lease, boolean says) {
        synchronized (this) {
            if (says && old) {
                deaf = false;
                mute.clear();
            }
            old = !says;
        }
        add(lease);
    }

    synchronized void close() {
        closed = true;
        shards.forEach(Shard::stop);
    }

    /** An address knows no notices. When none does, nobody is asked any more. */
    private synchronized void mute(String address) {
        endpoints.failed(address);
        boolean first = mute.add(address);
        if (first && mute.size() < endpoints.size()) {
            return;
        }
        deaf = true;
        for (Shard shard : shards) {
            shard.grants.keySet().forEach(named -> named.lease().listened = false);
            shard.grants.clear();
            shard.stop();
        }
    }

    private synchronized Transport transport() {
        if (transport == null) {
            transport = new Transport(endpoints, exchange.get());
        }
        return transport;
    }

    /** The grants of one request. Its fields belong to the lock of all. */
    private final class Shard {
        /** Whether the request under way names the grant. */
        private final Map<Named, Boolean> grants = new HashMap<>();
        /** The thread that waits for an answer, or null. */
        private Thread asking;
        private boolean gathering;
        private boolean ending;
        private boolean restarted;
        private boolean stopped;
        private long rest = FIRST_REST;
        private long wait = LONGEST_WAIT;

        void add(Named named) {
            grants.put(named, false);
            // Without a request under way, the next one names it.
            if (asking != null && !gathering) {
                gathering = true;
                Client.after(GATHER, this::gathered);
            }
        }

        /** Ends the request under way if it lacks a grant that is still held. */
        private void gathered() {
            synchronized (Listening.this) {
                gathering = false;
                if (asking != null && grants.containsValue(false)) {
                    restarted = true;
                    asking.interrupt();
                }
            }
        }

        void forget(Named named) {
            if (grants.remove(named) != null && grants.isEmpty() && !ending) {
                ending = true;
                Client.after(LAST_ANSWER, () -> {
                    synchronized (Listening.this) {
                        ending = false;
                        if (grants.isEmpty()) {
                            stop();
                        }
                    }
                });
            }
        }

        void stop() {
            stopped = true;
            Listening.this.notifyAll();
            if (asking != null) {
                asking.interrupt();
            }
        }

        void run() {
            Thread.currentThread().setName("palisade: notices");
            List<Named> named;
            for (long pause = GATHER; (named = begin(pause)) != null; pause = ask(named)) {
                // It goes on until no grant is left.
            }
            // The client has other work for the thread.
            Thread.currentThread().setName("palisade");
        }

        /** Waits, and names the grants of the next request. Null: the shard ends. */
        private List<Named> begin(long pause) {
            synchronized (Listening.this) {
                long until = System.nanoTime() + pause;
                long left;
                while (!stopped && (left = until - System.nanoTime()) > 0) {
                    try {
                        TimeUnit.NANOSECONDS.timedWait(Listening.this, left);
                    } catch (InterruptedException closing) {
                        stopped = true;
                    }
                }
                if (stopped || grants.isEmpty() || fitsElsewhere()) {
                    stopped = true;
                    shards.remove(this);
                    return null;
                }
                grants.replaceAll((each, before) -> true);
                asking = Thread.currentThread();
                return List.copyOf(grants.keySet());
            }
        }

        /** Another shard takes the rest. A half: then a few new grants do not part them again. */
        private boolean fitsElsewhere() {
            for (Shard other : shards) {
                if (other != this && !other.stopped && other.grants.size() + grants.size() <= MOST / 2) {
                    grants.keySet().forEach(other::add);
                    return true;
                }
            }
            return false;
        }

        /** The request is over. Tells whether it was ended here. */
        private boolean end() {
            synchronized (Listening.this) {
                asking = null;
                // The thread goes on with other requests, or with other work of the client.
                Thread.interrupted();
                boolean ended = restarted || stopped;
                restarted = false;
                return ended;
            }
        }

        /** Makes one request. Returns how long to wait before the next one. */
        private long ask(List<Named> named) {
            long sent = System.nanoTime();
            String address = endpoints.current();
            Transport.Attempt attempt = null;
            try {
                attempt = transport().attempt(address, request(named, wait), Clock.earliest() + wait + PATIENCE);
            } catch (Reply.Fault | RuntimeException nobody) {
                // It is asked again, later.
            } catch (InterruptedException ended) {
                // As above, or it stops.
            }
            if (end() || attempt != null && attempt.follow()) {
                return 0;
            }
            if (attempt == null || attempt.reply().status() != 200) {
                if (attempt != null && attempt.reply().status() == 404) {
                    mute(address);
                }
                if (System.nanoTime() - sent >= HAS_WAITED) {
                    wait = Math.max(wait / 2, SHORTEST_WAIT);
                }
                return longerRest();
            }
            synchronized (Listening.this) {
                mute.remove(address);
            }
            List<Map<String, Object>> told = notices(attempt.reply());
            if (take(named, told)) {
                rest = FIRST_REST;
                return ThreadLocalRandom.current().nextLong(SHORTEST_REST, LONGEST_REST);
            }
            if (!told.isEmpty() || System.nanoTime() - sent < wait / 2) {
                // A server that always answers at once is not asked in a loop.
                return longerRest();
            }
            rest = FIRST_REST;
            wait = Math.min(wait + Clock.SECOND, LONGEST_WAIT);
            return 0;
        }

        /** With up to a quarter more, so that many clients do not come back at once. */
        private long longerRest() {
            long pause = rest + ThreadLocalRandom.current().nextLong(rest / 4);
            rest = Math.min(2 * rest, LAST_REST);
            return pause;
        }

        /** Tells the leases what was heard. False: all of it was known. */
        private boolean take(List<Named> named, List<Map<String, Object>> told) {
            boolean news = false;
            for (Map<String, Object> notice : told) {
                for (Named one : named) {
                    if (!isAbout(notice, one)) {
                        continue;
                    }
                    if ("ended".equals(notice.get("event"))) {
                        news = true;
                        synchronized (Listening.this) {
                            forget(one);
                        }
                        one.lease().endedAtServer(one.lock(), notice.get("how"), notice.get("reason"));
                    } else if ("wanted".equals(notice.get("event")) && Reply.waiters(notice) != null) {
                        news |= one.lease().notices().wanted(one.lock(), Reply.waiters(notice));
                    }
                }
            }
            return news;
        }
    }

    private static boolean isAbout(Map<String, Object> notice, Named named) {
        return named.lock().equals(notice.get("resource_id")) && ((Long) named.lease().grantId()).equals(notice.get("fencing_token"));
    }

    private static Transport.Request request(List<Named> named, long wait) {
        // Two leases may be of one grant, of which one adopted it. The server takes each once.
        Map<List<Object>, Map<String, Object>> grants = new LinkedHashMap<>();
        for (Named one : named) {
            Map<String, Object> grant = one.lease().proof(one.lock());
            grants.putIfAbsent(List.of(one.lock(), one.lease().grantId()), grant);
        }
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("grants", List.copyOf(grants.values()));
        body.put("wait_ms", wait / Clock.MILLISECOND);
        return Transport.Request.post("/v1/listen", body, answer -> differs(answer, named));
    }

    /** Why an answer is not that of this request, or null. */
    private static String differs(Reply answer, List<Named> named) {
        if (answer.status() != 200) {
            return null;
        }
        List<Map<String, Object>> told = notices(answer);
        if (told == null) {
            return "notices are missing or broken";
        }
        for (Map<String, Object> notice : told) {
            if (named.stream().noneMatch(one -> isAbout(notice, one))) {
                return "a notice is about a grant that was not named";
            }
        }
        return null;
    }

    /** Null: it has none. */
    private static List<Map<String, Object>> notices(Reply answer) {
        if (!(answer.value().get("notices") instanceof List<?> list)) {
            return null;
        }
        List<Map<String, Object>> told = new ArrayList<>();
        for (Object one : list) {
            Map<String, Object> notice = Json.asObject(one);
            if (notice == null) {
                return null;
            }
            told.add(notice);
        }
        return told;
    }
}
