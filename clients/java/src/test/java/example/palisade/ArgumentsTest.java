package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.HttpFence;
import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import java.sql.Connection;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Arguments that people pass: each call works, or its error names the right argument. */
public class ArgumentsTest {
    private static final Duration HUGE = Duration.ofSeconds(Long.MAX_VALUE);
    private static final Duration TINY = Duration.ofSeconds(Long.MIN_VALUE);
    private static final String LONG = "x".repeat(256);

    /** Checks the message of each call. */
    private static void check(Map<Executable, String> cases) {
        cases.forEach((call, says) -> {
            RuntimeException error = assertThrows(RuntimeException.class, call, says);
            boolean argument = error instanceof IllegalArgumentException || error instanceof IllegalStateException
                    || error instanceof NullPointerException
                    || error instanceof PalisadeException own && own.kind() == PalisadeException.Kind.INVALID;
            assertTrue(argument && error.getMessage().contains(says), says + ": " + error);
        });
    }

    @Test
    public void ofAClient() throws Exception {
        Map<Executable, String> cases = new LinkedHashMap<>();
        cases.put(() -> Client.builder().endpoints((String[]) null), "endpoints: addresses");
        cases.put(() -> Client.builder().endpoints("http://a", null), "endpoints: addresses");
        cases.put(() -> Client.builder().endpoints().build(), "the address of a server is needed");
        cases.put(() -> Client.builder().patience(null), "the patience is null: a Duration");
        cases.put(() -> Client.builder().patience(Duration.ZERO), "the patience is 0 ms");
        cases.put(() -> Client.builder().margin(TINY), "the margin is PT-");
        cases.put(() -> Client.builder().margin(HUGE), "the margin is PT");
        // As if they had not been called.
        Client.builder().endpoints("http://127.0.0.1:1").bearerToken(null).bearerTokenFile(null).sslContext(null).build().close();
        try (Client client = Client.builder().endpoints("http://127.0.0.1:1").patience(Duration.ofMillis(200)).build()) {
            for (String name : new String[] {null, "", ".", "..", LONG, "a\n", "ä"}) {
                String says = name == null ? "the name of a lock is needed" : "is not the name of a lock";
                cases.put(() -> client.lock(name), says);
                cases.put(() -> client.locks("a", name), says);
                cases.put(() -> client.show(name), says);
                cases.put(() -> client.breakLock(name, 1, "why"), says);
                cases.put(() -> client.resize(name, 2), says);
            }
            cases.put(() -> client.locks((String[]) null), "names of locks are needed");
            cases.put(() -> client.locks(), "0 locks are named");
            cases.put(() -> client.locks("a", "a"), "named twice");
            cases.put(() -> client.list(null), "a prefix is needed");
            cases.put(() -> client.watch(null), "a prefix is needed");
            cases.put(() -> client.watch(null, 5), "a prefix is needed");
            for (Duration wrong : new Duration[] {null, Duration.ofMillis(-1), HUGE, TINY}) {
                cases.put(() -> client.lock("a").ttl(wrong), "the TTL is ");
                cases.put(() -> client.lock("a").waitUpTo(wrong), "the wait is ");
                cases.put(() -> client.lock("a").lockDelay(wrong), " is ");
                cases.put(() -> client.lock("a").atLeastFor(wrong), " is ");
            }
            cases.put(() -> client.lock("a").metadata("x".repeat(257)).acquire(), "257 bytes");
            cases.put(() -> client.lock("a").shared().permits(1, 2).acquire(), "permits");
            check(cases);
        }
        Client closed = Client.builder().endpoints("http://127.0.0.1:1").build();
        LockRequest request = closed.lock("a");
        Watch watch = closed.watch("");
        closed.close();
        closed.close();
        check(Map.of(request::acquire, "closed", () -> closed.lock("a"), "closed", () -> closed.show("a"), "closed",
                () -> closed.list("").iterator().hasNext(), "closed", watch::next, "closed"));
    }

    @Test
    public void ofALease() throws Exception {
        try (Servers.Running server = Servers.serve(); Client client = Client.builder().endpoints(server.url()).build();
                Lease lease = client.lock("a").metadata(null).clientId(null).acquire()) {
            check(Map.of(
                    () -> client.lock("b").clientId("").acquire(), "client", () -> client.lock("b").clientId(LONG).acquire(),
                    "client", () -> client.lock("b").permits(0, 2).acquire(), "permits",
                    () -> client.lock("b").permits(3, 2).acquire(), "permits",
                    () -> lease.part(null), "is not a lock of this lease", () -> lease.part("b"), "is not a lock of this lease",
                    () -> lease.releasePart(null), "is not a lock of this lease",
                    () -> lease.sequencer(null), "is not a lock of this lease",
                    () -> lease.upgrade(null), "only a reader in mode update"));
            assertEquals(0, client.show("a").waiters());
        }
    }

    @Test
    public void ofAFence() throws Exception {
        Presenter seven = Presenter.of(7);
        Map<Executable, String> cases = new LinkedHashMap<>();
        cases.put(() -> Presenter.of(0), "0 is not a fencing token");
        cases.put(() -> HttpFence.headers(null), "a fence needs a holder");
        cases.put(() -> PostgresFence.claim(null, "a", seven), "a fence needs a connection");
        cases.put(() -> MySqlFence.claim(null, "a", seven), "a fence needs a connection");
        cases.put(() -> PostgresFence.transact((DataSource) null, "a", seven, db -> null), "transact needs a DataSource");
        cases.put(() -> MySqlFence.transact((Connection) null, "a", seven, db -> null), "transact needs a DataSource");
        DataSource source = Servers.postgresSource();
        try (Connection connection = Servers.postgres()) {
            cases.put(() -> PostgresFence.claim(connection, "a", null), "a fence needs a holder");
            cases.put(() -> PostgresFence.check(connection, "a", null), "a fence needs a holder");
            cases.put(() -> PostgresFence.write(connection, "a", null, 1, 1), "a fence needs a holder");
            cases.put(() -> PostgresFence.claim(connection, "a", seven), "a fence needs a transaction");
            cases.put(() -> PostgresFence.transact(source, "a", null, db -> null), "a fence needs a holder");
            cases.put(() -> PostgresFence.transact(source, null, seven, db -> null), "the name of a resource");
            cases.put(() -> PostgresFence.transact(source, "a", seven, null), "transact needs the work");
            cases.put(() -> PostgresFence.transact(source, null, db -> null), "nothing to claim");
            cases.put(() -> PostgresFence.transact(source, new TreeMap<>(), db -> null), "nothing to claim");
            check(cases);
        }
    }
}
