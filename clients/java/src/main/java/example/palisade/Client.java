package example.palisade;

import example.palisade.internal.Exchange;
import example.palisade.internal.Json;
import java.net.InetAddress;
import java.net.URLEncoder;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Phaser;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;

/**
 * Asks a Palisade server, or the servers of a cluster, for locks. It may be used by several threads, and should be shared:
 * it keeps connections.
 */
public final class Client implements AutoCloseable {
    /** The address of a stand-in, to which nothing is sent. */
    private static final List<String> STAND_IN = List.of("http://memory");

    private final Transport transport;
    private final Reports reports;
    private final Listening listening;
    private final ExecutorService threads;
    private final long patience;
    private final long margin;
    /** The host that a client runs on, for people. Each acquire adds random characters, which make its client id unique. */
    private final String host = hostName();
    /** Requests that are being given up in the background. */
    private final Phaser background = new Phaser(1);
    private volatile boolean closed;

    private Client(Builder builder) {
        threads = Executors.newCachedThreadPool(Client::thread);
        Supplier<Exchange> exchange;
        if (builder.exchange != null) {
            exchange = () -> builder.exchange;
            transport = new Transport(new Endpoints(STAND_IN, false), builder.exchange);
        } else {
            Bearer bearer = new Bearer(builder.bearer, builder.bearerFile);
            Endpoints endpoints = new Endpoints(builder.endpoints, bearer.isSet());
            exchange = () -> new Http(bearer, builder.tls, threads);
            transport = new Transport(endpoints, exchange.get());
        }
        listening = new Listening(transport.endpoints.again(), exchange, threads, builder.notices);
        reports = new Reports(transport, threads, builder.reportRefusals);
        patience = builder.patience.toNanos();
        margin = builder.margin.toNanos();
    }

    /** Begins to set a client up. */
    public static Builder builder() {
        return new Builder();
    }

    /** Sets a client up. */
    public static final class Builder {
        private List<String> endpoints;
        private String bearer;
        private Path bearerFile;
        private SSLContext tls;
        private Duration patience = Duration.ofSeconds(5);
        private Duration margin = Duration.ZERO;
        private boolean reportRefusals = true;
        private boolean notices = true;
        private Exchange exchange;

        private Builder() {}

        /**
         * The addresses of the servers, http://HOST:PORT or https://HOST:PORT, of which one leads. By default those of
         * PALISADE_URL, separated by commas, or else http://127.0.0.1:7420.
         */
        public Builder endpoints(String... addresses) {
            if (addresses == null || Arrays.asList(addresses).contains(null)) {
                throw PalisadeException.invalid("endpoints: addresses such as http://HOST:PORT are needed, and not null");
            }
            endpoints = List.of(addresses);
            return this;
        }

        /**
         * Is sent as Authorization with every request, with TLS or within this machine only. By default it is that of
         * PALISADE_TOKEN.
         */
        public Builder bearerToken(String token) {
            bearer = token;
            return this;
        }

        /**
         * A file with the bearer token. It is read again for each request, so a token may be replaced while the client runs;
         * while the file cannot be used, the last token stays.
         */
        public Builder bearerTokenFile(Path file) {
            bearerFile = file;
            return this;
        }

        /**
         * For https addresses: authorities, a client certificate. It is not read again: for a certificate that is replaced,
         * use {@link #tlsFiles}.
         */
        public Builder sslContext(SSLContext context) {
            tls = context;
            return this;
        }

        /**
         * Files in PEM for https addresses: the CAs of the servers (null: those of this JVM), the client's certificate, and
         * its key in PKCS #8 (null for both: none). They are read again for each new connection, so they may be replaced while
         * the client runs; while the new files do not match, the old ones stay in use. It replaces {@link #sslContext}.
         */
        public Builder tlsFiles(Path ca, Path certificate, Path key) {
            tls = Certificates.of(ca, certificate, key);
            return this;
        }

        /** How long a call is repeated while there is no answer, 1 ms – 24 h; an acquire for that long after its wait. */
        public Builder patience(Duration duration) {
            patience = LockRequest.within("the patience", duration, Duration.ofMillis(1), Duration.ofDays(1));
            return this;
        }

        /** Subtracted from each deadline: the time to leave between a check and the effect of the next operation, 0 – 24 h. */
        public Builder margin(Duration duration) {
            margin = LockRequest.within("the margin", duration, Duration.ZERO, Duration.ofDays(1));
            return this;
        }

        /**
         * Whether the client tells the authority of late writes that a fence refused, so that {@code palisade history} shows
         * them. It is done in the background, and no caller waits for it. By default it is.
         */
        public Builder reportRefusals(boolean on) {
            reportRefusals = on;
            return this;
        }

        /**
         * Whether the client listens for what the server says about its leases: their ends, and who waits for them. Otherwise both
         * are learned from renewals, after a third of a TTL, and no further request is sent. By default it listens.
         */
        public Builder notices(boolean on) {
            notices = on;
            return this;
        }

        /** Internal: asks a stand-in instead of servers. {@link example.palisade.testing.MemoryServer#client()} sets it. */
        @SuppressWarnings("exports") // the module keeps the type to itself
        public Builder exchange(Exchange standIn) {
            exchange = standIn;
            return this;
        }

        /** Makes the client. It sends nothing yet. */
        public Client build() {
            return new Client(this);
        }
    }

    /** A request for a lock, which {@link LockRequest#acquire} sends. */
    public LockRequest lock(String name) {
        checkOpen();
        return new LockRequest(this, name);
    }

    /**
     * A request for 1 – 64 locks at once: all or none, under one lease with one token. Each name once, in any order. Nothing
     * is held while it waits. Claim every resource before the first read of any, each with {@link Lease#part}.
     *
     * <p>Several locks are exclusive: {@link LockRequest#acquire} refuses shared, permits and delays.
     */
    public LockRequest locks(String... names) {
        checkOpen();
        return new LockRequest(this, names);
    }

    /** The holder of a lock and the number of waiters. */
    public LockInfo show(String name) throws InterruptedException {
        return read(() -> Reply.lock(shown(name)));
    }

    Map<String, Object> shown(String name) throws InterruptedException {
        return ask(Transport.Request.get(lockPath(LockRequest.checkedName(name), ""), isAbout(name)));
    }

    /**
     * The leader of an election: the holder of the lock of that name, with the value that it announces. To campaign, acquire the
     * lock with {@link LockRequest#metadata}; to change the value, {@link Lease#proclaim}; to resign, release.
     */
    public Optional<Leader> leader(String name) throws InterruptedException {
        return read(() -> Leader.of(shown(name)));
    }

    /** The leaders of an election: the present one, then each change. */
    public Observer observe(String name) {
        checkOpen();
        return new Observer(this, LockRequest.checkedName(name));
    }

    /**
     * Goes on with a lease that another process has {@linkplain Lease#export exported}: renews it at once, and then as one of its
     * own. It counts from this first renewal alone, whatever the exporter believed, because clocks of two machines differ.
     *
     * @throws LeaseLostException if the lease is over
     * @throws PalisadeException of the kind {@code UNAVAILABLE} if nobody answers: nothing is held, and the call may be repeated
     */
    public Lease adopt(String exported) throws InterruptedException {
        checkOpen();
        return Handed.of(exported).adopt(this);
    }

    /** The locks that are held and whose names start with that prefix, asked for page by page. */
    public Iterable<LockInfo> list(String prefix) {
        checkPrefix(prefix);
        return () -> new Pages(prefix);
    }

    /** Takes a lock from its holder. The token is that of the current grant, or a reader's grant id. */
    public void breakLock(String name, long token, String reason) throws InterruptedException {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("fencing_token", token);
        body.put("reason", reason);
        ask(Transport.Request.post(lockPath(LockRequest.checkedName(name), "/break"), body, isAbout(name)));
    }

    /**
     * Gives a semaphore that is in use another number of permits. Holders keep their slots; a lower number takes effect as
     * they come free.
     */
    public void resize(String name, int permits) throws InterruptedException {
        String path = lockPath(LockRequest.checkedName(name), "/permits");
        ask(Transport.Request.post(path, Map.of("of", permits), isAbout(name)));
    }

    private static String checkPrefix(String prefix) {
        if (prefix == null) {
            throw PalisadeException.invalid("a prefix is needed, \"\" for all locks, and not null");
        }
        return prefix;
    }

    private static Transport.Differs isAbout(String name) {
        return Transport.Differs.unless(Map.of("resource_id", name));
    }

    /** The changes, from now on, of the locks whose names start with that prefix. */
    public Watch watch(String prefix) {
        return new Watch(this, checkPrefix(prefix), null);
    }

    /** The changes after a revision, as far as the server still remembers them; 0 is before the first one. */
    public Watch watch(String prefix, long after) {
        return new Watch(this, checkPrefix(prefix), after);
    }

    /**
     * How many reports of refused late writes did not reach the authority: they were too many, or it was not there, or it refused
     * them.
     */
    public long reportsDropped() {
        return reports.dropped();
    }

    Reports reports() {
        return reports;
    }

    Listening listening() {
        return listening;
    }

    /**
     * Finishes giving up requests and locks in the background, at most for the client's patience, and reports of refused late
     * writes, at most for a quarter of a second, and then ends all background work. Leases that are still held are no longer renewed, and are lost at their deadline: release them first.
     */
    @Override
    public void close() {
        closed = true;
        listening.close();
        try {
            background.awaitAdvanceInterruptibly(background.arrive(), patience, TimeUnit.NANOSECONDS);
        } catch (TimeoutException late) {
            // The rest expires.
        } catch (InterruptedException gone) {
            Thread.currentThread().interrupt();
        }
        try {
            reports.close();
        } catch (InterruptedException gone) {
            Thread.currentThread().interrupt();
        }
        threads.shutdownNow();
    }

    static Thread thread(Runnable task) {
        Thread thread = new Thread(task, "palisade");
        thread.setDaemon(true);
        return thread;
    }

    Transport transport() {
        return transport;
    }

    long patience() {
        return patience;
    }

    long margin() {
        return margin;
    }

    String host() {
        return host;
    }

    /** A task that may wait. */
    @FunctionalInterface
    interface Task {
        void run() throws InterruptedException;
    }

    /** Announces losses. It ends with no client: a lease that nobody renews any more is lost at its deadline even so. */
    private static final class Alarms {
        static final ScheduledExecutorService ALL = Executors.newSingleThreadScheduledExecutor(Client::thread);
    }

    /** Runs a short task after so many nanoseconds. */
    static void after(long delay, Runnable task) {
        Alarms.ALL.schedule(task, delay, TimeUnit.NANOSECONDS);
    }

    /** Runs a task that ends with the client. */
    void start(String name, Task task) {
        checkOpen();
        threads.execute(() -> {
            Thread.currentThread().setName("palisade: " + name);
            try {
                task.run();
            } catch (InterruptedException closing) {
                Thread.currentThread().interrupt();
            }
        });
    }

    /** As {@link #start}, for a task that a closed client does not need. */
    void startUnlessClosed(String name, Task task) {
        try {
            start(name, task);
        } catch (PalisadeException | RejectedExecutionException closing) {
            // Nothing is renewed any more.
        }
    }

    /** Runs work that nobody waits for. */
    void inBackground(Task task) {
        if (closed) {
            return;
        }
        background.register();
        threads.execute(() -> {
            try {
                task.run();
            } catch (InterruptedException closing) {
                Thread.currentThread().interrupt();
            } catch (PalisadeException leftToExpire) {
                // Nobody waits for it, and the server finds out by itself.
            } finally {
                background.arriveAndDeregister();
            }
        });
    }

    Map<String, Object> ask(Transport.Request request) throws InterruptedException {
        checkOpen();
        Reply reply = transport.repeat(request, Clock.earliest() + patience, Client::sleepUntil);
        if (reply.status() != 200) {
            throw reply.error();
        }
        return reply.value();
    }

    void checkOpen() {
        if (closed) {
            throw PalisadeException.invalid("the client is closed");
        }
    }

    /** In slices: the system's timers stop in suspension. */
    static void sleepUntil(long instant) throws InterruptedException {
        long left;
        while ((left = instant - Clock.earliest()) > 0) {
            TimeUnit.NANOSECONDS.sleep(Math.min(left, Clock.SECOND));
        }
    }

    /** Rounded up. */
    static long milliseconds(Duration duration) {
        return duration.plusNanos(Clock.MILLISECOND - 1).toMillis();
    }

    /** Percent-encodes a name byte by byte. */
    static String lockPath(String name, String verb) {
        StringBuilder path = new StringBuilder("/v1/locks/");
        for (char one : name.toCharArray()) {
            boolean plain = one < 128 && (Character.isLetterOrDigit(one) || "-_~.".indexOf(one) >= 0);
            path.append(plain ? String.valueOf(one) : String.format("%%%02X", (int) one));
        }
        return path.append(verb).toString();
    }

    static String query(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    interface Reading<T> {
        T read() throws Reply.Fault, InterruptedException;
    }

    static <T> T read(Reading<T> reading) throws InterruptedException {
        try {
            return reading.read();
        } catch (Reply.Fault broken) {
            throw new PalisadeException(PalisadeException.Kind.UNKNOWN_OUTCOME, "internal", broken.getMessage());
        }
    }

    private static String hostName() {
        String name;
        try {
            name = InetAddress.getLocalHost().getHostName().replaceAll("[^!-~]", "");
        } catch (UnknownHostException nameless) {
            name = "java";
        }
        return name.substring(0, Math.min(name.length(), 64)) + "-" + ProcessHandle.current().pid();
    }

    private final class Pages implements Iterator<LockInfo> {
        private final String prefix;
        private Iterator<?> page = List.of().iterator();
        private String cursor = "";

        Pages(String prefix) {
            this.prefix = prefix;
        }

        /** Without its locks an answer would be an empty list. */
        private static String differs(Reply answer) {
            return answer.status() != 200 || answer.value().get("locks") instanceof List<?> ? null : "locks is no list";
        }

        @Override
        public boolean hasNext() {
            while (!page.hasNext() && cursor != null) {
                String from = cursor.isEmpty() ? "" : "&cursor=" + query(cursor);
                Map<String, Object> answer;
                try {
                    answer = ask(Transport.Request.get("/v1/locks?limit=1000&prefix=" + query(prefix) + from, Pages::differs));
                } catch (InterruptedException gone) {
                    Thread.currentThread().interrupt();
                    throw new PalisadeException(
                            PalisadeException.Kind.UNAVAILABLE, "unavailable", "the thread was interrupted");
                }
                page = ((List<?>) answer.get("locks")).iterator();
                cursor = answer.get("next_cursor") instanceof String next ? next : null;
            }
            return page.hasNext();
        }

        @Override
        public LockInfo next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            Map<String, Object> lock = Json.asObject(page.next());
            try {
                return Reply.lock(lock == null ? Map.of() : lock);
            } catch (Reply.Fault broken) {
                throw new PalisadeException(PalisadeException.Kind.UNKNOWN_OUTCOME, "internal", broken.getMessage());
            }
        }
    }
}
