package example.palisade;

import example.palisade.fence.Presenter;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A lock that is held, and renewed in the background, until it is released or lost. Its methods may be called by several
 * threads. {@link #close} releases it.
 *
 * <p>A pause fits between {@link #check} and whatever follows, so a check alone protects nothing: give the lease to a
 * fence, first to claim, then with every read and write; of several locks, give each fence its own {@link #part}.
 */
public final class Lease implements Presenter, AutoCloseable {
    private static final long SHORTEST_PAUSE = 20 * Clock.MILLISECOND;
    private static final long LONGEST_PAUSE = 500 * Clock.MILLISECOND;
    /** How a grant may end; of any other end the holder knows only that nothing is held. */
    private static final Set<String> ENDS = Set.of("expired", "revoked", "superseded");

    /** The result of a release. For several locks it is the last of these results that any lock had. */
    public enum Release {
        /** It had been released before. */
        ALREADY_RELEASED,
        /** It was held until now. */
        RELEASED,
        /** It had ended in another way before. */
        OVER,
    }

    private final Client client;
    private final LockRequest.Wish wish;
    private final Granted grant;
    private final Hold hold;
    private final CompletableFuture<LeaseLostException> lost = new CompletableFuture<>();
    /** When each lock was last acknowledged to end. One renewal at a time uses it. */
    private final Map<String, Long> deadlines = new HashMap<>();
    /** The locks that are renewed. */
    private final Set<String> held;
    /** The locks of which the server has not acknowledged the release. */
    private final Set<String> unreleased;
    /** What the server said is over, or null. */
    private volatile Loss heard;
    /** No renewal makes the lease last beyond this instant. */
    private volatile long end = Long.MAX_VALUE;
    /** An upgrade is under way. */
    private final AtomicBoolean upgrading = new AtomicBoolean();
    private final Notices notices = new Notices(this);
    /** The client listens for it, or did. It belongs to the lock of its {@link Listening}. */
    boolean listened;

    /** The end of a lock; {@code reason}: the operator's, or null. */
    private record Loss(String lock, String reason) {}

    /** Ends the calls of a listener. */
    public interface Registration extends AutoCloseable {
        /** No further call begins. */
        @Override
        void close();
    }

    Lease(Client client, LockRequest.Wish wish, Granted grant) {
        this.client = client;
        this.wish = wish;
        this.grant = grant;
        this.held = new ConcurrentSkipListSet<>(wish.names());
        this.unreleased = new ConcurrentSkipListSet<>(wish.names());
        this.hold = new Hold(firstDeadline(), this::ended);
        if (!hold.holds()) {
            // The process was stopped while the grant was on its way: it is given back.
            releaseInBackground();
            throw loss();
        }
        locks().forEach(name -> deadlines.put(name, hold.deadline()));
        renewLater(Long.MAX_VALUE);
        alarm();
        client.listening().add(this);
    }

    private void ended(boolean isLoss) {
        client.listening().remove(this);
        notices.end(isLoss);
        if (isLoss) {
            // Listeners run in a thread of their own: they may block.
            lost.completeAsync(this::loss);
        }
    }

    /** The fencing token. It never changes, and stays readable after a loss. */
    @Override
    public long token() {
        return grant.token();
    }

    /** The server, or the cluster, that granted the lock: tokens of two authorities are never compared. */
    @Override
    public String authority() {
        return grant.authority();
    }

    /**
     * The number that names the grant, as in {@link Client#breakLock}: the token, or a reader's own number. It is not for
     * fences.
     */
    public long grantId() {
        return grant.number();
    }

    /** Whether it is a reader's, also in mode update. */
    public boolean isShared() {
        return wish.mode().isReader();
    }

    /** Whether it is the reader that may become the writer, by {@link #upgrade}. */
    public boolean isUpdate() {
        return wish.mode() == LockRequest.Mode.UPDATE;
    }

    /** The slots of a semaphore that it has, rising; none for another kind of lock. */
    public List<Integer> slots() {
        return grant.slots();
    }

    /**
     * The resource ids of its slots. Claim each at its fence, with the token: a slot's next holder fences this one there, and
     * no other holder of the semaphore.
     */
    public List<String> slotKeys() {
        return slots().stream().map(slot -> slotKey(wish.name(), slot)).toList();
    }

    /** The resource id under which a fence keeps the tokens of one slot of a semaphore. */
    public static String slotKey(String lock, int slot) {
        return lock + "~" + slot;
    }

    /** The name of the lock. Several locks have none, but {@link #locks}: then it is null. */
    @Override
    public String name() {
        return locks().size() == 1 ? wish.name() : null;
    }

    /** The names of all locks that were granted, sorted. */
    public List<String> locks() {
        return wish.names();
    }

    /**
     * The proof for the fence of one of several locks: the token, with that lock's name.
     *
     * @throws LeaseLostException if the lock is not held any more; so does a fence that is given the part later
     */
    public Presenter part(String name) {
        Presenter part = new Part(checkedPart(name));
        part.check();
        return part;
    }

    /**
     * Every fence calls it. It tells the authority in the background, also after the loss, so that {@code palisade history} shows
     * the late write; nothing of the lease changes.
     */
    @Override
    public void refused(String resource, String operation, long highest) {
        // Of several locks, the resource may have the name of one.
        report(locks().contains(resource) ? resource : wish.name(), resource, operation, highest);
    }

    private void report(String lock, String resource, String operation, long highest) {
        client.reports().offer(lock, token(), resource, highest, operation);
    }

    private final class Part implements Presenter {
        private final String name;

        Part(String name) {
            this.name = name;
        }

        @Override
        public long token() {
            return Lease.this.token();
        }

        @Override
        public String authority() {
            return Lease.this.authority();
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public Duration remaining() {
            return Lease.this.remaining();
        }

        @Override
        public void refused(String resource, String operation, long highest) {
            report(name, resource, operation, highest);
        }

        @Override
        public void check() {
            Lease.this.check();
            if (!held.contains(name)) {
                throw new LeaseLostException("not_held", name, token());
            }
        }
    }

    /** The id under which others see the holder. */
    public String clientId() {
        return wish.clientId();
    }

    /** How long the request stood in the queue. */
    public Duration waited() {
        return grant.waited();
    }

    /** Whether the holder may still act, by its own clock, at this moment. */
    public boolean isHeld() {
        return hold.holds();
    }

    /**
     * Throws unless the holder may still act. No round trip, and no waiting for one.
     *
     * @throws LeaseLostException from the loss or the release on
     */
    @Override
    public void check() {
        if (!hold.holds()) {
            throw loss();
        }
    }

    /** How long the holder may still act if no further renewal is acknowledged; zero after the loss or the release. */
    @Override
    public Duration remaining() {
        return Duration.ofNanos(hold.remaining());
    }

    /**
     * Calls {@code tell} for each {@link Notice} of the lease, from the present state on: a lease that is suspended, wanted or lost
     * says so at once. After a release or an export there are no more notices.
     *
     * <p>The calls for one listener never overlap, and come in a thread of their own, so they may block: no renewal and no other
     * listener waits for them. A listener that takes long is told the state at its next call, and not what was in between. What it
     * throws is logged, by {@link System.Logger}.
     */
    public Registration listen(Consumer<? super Notice> tell) {
        return notices.listen(Objects.requireNonNull(tell, "a function is needed, to which the notices are told"));
    }

    /** How many requests are known to wait for the lock; of several locks, the largest number for any of them. */
    public int wanted() {
        return notices.waiters();
    }

    Notices notices() {
        return notices;
    }

    /** Is completed when the lease is lost, and not by a release: {@code lease.lost().thenAccept(listener)}. */
    public CompletableFuture<LeaseLostException> lost() {
        return lost.copy();
    }

    /**
     * Bounds the renewals: after so long from now, at least 100 ms, the lease is over, also at the server and if this program
     * is stopped. Nothing is shortened that was granted or renewed before: ask for a {@link LockRequest#ttl} that is no longer. Called
     * again, it moves the end. What comes of this lease by an upgrade, a downgrade or an export has no bound.
     *
     * @throws LeaseLostException if it is not held any more
     */
    public void atMostFor(Duration duration) {
        LockRequest.within("the time at most", duration, LockRequest.SHORTEST_TTL, Duration.ofDays(3650));
        check();
        end = Clock.earliest() + duration.toNanos();
    }

    /**
     * Makes a writer a reader, in one step: no other writer gets in between. From the call on this lease is not held; the
     * one returned has a new token, with which it claims before it reads. If this fails, the lock is released in the
     * background. A reader is returned as it is.
     *
     * @throws LeaseLostException if it is not held any more
     */
    public Lease downgrade() throws InterruptedException {
        if (isShared()) {
            return this;
        }
        check();
        if (!slots().isEmpty() || locks().size() > 1) {
            throw PalisadeException.invalid("permits of a semaphore, and several locks, have no shared mode");
        }
        hold.end(Hold.RELEASED);
        boolean done = false;
        try {
            Lease reader = wish.asReader(grant).lease();
            done = true;
            return reader;
        } finally {
            if (!done) {
                releaseInBackground();
            }
        }
    }

    /** As {@link #upgrade(Duration)}, and waits up to 30 s. */
    public Lease upgrade() throws InterruptedException {
        return upgrade(LockRequest.DEFAULT_WAIT);
    }

    /**
     * Makes the reader in mode update the writer, in one step: nobody else writes in between. It goes ahead of the queue and
     * waits for the other readers alone, 0 – 24 h. The lease that is returned has a new token, with which it claims before it
     * writes; this one is not held any more then. Until then it is held and renewed as before, also after a {@link
     * LockHeldException}, which names a reader that still held the lock.
     *
     * <p>If the thread is interrupted, the upgrade is given up in the background. If it was granted by then, or can be
     * granted at that moment, the lock is released, and this lease is lost.
     *
     * @throws LeaseLostException if it is not held any more, or is lost meanwhile
     * @throws LockHeldException if readers stayed for so long
     * @throws PalisadeException if nobody answers, or the call is wrong
     */
    public Lease upgrade(Duration wait) throws InterruptedException {
        check();
        if (!isUpdate()) {
            throw PalisadeException.invalid("only a reader in mode update can be upgraded: ask for the lock with update()");
        }
        LockRequest.within("the wait", wait, Duration.ZERO, Duration.ofDays(1));
        if (!upgrading.compareAndSet(false, true)) {
            throw PalisadeException.invalid("an upgrade of " + quoted() + " is under way already");
        }
        try {
            return wish.asWriter(this, wait, grant).lease();
        } finally {
            upgrading.set(false);
        }
    }

    /** Its upgrade is granted, so it does not hold any more. A lease that was lost meanwhile has no successor. */
    void makeWay() {
        check();
        if (!hold.end(Hold.RELEASED)) {
            throw loss();
        }
    }

    /** As {@link #sequencer(String)}, for a lease of one lock. */
    public String sequencer() throws InterruptedException {
        if (name() == null) {
            throw PalisadeException.invalid("name the lock: one of " + quoted());
        }
        return sequencer(name());
    }

    /**
     * The token as the authority signs it, for resources that check it with {@link
     * example.palisade.fence.SequencerKeys} or with {@code --keys}; of several locks the part that is named. It is a
     * secret until the next grant: send it with TLS only, and keep it out of logs. It asks the server for the client's
     * patience.
     *
     * @throws LeaseLostException if the lease is over
     * @throws PalisadeException if nobody answers
     */
    public String sequencer(String name) throws InterruptedException {
        part(name);
        Reply reply = ask(name, "/sequencer", Map.of("fencing_token", token()), Map.of());
        if (reply.value().get("sequencer") instanceof String sequencer) {
            return sequencer;
        }
        throw new PalisadeException(
                PalisadeException.Kind.UNKNOWN_OUTCOME, "unknown_outcome", "a broken answer: no sequencer");
    }

    /** Asks about a grant that is held, for the client's patience. The answer has no new deadline, so the old one stays. */
    private Reply ask(String name, String verb, Map<String, Object> wanted, Map<String, Object> more)
            throws InterruptedException {
        long until = Clock.earliest() + client.patience();
        Reply reply = client.transport().repeat(grant.request(name, verb, more, wanted), until, Client::sleepUntil);
        if (reply.over()) {
            if (held.contains(name)) {
                lose(name, reply.code());
            }
            throw new LeaseLostException(reply.code(), name, token());
        }
        if (reply.status() != 200) {
            throw reply.error();
        }
        return reply;
    }

    /**
     * Gives the lock up: from the call on it is not held here, whatever the answer. It is repeated for the client's
     * patience. If the thread is interrupted, the release goes on in the background.
     *
     * @throws LeaseLostException if it was handed over
     * @throws PalisadeException if nobody answered: the lock is then free when the lease expires
     */
    public Release release() throws InterruptedException {
        checkNotHandedOver();
        hold.end(Hold.RELEASED);
        return releaseNow(unreleased);
    }

    /**
     * Gives one of several locks up: from the call on it is not held here, whatever the answer, and the others stay. With the
     * last one the lease is released.
     *
     * @throws PalisadeException if nobody answered: the lock then stays taken until it is released again, at the latest by
     *     {@link #release} or {@link #close}
     */
    public Release releasePart(String name) throws InterruptedException {
        checkNotHandedOver();
        held.remove(checkedPart(name));
        return held.isEmpty() ? release() : releaseNow(List.of(name));
    }

    /** The adopter holds it: a release would end its hold. */
    private void checkNotHandedOver() {
        if (Hold.HANDED_OVER.equals(hold.reason())) {
            throw loss();
        }
    }

    private Release releaseNow(Collection<String> names) throws InterruptedException {
        long until = Clock.earliest() + client.patience();
        try {
            return release(names, until);
        } catch (InterruptedException gone) {
            client.inBackground(() -> release(names, until));
            throw gone;
        }
    }

    private String checkedPart(String name) {
        if (name == null || !locks().contains(name)) {
            throw PalisadeException.invalid("\"" + name + "\" is not a lock of this lease: it has " + quoted());
        }
        return name;
    }

    /**
     * Ends this lease without a release, and returns a text with which another process goes on with it, by {@link
     * Client#adopt}. From the call on it is not held here, and nothing is renewed or released for it. Unless somebody adopts it
     * in the time that is left, it expires.
     *
     * <p><b>The text contains the lease key: it is a secret.</b> Hand it to one process only. Two that adopt the same text both
     * renew, and nobody can tell.
     *
     * @throws LeaseLostException if it is not held any more
     */
    public String export() {
        check();
        if (!upgrading.compareAndSet(false, true)) {
            throw PalisadeException.invalid("an upgrade of " + quoted() + " is under way: export its result");
        }
        try {
            for (String name : unreleased) {
                if (!held.contains(name)) {
                    throw PalisadeException.invalid(
                            "the release of \"" + name + "\" is not acknowledged: release it again before the export");
                }
            }
            String text = new Handed(List.copyOf(held), wish, grant).text();
            if (!hold.end(Hold.HANDED_OVER)) {
                throw loss();
            }
            return text;
        } finally {
            upgrading.set(false);
        }
    }

    /**
     * Changes the value that this leader announces, its metadata, at most 256 bytes; an empty one removes it. The token stays,
     * and each {@link Observer} of the lock receives it. Call it again only after it has returned: a call is repeated inside, so of
     * two at once either value may remain.
     *
     * @throws LeaseLostException if the lease is over
     * @throws PalisadeException if nobody answers, or it is a reader's, or one of several locks or permits
     */
    public void proclaim(String value) throws InterruptedException {
        if (locks().size() > 1) {
            throw PalisadeException.invalid("the holder of several locks leads nothing: an election is one lock");
        }
        LockRequest.checkedMetadata("the value", Objects.requireNonNull(value, "a value is needed, \"\" to remove it"));
        check();
        ask(wish.name(), "/proclaim", Map.of("fencing_token", token()), Map.of("value", value));
    }

    /** As {@link #release}; a release that is not acknowledged is no error, because the lease expires. */
    @Override
    public void close() {
        try {
            release();
        } catch (InterruptedException gone) {
            Thread.currentThread().interrupt();
        } catch (PalisadeException notAcknowledged) {
            // It is not held here, and the server finds out by itself.
        }
    }

    private void releaseInBackground() {
        long until = Clock.earliest() + 2 * grant.ttl().toNanos();
        client.inBackground(() -> release(unreleased, until));
    }

    /** Returns the most important result of all names: over, then released. */
    private Release release(Collection<String> names, long until) throws InterruptedException {
        Release heaviest = Release.ALREADY_RELEASED;
        for (String name : names) {
            Reply reply = client.transport().repeat(grant.release(name), until, Client::sleepUntil);
            Release found = Release.OVER;
            if (!reply.over()) {
                if (reply.status() != 200) {
                    throw reply.error();
                }
                unreleased.remove(name);
                boolean already = Boolean.TRUE.equals(reply.value().get("already_released"));
                found = already ? Release.ALREADY_RELEASED : Release.RELEASED;
            }
            heaviest = found.compareTo(heaviest) > 0 ? found : heaviest;
        }
        return heaviest;
    }

    /** Announces a loss at the deadline, also when nobody checks. */
    private void alarm() {
        if (hold.holds()) {
            Client.after(Math.min(hold.deadline() - Clock.latest(), Clock.SECOND), this::alarm);
        }
    }

    /** Renews at a third of the remaining time, or soon after a failure. Between renewals it needs no thread. */
    private void renewLater(long longest) {
        long third = Math.max((hold.deadline() - Clock.latest()) / 3, SHORTEST_PAUSE);
        renewAt(Clock.latest() + Math.min(third, longest));
    }

    /** In slices: the system's timers stop in suspension. */
    private void renewAt(long instant) {
        if (!hold.holds()) {
            return;
        }
        long left = instant - Clock.latest();
        if (left > 0) {
            Client.after(Math.min(left, Clock.SECOND), () -> renewAt(instant));
        } else {
            client.startUnlessClosed("renewal of " + wish.name(), () -> {
                Renewal found = renew();
                if (found == Renewal.ACKNOWLEDGED || found == Renewal.FAILING && hold.holds()) {
                    notices.suspended(found == Renewal.FAILING);
                }
                boolean soon = found == Renewal.FAILING || found == Renewal.ENDING;
                renewLater(soon ? LONGEST_PAUSE : Long.MAX_VALUE);
            });
        }
    }

    /** The outcome of a renewal. */
    private enum Renewal {
        ACKNOWLEDGED,
        FAILING,
        /** The lease is over, or its upgrade is about to end it. */
        ENDING,
        /** None is needed: what is left goes on to the end that {@link #atMostFor} set. */
        UNNEEDED,
    }

    /**
     * Makes one attempt for each lock that is held, because the server looks at the named one only; first for the one that was
     * acknowledged longest ago. The earliest of their deadlines counts.
     */
    private Renewal renew() throws InterruptedException {
        List<String> names = new ArrayList<>(held);
        names.sort(Comparator.comparing(deadlines::get));
        for (String name : names) {
            if (!hold.holds()) {
                return Renewal.ENDING;
            }
            long t0 = Clock.earliest();
            try {
                Duration lasts = lasts(t0);
                if (lasts != null && lasts.compareTo(LockRequest.SHORTEST_TTL) < 0) {
                    return Renewal.UNNEEDED;
                }
                Reply reply = client.transport().send(grant.renewal(name, lasts), Math.max((hold.deadline() - t0) / 3, SHORTEST_PAUSE));
                if (reply.over() && !held.contains(name)) {
                    continue; // It was released here meanwhile.
                }
                if (reply.over() && upgrading.get() && reply.code().equals("superseded")) {
                    return Renewal.ENDING; // By its own upgrade, whose answer is on its way.
                }
                if (reply.over()) {
                    lose(name, reply.code());
                    return Renewal.ENDING;
                }
                if (reply.status() != 200) {
                    return Renewal.FAILING;
                }
                deadlines.put(name, deadline(t0, Reply.duration(Reply.number(reply.value(), "valid_for_ms"))));
                Integer waiters = Reply.waiters(reply.value());
                if (waiters != null) {
                    notices.wanted(name, waiters);
                }
                client.listening().renewed(this, waiters != null);
            } catch (Reply.Fault fault) {
                return Renewal.FAILING;
            }
            hold.renewed(held.stream().mapToLong(deadlines::get).reduce(deadlines.get(name), Math::min));
        }
        return Renewal.ACKNOWLEDGED;
    }

    /** For how long a renewal asks; null: for the time that the lease has. */
    private Duration lasts(long now) {
        long left = end - now;
        return end == Long.MAX_VALUE ? null : Duration.ofNanos(Math.min(left, grant.ttl().toNanos())).truncatedTo(ChronoUnit.MILLIS);
    }

    /**
     * The server ended a lock. If the lease has several locks, the others are released, because they are useless without it.
     */
    void lose(String name, String code) {
        lose(name, code, null);
    }

    private void lose(String name, String code, String reason) {
        if (hold.holds()) {
            heard = new Loss(name, reason);
            hold.end(code);
            if (locks().size() > 1) {
                releaseInBackground();
            }
        }
    }

    /** The server says that a grant is over, as it would answer a renewal. */
    void endedAtServer(String name, Object how, Object reason) {
        boolean ownUpgrade = upgrading.get() && "superseded".equals(how);
        // Or it was released here.
        if (held.contains(name) && !ownUpgrade) {
            String code = how instanceof String said && ENDS.contains(said) ? said : "not_held";
            lose(name, code, reason instanceof String said && !said.isEmpty() ? said : null);
        }
    }

    /** Names one of its grants for the server, with what is known of it. */
    Map<String, Object> proof(String name) {
        return Map.of("resource_id", name, "lock_token", grant.leaseKey(), "fencing_token", grant.number(),
                "waiters", notices.waiters(name));
    }

    private long firstDeadline() {
        long first = deadline(grant.t0(), grant.validFor());
        // An upgrade comes under the reader's lease, which was renewed while it waited.
        return wish.reader() == null ? first : Math.max(first, wish.reader().hold.deadline());
    }

    private long deadline(long t0, Duration validFor) {
        return Hold.deadline(t0, validFor.toNanos(), client.margin());
    }

    LeaseLostException loss() {
        Loss said = heard == null ? new Loss(wish.name(), null) : heard;
        return new LeaseLostException(hold.reason(), said.lock(), grant.token(), said.reason());
    }

    private String quoted() {
        return "\"" + String.join("\", \"", locks()) + "\"";
    }

    /** Never contains the lease key. */
    @Override
    public String toString() {
        String state = hold.holds() ? remaining().toMillis() + " ms" : hold.reason();
        return "lease of " + quoted() + ", fencing token " + grant.token() + ": " + state;
    }
}
