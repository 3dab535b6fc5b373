package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.HttpFence;
import example.palisade.fence.Presenter;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What a client sees of any server: the tests of a subclass run against the real one, or against the double. */
abstract class ClientContract {
    static final Duration MINUTE = Duration.ofMinutes(1);

    Client client;

    /** How long a lease lasts whose renewal a test waits for: a shorter one could expire on a busy machine. */
    abstract Duration ttl();

    /** Another client of the same server. */
    abstract Client connect(UnaryOperator<Client.Builder> settings);

    final Client connect() {
        return connect(builder -> builder);
    }

    /** Whether a reason is known if nobody listened at that moment, such as before a new grant is named. */
    abstract boolean keepsReasons();

    /** From here to {@link #resume} the server answers nothing. */
    abstract void stop() throws Exception;

    abstract void resume() throws Exception;

    @BeforeEach
    public final void open() {
        client = connect();
    }

    @AfterEach
    public final void close() {
        client.close();
    }

    private void awaitWaiters(String lock, int waiters) throws InterruptedException {
        // The server has no event for a request that begins to wait.
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); client.show(lock).waiters() != waiters; ) {
            assertTrue(System.nanoTime() < end, "never " + waiters + " waiters");
        }
    }

    private void awaitFree(String lock) throws InterruptedException {
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); client.show(lock).holder() != null; ) {
            assertTrue(System.nanoTime() < end, "never free");
        }
    }

    private List<Long> holders(String... names) throws InterruptedException {
        List<Long> tokens = new ArrayList<>();
        for (String name : names) {
            Holder holder = client.show(name).holder();
            tokens.add(holder == null ? 0 : holder.token());
        }
        return tokens;
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
    public void aBlockHoldsAndReleases() throws Exception {
        Lease seen;
        try (Lease lease = client.lock("orders").ttl(Duration.ofSeconds(20)).waitUpTo(Duration.ZERO).clientId("me")
                .metadata("why \"quoted\"").acquire()) {
            seen = lease;
            lease.check();
            assertTrue(lease.isHeld());
            assertTrue(lease.remaining().toMillis() > 0 && lease.remaining().toMillis() < 20_000);
            Holder holder = client.show("orders").holder();
            assertEquals(lease.token(), holder.token());
            assertEquals("me", holder.clientId());
            assertEquals("why \"quoted\"", holder.metadata());
        }
        assertFalse(seen.isHeld());
        assertFalse(seen.lost().isDone());
        assertEquals(Duration.ZERO, seen.remaining());
        assertEquals("not_held", assertThrows(LeaseLostException.class, seen::check).code());
        assertNull(client.show("orders").holder());
        assertEquals(Lease.Release.ALREADY_RELEASED, seen.release());
    }

    @Test
    public void heldSaysWhoAndUntilWhen() throws Exception {
        try (Lease first = client.lock("orders").ttl(Duration.ofMinutes(1)).clientId("first").acquire()) {
            LockRequest second = client.lock("orders").waitUpTo(Duration.ZERO);
            assertTrue(second.tryAcquire().isEmpty());
            LockHeldException held = assertThrows(LockHeldException.class, second::acquire);
            assertEquals("first", held.holder().orElseThrow().clientId());
            assertEquals(first.token(), held.holder().orElseThrow().token());
            assertTrue(held.retryAfter().orElseThrow().compareTo(Duration.ofMinutes(1)) <= 0);
            assertEquals(PalisadeException.Kind.HELD, held.kind());
        }
    }

    @Test
    public void aSemaphoreIsShownAndResized() throws Exception {
        try (Lease both = client.lock("gpu").permits(2, 2).acquire()) {
            LockInfo shown = client.show("gpu");
            assertEquals(2, shown.permits());
            assertEquals(List.of(1, 2), shown.readers().get(0).slots());
            client.resize("gpu", 3);
            try (Lease third = client.lock("gpu").permits(1, 3).acquire()) {
                assertEquals(List.of(3), third.slots());
            }
            for (LockRequest wrong : List.of(
                    client.lock("gpu").permits(1, 2), client.lock("gpu").shared().permits(1, 3))) {
                PalisadeException refused = assertThrows(PalisadeException.class, wrong::acquire);
                assertEquals(PalisadeException.Kind.INVALID, refused.kind());
            }
            assertEquals(PalisadeException.Kind.INVALID,
                    assertThrows(PalisadeException.class, both::downgrade).kind());
            both.check();
        }
    }

    @Test
    public void severalLocksAreOneLease() throws Exception {
        try (Lease lease = client.locks("b", "a", "c").waitUpTo(Duration.ZERO).acquire()) {
            long token = lease.token();
            assertEquals(List.of("a", "b", "c"), lease.locks());
            assertNull(lease.name());
            assertTrue(lease.toString().contains("\"a\", \"b\", \"c\""));
            assertEquals(List.of(token, token, token), holders("a", "b", "c"));
            assertTrue(client.locks("c", "d").waitUpTo(Duration.ZERO).tryAcquire().isEmpty());
            assertEquals(Lease.Release.RELEASED, lease.releasePart("b"));
            assertEquals(Lease.Release.ALREADY_RELEASED, lease.releasePart("b"));
            assertEquals(List.of(token, 0L, token, 0L), holders("a", "b", "c", "d"));
            lease.check();
        }
        assertEquals(List.of(0L, 0L), holders("a", "c"));
    }

    @Test
    public void aLossNamesTheLockThatIsOver() throws Exception {
        Lease lease = client.locks("a", "b").ttl(ttl()).acquire();
        client.breakLock("b", lease.token(), "the test");
        LeaseLostException loss = lease.lost().get(30, TimeUnit.SECONDS);
        assertEquals("revoked b", loss.code() + " " + loss.name());
        assertEquals(Lease.Release.OVER, lease.release());
        assertEquals(List.of(0L, 0L), holders("a", "b"));
    }

    @Test
    public void eachFenceTakesItsOwnPart() throws Exception {
        try (Lease both = client.locks("a", "b").acquire()) {
            Presenter part = both.part("b");
            assertEquals(both.token(), part.token());
            assertEquals("b " + both.authority(), part.name() + " " + part.authority());
            Presenter other = both.part("a");
            both.releasePart("b");
            assertThrows(LeaseLostException.class, () -> both.part("b"));
            assertThrows(LeaseLostException.class, () -> HttpFence.headers(part));
            assertEquals("a", HttpFence.headers(other).get("X-Fencing-Lock"));
            for (Executable wrong : List.<Executable>of(() -> both.part("c"), () -> both.releasePart("c"))) {
                assertEquals(PalisadeException.Kind.INVALID, assertThrows(PalisadeException.class, wrong).kind());
            }
            both.check();
            both.release();
            assertThrows(LeaseLostException.class, () -> both.part("a"));
            for (Presenter lost : List.of(other, both)) {
                assertThrows(LeaseLostException.class, () -> HttpFence.headers(lost));
            }
        }
    }

    @Test
    public void aBrokenLockIsLostAndSaysSo() throws Exception {
        Lease lease = client.lock("orders").ttl(ttl()).acquire();
        client.breakLock("orders", lease.token(), "the test");
        LeaseLostException loss = lease.lost().get(30, TimeUnit.SECONDS);
        assertEquals("revoked", loss.code());
        assertEquals(lease.token(), loss.token());
        assertThrows(LeaseLostException.class, lease::check);
        assertEquals(Lease.Release.OVER, lease.release());
    }

    @Test
    public void anInterruptedAcquireLeavesTheQueue() throws Exception {
        client.lock("orders").acquire();
        AtomicReference<Throwable> ended = new AtomicReference<>();
        Thread waiting = new Thread(() -> {
            try {
                client.lock("orders").waitUpTo(Duration.ofHours(1)).acquire();
            } catch (Throwable error) {
                ended.set(error);
            }
        });
        waiting.start();
        awaitWaiters("orders", 1);
        waiting.interrupt();
        waiting.join(30_000);
        assertEquals(InterruptedException.class, ended.get().getClass());
        awaitWaiters("orders", 0);
    }

    @Test
    public void aReleaseGoesOnInAnInterruptedThread() throws Exception {
        Lease lease = client.lock("orders").ttl(Duration.ofHours(1)).acquire();
        Thread.currentThread().interrupt();
        lease.close();
        assertTrue(Thread.interrupted());
        assertFalse(lease.isHeld());
        awaitFree("orders");
    }

    @Test
    public void aReleaseOfAPartGoesOnInAnInterruptedThread() throws Exception {
        try (Lease lease = client.locks("a", "b").ttl(Duration.ofHours(1)).acquire()) {
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> lease.releasePart("b"));
            awaitFree("b");
            lease.check();
            assertEquals(lease.token(), client.show("a").holder().token());
        }
    }

    @Test
    public void watchAndList() throws Exception {
        for (String name : List.of("a/1", "a/2", "b")) {
            client.lock(name).acquire();
        }
        List<String> names = new ArrayList<>();
        client.list("a/").forEach(lock -> names.add(lock.name()));
        assertEquals(List.of("a/1", "a/2"), names);
        try (Watch watch = client.watch("a/", 0)) {
            for (String name : names) {
                Event event = watch.next();
                assertEquals("granted " + name, event.kind() + " " + event.name());
                assertTrue(event.revision() > 0 && event.token() > 0);
                Duration age = Duration.between(Instant.parse(event.time()), Instant.now());
                assertTrue(age.abs().compareTo(Duration.ofHours(1)) < 0, event.time());
            }
            CompletableFuture.delayedExecutor(10, TimeUnit.MILLISECONDS).execute(watch::close);
            assertNull(watch.next());
        }
        try (Watch watch = client.watch("", 1L << 40)) {
            assertEquals("missed", watch.next().kind());
        }
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
        awaitWaiters("report", 1);
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
        awaitWaiters("report", 1);
        thread.interrupt();
        thread.join(30_000);
        assertTrue(ended.get() instanceof InterruptedException, String.valueOf(ended.get()));
        awaitWaiters("report", 0);
        reader.check();
        assertEquals(Lease.Release.RELEASED, reader.release());
        beside.release();
    }

    @Test
    public void aReaderThatEndsEndsItsUpgradeWithTheLoss() throws Exception {
        Lease beside = client.lock("report").shared().acquire();
        Lease revoked = client.lock("report").update().acquire();
        CompletableFuture<Lease> writer = upgrading(revoked);
        awaitWaiters("report", 1);
        client.breakLock("report", revoked.grantId(), "the test");
        assertEquals("revoked", ((LeaseLostException) failure(writer)).code());
        assertEquals("revoked", revoked.lost().get(30, TimeUnit.SECONDS).code());
        Lease released = client.lock("report").update().acquire();
        CompletableFuture<Lease> other = upgrading(released);
        awaitWaiters("report", 1);
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

    @Test
    public void aTryDoesNotWait() throws Exception {
        Duration wait = Duration.ofMillis(300);
        try (Lease lease = client.lock("orders").acquire()) {
            long began = System.nanoTime();
            assertTrue(client.lock("orders").tryAcquire().isEmpty());
            assertTrue(client.locks("orders", "other").tryAcquire().isEmpty());
            long tries = System.nanoTime() - began;
            // A control: it waits if it is told to, and would else have waited 30 s.
            began = System.nanoTime();
            assertTrue(client.lock("orders").waitUpTo(wait).tryAcquire().isEmpty());
            assertTrue(System.nanoTime() - began >= wait.toNanos());
            assertTrue(tries < TimeUnit.SECONDS.toNanos(30), tries + " ns");
            lease.check();
        }
        client.lock("orders").tryAcquire().orElseThrow().close();
    }

    @Test
    public void anAcquireInTheBackgroundIsGrantedInTurn() throws Exception {
        Lease first = client.lock("orders").acquire();
        CompletableFuture<Lease> second = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        CompletableFuture<Lease> third = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 2);
        assertFalse(second.isDone());
        first.release();
        assertEquals(first.token() + 1, second.get(30, TimeUnit.SECONDS).token());
        assertFalse(third.isDone());
        second.get().release();
        assertEquals(first.token() + 2, third.get(30, TimeUnit.SECONDS).token());
        Throwable held = failure(client.lock("orders").waitUpTo(Duration.ZERO).acquireAsync());
        assertEquals("held", ((LockHeldException) held).code());
        third.get().release();
    }

    /** However the future ends, the request leaves the queue, and a grant that crosses its end is given back. */
    @Test
    public void anAcquireInTheBackgroundThatIsGivenUpLeavesNothing() throws Exception {
        Lease first = client.lock("orders").acquire();
        CompletableFuture<Lease> cancelled = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        assertTrue(cancelled.cancel(true));
        assertThrows(CancellationException.class, cancelled::get);
        awaitWaiters("orders", 0);
        CompletableFuture<Lease> late = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        late.orTimeout(1, TimeUnit.MILLISECONDS);
        assertThrows(ExecutionException.class, late::get);
        awaitWaiters("orders", 0);
        // A control: one that nobody gives up keeps its place.
        CompletableFuture<Lease> kept = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        first.release();
        kept.get(30, TimeUnit.SECONDS).release();
        for (int turn = 0; turn < 20; turn++) {
            CompletableFuture<Lease> crossed = client.lock("orders").acquireAsync();
            Thread.yield();
            if (!crossed.cancel(true)) {
                crossed.get().release();
            }
        }
        awaitFree("orders");
        Client closing = connect();
        Lease held = client.lock("orders").acquire();
        CompletableFuture<Lease> left = closing.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        closing.close();
        assertTrue(failure(left).getMessage().contains("closed"));
        held.release();
    }

    /** Waits for an acknowledged renewal: then more time is left than before. */
    static void awaitRenewal(Lease lease) throws InterruptedException {
        Duration before = lease.remaining();
        for (Duration left = before; left.compareTo(before) <= 0; left = lease.remaining()) {
            lease.check();
            before = left;
            // real time: the renewal has a time of its own.
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    @Test
    public void aLeaseThatNobodyRenewsExpires() throws Exception {
        Client other = connect();
        Lease lease = other.lock("orders").ttl(Duration.ofMillis(300)).acquire();
        other.close();
        try (Lease next = client.lock("orders").waitUpTo(MINUTE).acquire()) {
            assertTrue(next.token() > lease.token());
            assertEquals("expired", lease.lost().get(30, TimeUnit.SECONDS).code());
        }
    }

    /** The bound ends the lease although its holder renews it. The other one is the control: its bound was moved. */
    @Test
    public void aLeaseIsRenewedForAtMostSoLong() throws Exception {
        try (Lease bounded = client.lock("bounded").ttl(ttl()).acquire(); Lease moved = client.lock("moved").ttl(ttl()).acquire()) {
            bounded.atMostFor(ttl());
            moved.atMostFor(ttl());
            moved.atMostFor(MINUTE);
            awaitRenewal(moved);
            Duration more = client.show("moved").holder().remaining().minus(client.show("bounded").holder().remaining());
            // A third of the lease has gone by.
            assertTrue(more.compareTo(ttl().dividedBy(6)) > 0, more.toString());
            assertThrows(PalisadeException.class, () -> moved.atMostFor(Duration.ofMillis(99)));
        }
    }

    @Test
    public void aLockStaysClosedForAtLeastSoLong() throws Exception {
        Lease first = client.lock("orders").atLeastFor(MINUTE).acquire();
        first.release();
        assertEquals("delayed", assertThrows(
                LockHeldException.class, () -> client.lock("orders").waitUpTo(Duration.ZERO).acquire()).code());
        Lease other = client.lock("other").lockDelay(MINUTE).acquire();
        client.breakLock("other", other.token(), "the test");
        LockHeldException closed = assertThrows(
                LockHeldException.class, () -> client.lock("other").waitUpTo(Duration.ZERO).acquire());
        assertEquals("delayed", closed.code());
        assertTrue(closed.holder().isEmpty() && closed.retryAfter().orElseThrow().compareTo(MINUTE) <= 0);
    }

    @Test
    public void readersShareAPhaseAndAWriterIsNotOvertaken() throws Exception {
        Lease one = client.lock("orders").shared().acquire();
        Lease two = client.lock("orders").shared().acquire();
        assertEquals(one.token(), two.token());
        assertTrue(two.grantId() > one.grantId());
        CompletableFuture<Lease> writer = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
        awaitWaiters("orders", 1);
        assertTrue(client.lock("orders").shared().tryAcquire().isEmpty());
        assertEquals(2, client.show("orders").readerCount());
        one.release();
        two.release();
        assertTrue(writer.get(30, TimeUnit.SECONDS).token() > two.grantId());
        writer.get().release();
    }

    @Test
    public void theSameClientIdSupersedesItsOwnGrant() throws Exception {
        Lease before = client.lock("orders").ttl(ttl()).clientId("me").acquire();
        try (Lease after = client.lock("orders").clientId("me").tryAcquire().orElseThrow()) {
            assertTrue(after.token() > before.token());
            assertEquals("superseded", before.lost().get(30, TimeUnit.SECONDS).code());
            after.check();
        }
    }

    @Test
    public void anElectionHasOneLeaderAndItsValue() throws Exception {
        assertEquals(Optional.empty(), client.leader("primary"));
        try (Observer leaders = client.observe("primary")) {
            assertEquals(Optional.empty(), leaders.next());
            Lease first = client.lock("primary").clientId("node-1").metadata("starting").acquire();
            assertEquals(Optional.of(new Leader("node-1", first.token(), "starting")), leaders.next());
            first.proclaim("10.0.0.7:5432");
            Leader named = new Leader("node-1", first.token(), "10.0.0.7:5432");
            assertEquals(Optional.of(named), leaders.next());
            assertEquals(Optional.of(named), client.leader("primary"));
            // Another lock with the same beginning is no change of this one.
            client.lock("primary/other").acquire().release();
            first.proclaim("");
            assertEquals(Optional.of(new Leader("node-1", first.token(), null)), leaders.next());
            first.release();
            assertEquals(Optional.empty(), leaders.next());
            Lease second = client.lock("primary").clientId("node-2").acquire();
            assertEquals(Optional.of(new Leader("node-2", second.token(), null)), leaders.next());
            CompletableFuture.delayedExecutor(10, TimeUnit.MILLISECONDS).execute(leaders::close);
            assertThrows(CancellationException.class, leaders::next);
            second.release();
        }
    }

    @Test
    public void onlyALeaderProclaims() throws Exception {
        Lease leader = client.lock("primary").acquire();
        assertEquals(PalisadeException.Kind.INVALID,
                assertThrows(PalisadeException.class, () -> leader.proclaim("x".repeat(257))).kind());
        client.breakLock("primary", leader.token(), "the test");
        assertEquals("revoked", assertThrows(LeaseLostException.class, () -> leader.proclaim("late")).code());
        assertFalse(leader.isHeld());
        assertEquals("revoked", leader.lost().get(30, TimeUnit.SECONDS).code());
        try (Lease reader = client.lock("primary").shared().acquire(); Lease both = client.locks("a", "b").acquire();
                Lease permit = client.lock("gpu").permits(1, 2).acquire()) {
            assertEquals(Optional.empty(), client.leader("primary"));
            for (Lease wrong : List.of(reader, both, permit)) {
                assertEquals(PalisadeException.Kind.INVALID,
                        assertThrows(PalisadeException.class, () -> wrong.proclaim("me")).kind());
                wrong.check();
            }
        }
    }

    @Test
    public void aLeaseIsHandedOver() throws Exception {
        Lease before = client.lock("orders").ttl(Duration.ofSeconds(20)).clientId("me").metadata("why").acquire();
        String text = before.export();
        assertEquals("handed_over", assertThrows(LeaseLostException.class, before::check).code());
        assertThrows(LeaseLostException.class, before::export);
        assertThrows(LeaseLostException.class, before::release);
        before.close();
        assertEquals(Duration.ZERO, before.remaining());
        assertFalse(before.lost().isDone(), "the export was announced as a loss");
        assertEquals(before.token(), client.show("orders").holder().token());
        try (Client other = connect(); Lease after = other.adopt(text)) {
            assertEquals(before.token(), after.token());
            assertEquals(before.authority(), after.authority());
            assertEquals("orders me", after.name() + " " + after.clientId());
            after.check();
            assertTrue(after.remaining().compareTo(Duration.ofSeconds(20)) < 0);
            assertFalse(after.toString().contains(text));
            // Another export of the same lease is possible, and so is the way back.
            try (Lease back = client.adopt(after.export())) {
                back.proclaim("again");
                assertEquals("again", client.show("orders").holder().metadata());
            }
        }
        assertNull(client.show("orders").holder());
        assertEquals("not_held", assertThrows(LeaseLostException.class, () -> client.adopt(text)).code());
    }

    @Test
    public void everyKindOfLeaseIsHandedOver() throws Exception {
        Lease reader = client.lock("report").update().acquire();
        try (Lease beside = client.lock("report").shared().acquire()) {
            Lease adopted = client.adopt(reader.export());
            assertTrue(adopted.isUpdate());
            assertEquals(reader.grantId() + " " + beside.token(), adopted.grantId() + " " + adopted.token());
            beside.release();
            adopted.upgrade(Duration.ZERO).release();
        }
        try (Lease permits = client.adopt(client.lock("gpu").permits(2, 3).acquire().export())) {
            assertEquals(List.of("gpu~1", "gpu~2"), permits.slotKeys());
            assertThrows(PalisadeException.class, permits::downgrade);
        }
        Lease set = client.locks("c", "a", "b").acquire();
        set.releasePart("b");
        String text = set.export();
        try (Lease adopted = client.adopt(text)) {
            assertEquals(List.of("a", "c"), adopted.locks());
            assertEquals(List.of(set.token(), 0L, set.token()), holders("a", "b", "c"));
        }
        assertEquals(List.of(0L, 0L), holders("a", "c"));
        // One part of the next is revoked before it is adopted: the other one is released.
        set = client.locks("a", "b").acquire();
        String broken = set.export();
        client.breakLock("b", set.token(), "the test");
        LeaseLostException lost = assertThrows(LeaseLostException.class, () -> client.adopt(broken));
        assertEquals("revoked b", lost.code() + " " + lost.name());
        awaitFree("a");
    }

    @Test
    public void aTextThatIsNoLeaseIsRefusedWithoutRepeatingIt() throws Exception {
        String text;
        try (Lease lease = client.lock("orders").acquire()) {
            text = lease.export();
        }
        for (String wrong : new String[] {null, "", "palisade-lease/2.e30", "palisade-lease/1.e30", "palisade-lease/1.*",
            text.substring(0, text.length() / 2), text.replace("palisade-lease/1.", "")}) {
            PalisadeException refused = assertThrows(PalisadeException.class, () -> client.adopt(wrong), wrong);
            assertEquals(PalisadeException.Kind.INVALID, refused.kind());
            assertTrue(refused.getMessage().contains("not an exported lease"), refused.getMessage());
            assertFalse(refused.getMessage().contains(text.substring(40, 60)), refused.getMessage());
        }
    }

    /** The notices of a lease, as they come. */
    private static BlockingQueue<Notice> heard(Lease lease) {
        BlockingQueue<Notice> notices = new LinkedBlockingQueue<>();
        lease.listen(notices::add);
        return notices;
    }

    private static Notice next(BlockingQueue<Notice> notices, Notice.Kind kind) throws InterruptedException {
        Notice notice = notices.poll(30, TimeUnit.SECONDS);
        assertNotNull(notice, "no notice came: " + kind);
        assertEquals(kind, notice.kind(), notice.toString());
        return notice;
    }

    /** The next renewal is in 20 minutes, so only the server's notice can end the belief. The control listens to none. */
    @Test
    public void aBreakEndsTheBeliefAtOnce() throws Exception {
        try (Client deaf = connect(builder -> builder.notices(false))) {
            Lease control = deaf.lock("other").ttl(Duration.ofHours(1)).acquire();
            Lease lease = client.lock("orders").ttl(Duration.ofHours(1)).acquire();
            BlockingQueue<Notice> notices = heard(lease);
            for (Lease broken : List.of(control, lease)) {
                client.breakLock(broken.name(), broken.token(), "maintenance");
            }
            LeaseLostException loss = next(notices, Notice.Kind.LOST).loss();
            assertEquals("revoked", loss.code());
            if (keepsReasons() || loss.reason().isPresent()) {
                assertEquals(Optional.of("maintenance"), loss.reason());
                assertTrue(loss.getMessage().contains("(\"maintenance\")"), loss.getMessage());
            }
            assertThrows(LeaseLostException.class, lease::check);
            assertEquals("revoked", lease.lost().get(30, TimeUnit.SECONDS).code());
            control.check();
            // A listener that comes late is told at once.
            assertEquals(loss.reason(), next(heard(lease), Notice.Kind.LOST).loss().reason());
        }
    }

    /** A lease of several locks is over with any of them, and the others are released. */
    @Test
    public void aBreakOfOneLockOfSeveralIsHeard() throws Exception {
        Lease lease = client.locks("a", "b", "c").ttl(Duration.ofHours(1)).acquire();
        lease.releasePart("a");
        BlockingQueue<Notice> notices = heard(lease);
        client.breakLock("c", lease.token(), "the test");
        assertEquals("c", next(notices, Notice.Kind.LOST).loss().name());
        awaitFree("b");
    }

    @Test
    public void aHolderIsToldThatRequestsWait() throws Exception {
        try (Client deaf = connect(builder -> builder.notices(false))) {
            Lease control = deaf.lock("other").ttl(Duration.ofHours(1)).acquire();
            Lease lease = client.lock("orders").ttl(Duration.ofHours(1)).acquire();
            BlockingQueue<Notice> notices = heard(lease);
            CompletableFuture<Lease> elsewhere = client.lock("other").waitUpTo(MINUTE).acquireAsync();
            awaitWaiters("other", 1);
            CompletableFuture<Lease> first = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
            assertEquals(1, next(notices, Notice.Kind.WANTED).waiters());
            assertEquals(1, lease.wanted());
            CompletableFuture<Lease> second = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
            assertEquals(2, next(notices, Notice.Kind.WANTED).waiters());
            assertEquals(2, next(heard(lease), Notice.Kind.WANTED).waiters());
            first.cancel(true);
            second.cancel(true);
            next(notices, Notice.Kind.UNWANTED);
            assertEquals(0, lease.wanted());
            lease.check();
            // The control: without notices nobody says so before the next renewal.
            assertEquals(0, control.wanted());
            elsewhere.cancel(true);
        }
    }

    @Test
    public void aRenewalSaysThatRequestsWait() throws Exception {
        try (Client deaf = connect(builder -> builder.notices(false))) {
            BlockingQueue<Notice> notices = heard(deaf.lock("orders").ttl(ttl()).acquire());
            CompletableFuture<Lease> waits = client.lock("orders").waitUpTo(MINUTE).acquireAsync();
            assertEquals(1, next(notices, Notice.Kind.WANTED).waiters());
            waits.cancel(true);
            next(notices, Notice.Kind.UNWANTED);
        }
    }

    /** The first silence is over in time, the second is not. */
    @Test
    public void aLeaseIsSuspendedRestoredSuspendedAndLost() throws Exception {
        Lease lease = client.lock("orders").ttl(ttl()).acquire();
        Lease released = client.lock("other").ttl(ttl()).acquire();
        BlockingQueue<Notice> notices = heard(lease);
        BlockingQueue<Notice> none = heard(released);
        released.release();
        stop();
        try {
            Duration left = next(notices, Notice.Kind.SUSPENDED).remaining();
            assertTrue(left.compareTo(Duration.ZERO) > 0 && left.compareTo(ttl().multipliedBy(2).dividedBy(3)) < 0, left.toString());
            lease.check();
            BlockingQueue<Notice> late = heard(lease);
            next(late, Notice.Kind.SUSPENDED);
            resume();
            next(notices, Notice.Kind.RESTORED);
            next(late, Notice.Kind.RESTORED);
            stop();
            next(notices, Notice.Kind.SUSPENDED);
            assertEquals("expired", next(notices, Notice.Kind.LOST).loss().code());
        } finally {
            resume();
        }
        assertEquals(List.of(), List.copyOf(none), "of a lease that was released");
    }

    /** An upgrade supersedes the reader's grant, and the server may say so before the upgrade's answer is here. */
    @Test
    public void anUpgradeIsNoLossOfTheReader() throws Exception {
        for (int times = 0; times < 5; times++) {
            Lease reader = client.lock("report").update().ttl(Duration.ofHours(1)).acquire();
            BlockingQueue<Notice> notices = heard(reader);
            Lease beside = client.lock("report").shared().ttl(Duration.ofHours(1)).acquire();
            // So long the reader is listened to.
            CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS).execute(beside::close);
            Lease writer = reader.upgrade(MINUTE);
            writer.check();
            writer.release();
            assertTrue(notices.stream().noneMatch(notice -> notice.kind() == Notice.Kind.LOST), notices.toString());
        }
    }
}
