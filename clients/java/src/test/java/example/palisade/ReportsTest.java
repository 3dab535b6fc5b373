package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import example.palisade.fence.HttpFence;
import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import example.palisade.fence.SqliteFence;
import example.palisade.fence.StaleException;
import example.palisade.internal.Json;
import example.palisade.testing.MemoryServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.sqlite.SQLiteDataSource;

/** Refused late writes, as the authority is told of them. */
public final class ReportsTest {
    private static final Duration HOUR = Duration.ofHours(1);
    private final HttpClient http = HttpClient.newHttpClient();

    /** The late writes of a grant, once the history has the grant and so many of them. */
    private Set<String> refused(Servers.Running server, String lock, long token, int atLeast) throws Exception {
        URI uri = URI.create(server.url() + "/v1/history?lock=" + lock + "&token=" + token);
        long end = System.nanoTime() + 30 * Clock.SECOND;
        while (true) {
            HttpResponse<String> answer = http.send(HttpRequest.newBuilder(uri).build(), BodyHandlers.ofString());
            assertEquals(200, answer.statusCode(), answer.body());
            List<?> grants = (List<?>) Json.object(answer.body()).get("grants");
            Set<String> found = new TreeSet<>();
            if (!grants.isEmpty() && Json.asObject(grants.get(0)).get("rejections") instanceof List<?> rejections) {
                for (Object one : rejections) {
                    Map<String, Object> late = Json.asObject(one);
                    found.add(late.get("operation") + " at " + late.get("resource") + ", highest " + late.get("highest")
                            + ", times " + late.get("times"));
                }
            }
            if (!grants.isEmpty() && found.size() >= atLeast) {
                return found;
            }
            assertTrue(System.nanoTime() < end, answer.body());
            // real time: the history follows once a second.
            Thread.sleep(50);
        }
    }

    private static SQLiteDataSource fenced() throws Exception {
        String file = Servers.folder("sqlite").resolve("data.db").toString();
        SQLiteDataSource source = new SQLiteDataSource();
        source.setUrl("jdbc:sqlite:" + file);
        source.getConnection().close();
        Servers.palisade("fence", "install", "sqlite", "sqlite://" + file);
        return source;
    }

    private static void claim(SQLiteDataSource source, Presenter holder) throws Exception {
        SqliteFence.transact(source, "total", holder, connection -> null);
    }

    private void put(String url, Presenter holder) throws Exception {
        HttpRequest put = HttpFence.sign(HttpRequest.newBuilder(URI.create(url)).PUT(BodyPublishers.ofString("1")), holder).build();
        HttpFence.check(http.send(put, BodyHandlers.ofString()), holder);
    }

    @Test
    public void theHistoryShowsARefusedLateWrite() throws Exception {
        HttpServer upstream = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        upstream.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, -1);
            exchange.close();
        });
        upstream.start();
        try (Servers.Running server = Servers.serve(); Client other = Client.builder().endpoints(server.url()).build()) {
            record Case(String lock, UnaryOperator<Client.Builder> options, Function<Lease, Presenter> shown, int reports) {}
            Map<String, Long> silent = new HashMap<>();
            // The silent ones come first: when the last one's reports are there, theirs would be, too.
            for (Case one : List.of(
                    new Case("off", builder -> builder.reportRefusals(false), lease -> lease, 0),
                    new Case("pass", builder -> builder, lease -> Presenter.of(lease.token(), lease.authority(), lease.name()), 0),
                    new Case("orders", builder -> builder, lease -> lease, 3))) {
                // Without notices a holder learns late that another one has its lock.
                try (Client client = one.options().apply(Client.builder()).endpoints(server.url()).notices(false).build();
                        Servers.Running gateway = Servers.gateway("http://127.0.0.1:" + upstream.getAddress().getPort())) {
                    Lease first = client.lock(one.lock()).ttl(HOUR).acquire();
                    other.breakLock(one.lock(), first.token(), "it hangs");
                    Lease second = other.lock(one.lock()).ttl(HOUR).acquire();
                    // A report of a grant that the history has not seen yet would be lost.
                    refused(server, one.lock(), first.token(), 0);
                    SQLiteDataSource source = fenced();
                    String url = gateway.url() + "/total?secret=1";
                    claim(source, second);
                    put(url, second);
                    Presenter late = one.shown().apply(first);
                    for (int times = 0; times < 3; times++) {
                        assertThrows(StaleException.class, () -> claim(source, late));
                        assertThrows(StaleException.class, () -> put(url, late));
                    }
                    // When this last one is there, those before it are, too: reports keep their order.
                    late.refused("last", "read", second.token());
                    if (one.reports() == 0) {
                        silent.put(one.lock(), first.token());
                        continue;
                    }
                    // The same one is told once.
                    String rest = ", highest " + second.token() + ", times 1";
                    assertEquals(Set.of("claim at total" + rest, "PUT /total at " + URI.create(url).getAuthority() + rest,
                            "read at last" + rest), refused(server, one.lock(), first.token(), one.reports()));
                    assertEquals(0, client.reportsDropped());
                    first.check();
                }
            }
            for (Map.Entry<String, Long> one : silent.entrySet()) {
                assertEquals(Set.of(), refused(server, one.getKey(), one.getValue(), 0));
            }
        } finally {
            upstream.stop(0);
        }
    }

    @Test
    public void aReportNamesTheLockThatWasJudged() throws Exception {
        try (Servers.Running server = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).build();
                Lease lease = client.locks("a", "b", "c").ttl(HOUR).acquire()) {
            for (String lock : lease.locks()) {
                refused(server, lock, lease.token(), 0);
            }
            lease.part("b").refused("orders", "claim", lease.token() + 1);
            lease.refused("c", "claim", lease.token() + 1);
            String rest = ", highest " + (lease.token() + 1) + ", times 1";
            assertEquals(Set.of("claim at orders" + rest), refused(server, "b", lease.token(), 1));
            assertEquals(Set.of("claim at c" + rest), refused(server, "c", lease.token(), 1));
            assertEquals(Set.of(), refused(server, "a", lease.token(), 0));
        }
    }

    /** Reports that nobody takes delay neither a refusal nor the end of the client. */
    @Test
    public void aReportWaitsForNobody() throws Exception {
        try (Servers.Running server = Servers.serve(); Client other = Client.builder().endpoints(server.url()).build()) {
            List<Client> clients = new ArrayList<>();
            List<Lease> leases = new ArrayList<>();
            List<SQLiteDataSource> sources = new ArrayList<>();
            for (boolean on : new boolean[] {false, true}) {
                clients.add(Client.builder().endpoints(server.url()).reportRefusals(on).notices(false).build());
                Lease first = clients.get(clients.size() - 1).lock("on-" + on).ttl(HOUR).acquire();
                other.breakLock(first.name(), first.token(), "it hangs");
                sources.add(fenced());
                claim(sources.get(sources.size() - 1), other.lock(first.name()).ttl(HOUR).acquire());
                leases.add(first);
            }
            String pid = Long.toString(server.process().pid());
            Servers.run(List.of("kill", "-STOP", pid));
            long[] refusals = new long[2];
            long[] ends = new long[2];
            try {
                for (int on = 0; on < 2; on++) {
                    SQLiteDataSource source = sources.get(on);
                    Lease late = leases.get(on);
                    long start = System.nanoTime();
                    for (int times = 0; times < 20; times++) {
                        assertThrows(StaleException.class, () -> claim(source, late));
                    }
                    refusals[on] = System.nanoTime() - start;
                    clients.get(on).close();
                    ends[on] = System.nanoTime() - start - refusals[on];
                }
            } finally {
                Servers.run(List.of("kill", "-CONT", pid));
            }
            // real time: a caller that waited for a report would wait for two seconds; the control is the same without reports.
            assertTrue(refusals[1] < 10 * refusals[0] + Clock.SECOND, refusals[1] + " with, " + refusals[0] + " without");
            assertTrue(ends[1] < 10 * ends[0] + Clock.SECOND, ends[1] + " with, " + ends[0] + " without");
            assertEquals(0, clients.get(0).reportsDropped());
            awaitDropped(clients.get(1), 1);
        }
    }

    /** A client that is closed drops the rest a moment later. */
    private static void awaitDropped(Client client, long atLeast) throws Exception {
        long end = System.nanoTime() + 30 * Clock.SECOND;
        while (client.reportsDropped() < atLeast) {
            assertTrue(System.nanoTime() < end, client.reportsDropped() + " are dropped, not " + atLeast);
            // real time: only a pause between two looks.
            Thread.sleep(1);
        }
    }

    @Test
    public void manyRefusalsAreFewReports() throws Exception {
        MemoryServer server = new MemoryServer();
        Client client = server.client();
        Lease lease = client.lock("orders").ttl(HOUR).acquire();
        long start = System.nanoTime();
        for (int number = 0; number < 1000; number++) {
            lease.refused(number + "-é".repeat(300), "ü".repeat(300), lease.token() + 1);
        }
        long sent = (System.nanoTime() - start) / Reports.PAUSE + 1;
        assertTrue(client.reportsDropped() >= 1000 - Reports.MOST - sent, client.reportsDropped() + " are dropped");
        client.close();
        awaitDropped(client, 1000 - (System.nanoTime() - start) / Reports.PAUSE - 1);
        // It is counted, and nothing is sent any more.
        long before = client.reportsDropped();
        lease.refused("later", "claim", lease.token() + 1);
        assertEquals(before + 1, client.reportsDropped());
    }

    @Test
    public void theDoubleTakesReports() throws Exception {
        Client client = new MemoryServer().client();
        Lease lease = client.lock("orders").ttl(HOUR).acquire();
        lease.refused("orders", "claim", lease.token() + 1);
        client.close();
        assertEquals(0, client.reportsDropped());
    }

    @Test
    public void aTextIsCutBetweenCharacters() {
        assertEquals("orders", Reports.cut("orders"));
        assertEquals("é".repeat(127), Reports.cut("é".repeat(300)));
        assertEquals("x" + "é".repeat(127), Reports.cut("x" + "é".repeat(300)));
        assertEquals("😀".repeat(63), Reports.cut("😀".repeat(64)));
        assertTrue(Reports.cut("\ud83d").getBytes(StandardCharsets.UTF_8).length == 1);
    }

    /** A holder that keeps what a lease would tell its authority. */
    private static final class Listener implements Presenter {
        private final List<String> told = new ArrayList<>();

        @Override
        public long token() {
            return 7;
        }

        @Override
        public void refused(String resource, String operation, long highest) {
            told.add(operation + " " + resource + " " + highest);
        }
    }

    private interface Operation {
        void at(Connection connection, String resource, Presenter holder) throws Exception;
    }

    private static void tells(Connection connection, Operation... operations) throws Exception {
        String free = "a-" + UUID.randomUUID();
        String taken = "b-" + UUID.randomUUID();
        Listener listener = new Listener();
        try (connection) {
            connection.setAutoCommit(false);
            operations[0].at(connection, taken, Presenter.of(8, "authority", "lock"));
            operations[0].at(connection, free, Presenter.of(6, "authority", "lock"));
            connection.commit();
            for (Operation operation : operations) {
                assertThrows(RejectedException.class, () -> operation.at(connection, free, listener));
                connection.rollback();
            }
            assertEquals(List.of(), listener.told, "of another authority");
            String open = "c-" + UUID.randomUUID();
            operations[0].at(connection, open, Presenter.of(8));
            connection.commit();
            for (Operation operation : operations) {
                assertThrows(StaleException.class, () -> operation.at(connection, open, listener));
                connection.rollback();
            }
            assertEquals(List.of("claim " + open + " 8", "read " + open + " 8", "write " + open + " 8"), listener.told);
        }
    }

    @Test
    public void everyDatabaseTellsAHolderOfItsLateWrites() throws Exception {
        tells(fenced().getConnection(), SqliteFence::claim, SqliteFence::check,
                (connection, resource, holder) -> SqliteFence.write(connection, resource, holder, 1, 1));
        tells(Servers.postgres(), PostgresFence::claim, PostgresFence::check,
                (connection, resource, holder) -> PostgresFence.write(connection, resource, holder, 1, 1));
        tells(Servers.mariadb(), MySqlFence::claim, MySqlFence::check,
                (connection, resource, holder) -> MySqlFence.write(connection, resource, holder, 1, 1));
    }
}
