package example.palisade;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import example.palisade.fence.HttpFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import example.palisade.fence.StaleException;
import example.palisade.fence.Written;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** The fences, in PostgreSQL through JDBC and behind a gateway. */
public final class FenceTest {
    private final String resource = "orders-" + UUID.randomUUID();

    private static Connection begin() throws Exception {
        Connection connection = Servers.postgres();
        connection.setAutoCommit(false);
        return connection;
    }

    private void claim(long token) throws Exception {
        claimAt(resource, token);
    }

    @Test
    public void aNewerHolderShutsTheOlderOneOut() throws Exception {
        claim(7);
        claim(8);
        StaleException stale = assertThrows(StaleException.class, () -> claim(7));
        assertEquals("stale 8", stale.code() + " " + stale.detail());
        try (Connection connection = begin()) {
            assertThrows(StaleException.class, () -> PostgresFence.check(connection, resource, Presenter.of(7)));
            // Nothing of this transaction can be committed any more.
            assertThrows(SQLException.class, () -> PostgresFence.claim(connection, resource, Presenter.of(9)));
        }
        claim(8);
    }

    private static void claimSlot(Lease lease) throws Exception {
        claimAt(lease.slotKeys().get(0), lease.token());
    }

    private static void claimAt(String resource, long token) throws Exception {
        try (Connection connection = begin()) {
            PostgresFence.claim(connection, resource, Presenter.of(token));
            connection.commit();
        }
    }

    @Test
    public void aZombieOfASlotIsRefusedBesideALiveHolder() throws Exception {
        String gpu = "gpu-" + UUID.randomUUID();
        // Without notices it learns late that its permit is over.
        try (Servers.Running server = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).notices(false).build();
                Lease zombie = client.lock(gpu).permits(1, 2).acquire();
                Lease live = client.lock(gpu).permits(1, 2).acquire()) {
            assertEquals(List.of(Lease.slotKey(gpu, 1)), zombie.slotKeys());
            assertEquals(List.of(Lease.slotKey(gpu, 2)), live.slotKeys());
            claimSlot(zombie);
            claimSlot(live);
            client.breakLock(gpu, zombie.token(), "it is paused");
            try (Lease successor = client.lock(gpu).permits(1, 2).acquire()) {
                assertEquals(List.of(1), successor.slots());
                assertTrue(successor.token() > live.token());
                claimSlot(successor);
                assertThrows(StaleException.class, () -> claimSlot(zombie));
                claimSlot(live);
                // Why each slot has a fence of its own: the older of two live holders is refused at one for all.
                claimAt(gpu, successor.token());
                assertThrows(StaleException.class, () -> claimAt(gpu, live.token()));
                live.check();
            }
        }
    }

    @Test
    public void aNumberedWriteIsRecognisedAndAnswered() throws Exception {
        Presenter holder = Presenter.of(7, "authority", "lock");
        for (boolean repeat : new boolean[] {false, true}) {
            try (Connection connection = begin()) {
                Written written = PostgresFence.write(connection, resource, holder, 1, -1);
                assertEquals(repeat, written.repeat());
                if (repeat) {
                    assertArrayEquals("seat 12A".getBytes(), written.result());
                } else {
                    assertNull(written.result());
                    PostgresFence.record(connection, resource, holder, 1, "seat 12A".getBytes());
                }
                connection.commit();
            }
        }
        try (Connection connection = begin()) {
            assertEquals("sequence_reused", assertThrows(RejectedException.class,
                    () -> PostgresFence.write(connection, resource, holder, 1, 5)).code());
        }
        RejectedException other = assertThrows(RejectedException.class, () -> claim(8));
        assertEquals("wrong_authority authority", other.code() + " " + other.detail());
    }

    /** A holder that lost its lease. */
    static final Presenter OVER = new Presenter() {
        @Override
        public long token() {
            return 7;
        }

        @Override
        public void check() {
            throw new LeaseLostException("expired", "orders", 7);
        }
    };

    @Test
    public void aHolderThatIsOverSendsNothing() throws Exception {
        try (Connection connection = begin()) {
            assertThrows(LeaseLostException.class, () -> PostgresFence.claim(connection, resource, OVER));
            assertThrows(LeaseLostException.class, () -> PostgresFence.check(connection, resource, OVER));
            assertThrows(LeaseLostException.class, () -> PostgresFence.write(connection, resource, OVER, 1, 0));
        }
        claim(6);
    }

    @Test
    public void withoutATransactionOrAFenceItSaysWhatToDo() throws Exception {
        try (Connection connection = Servers.postgres()) {
            assertThrows(IllegalStateException.class,
                    () -> PostgresFence.claim(connection, resource, Presenter.of(7)));
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.execute("SET LOCAL search_path = pg_temp");
            }
            PalisadeException missing = assertThrows(PalisadeException.class,
                    () -> PostgresFence.claim(connection, resource, Presenter.of(7)));
            assertTrue(missing.getMessage().contains("palisade fence install postgres"), missing.getMessage());
        }
        for (long token : new long[] {0, -1, Presenter.MAX_TOKEN + 1}) {
            assertThrows(IllegalArgumentException.class, () -> Presenter.of(token));
        }
    }

    private static String idleBound(String resource, Presenter holder) throws Exception {
        return PostgresFence.transact(Servers.postgresSource(), resource, holder, connection -> {
            try (Statement statement = connection.createStatement(); ResultSet row = statement.executeQuery(
                    "SELECT current_setting('idle_in_transaction_session_timeout')")) {
                row.next();
                return row.getString(1);
            }
        });
    }

    @Test
    public void aClaimSaysWhatIsLeftOfTheLease() throws Exception {
        record Lasting(long token, Duration remaining) implements Presenter {}
        assertEquals("25s", idleBound(resource, new Lasting(7, Duration.ofMillis(24_999))));
        assertEquals("999999999ms", idleBound(resource, new Lasting(7, Duration.ofDays(100))));
        // A control: of a bare token it is not known.
        assertEquals("10s", idleBound(resource, Presenter.of(7)));
    }

    @Test
    public void aStickyTableRefusesCodeThatForgotTheFence() throws Exception {
        String table = "t_" + UUID.randomUUID().toString().replace("-", "");
        try (Connection connection = Servers.postgres(); Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE " + table + " (n int)");
            statement.execute("SELECT palisade_sticky('" + table + "', '" + resource + "')");
            connection.setAutoCommit(false);
            PostgresFence.claim(connection, resource, Presenter.of(7));
            statement.execute("INSERT INTO " + table + " VALUES (1)");
            connection.commit();
            SQLException forgot = assertThrows(
                    SQLException.class, () -> statement.execute("INSERT INTO " + table + " VALUES (2)"));
            RejectedException rejected = PostgresFence.rejection(forgot);
            assertEquals("tokenless 7", rejected.code() + " " + rejected.detail());
            connection.rollback();
            assertNull(PostgresFence.rejection(assertThrows(SQLException.class, () -> statement.execute("nonsense"))));
            assertNull(PostgresFence.rejection(new SQLException("a pool names no state")));
        }
    }

    @Test
    public void theExampleOfTheReadme() throws Exception {
        try (Servers.Running server = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).build();
                Connection connection = begin();
                Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE IF NOT EXISTS orders (total int)");
            statement.execute("DELETE FROM orders");
            statement.execute("INSERT INTO orders VALUES (41)");
            connection.commit();
            assertEquals(1, Examples.fencedWrite(client, Servers.postgresSource()));
            try (var rows = statement.executeQuery("SELECT total FROM orders")) {
                rows.next();
                assertEquals(42, rows.getInt(1));
            }
            connection.commit();
            // Without the authority that the resource belongs to, a higher token is no number to compare.
            assertThrows(RejectedException.class,
                    () -> PostgresFence.claim(connection, "orders", Presenter.of(9)));
            connection.rollback();
            assertEquals("done", Examples.report(client));
        }
    }

    private static HttpResponse<String> send(HttpRequest.Builder request) throws Exception {
        return HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    @Test
    public void behindAGateway() throws Exception {
        AtomicInteger writes = new AtomicInteger();
        HttpServer api = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        api.createContext("/", exchange -> {
            writes.incrementAndGet();
            exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(204, -1);
            exchange.close();
        });
        api.start();
        try (Servers.Running gateway = Servers.gateway("http://127.0.0.1:" + api.getAddress().getPort())) {
            URI orders = URI.create(gateway.url() + "/orders");
            Presenter old = Presenter.of(7, "authority", "orders");
            Presenter next = Presenter.of(8, "authority", "orders");
            for (int turn = 0; turn < 2; turn++) {
                HttpRequest.Builder put = HttpRequest.newBuilder(orders).PUT(BodyPublishers.ofString("1"));
                assertEquals(204, send(HttpFence.sign(put, old, 1)).statusCode());
            }
            assertEquals(1, writes.get(), "a repeat was carried out");
            HttpRequest.Builder claim = HttpRequest.newBuilder(orders).POST(BodyPublishers.noBody());
            assertTrue(send(HttpFence.claim(claim, next)).statusCode() < 300);
            HttpResponse<String> late =
                    send(HttpFence.sign(HttpRequest.newBuilder(orders).PUT(BodyPublishers.ofString("2")), old));
            StaleException stale = assertThrows(
                    StaleException.class, () -> HttpFence.check(late.statusCode(), late.body()));
            assertEquals("8", stale.detail());
            assertEquals(1, writes.get());
        } finally {
            api.stop(0);
        }
        for (String other : List.of("", "stale", "{\"error\": \"stale\"}", "{\"error\": {\"code\": \"no_such_order\"}}")) {
            HttpFence.check(409, other);
        }
        HttpFence.check(200, "{\"error\": {\"code\": \"stale\"}}");
        assertFalse(HttpFence.headers(Presenter.of(7)).containsKey("X-Fencing-Lock"));
    }
}
