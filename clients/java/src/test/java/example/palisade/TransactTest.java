package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.StaleException;
import example.palisade.fence.Work;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

/** A transaction that claims before anything else, in PostgreSQL and MariaDB. */
public final class TransactTest {
    private static final int THREADS = 4;
    private static final int TURNS = 50;

    /** A database with its fence. */
    private record Engine(DataSource source, OnSource onSource, OnConnection onConnection, OnAll onAll) {
        int total(String name) throws SQLException {
            try (Connection connection = source.getConnection()) {
                return TransactTest.total(connection, name);
            }
        }
    }

    private interface OnSource {
        <R> R transact(DataSource source, String resource, Presenter holder, Work<R, RuntimeException> work) throws SQLException;
    }

    private interface OnConnection {
        <R> R transact(Connection connection, String resource, Presenter holder, Work<R, RuntimeException> work)
                throws SQLException;
    }

    private interface OnAll {
        <R> R transact(DataSource source, Map<String, Presenter> holders, Work<R, RuntimeException> work) throws SQLException;
    }

    private static List<Engine> engines() throws Exception {
        List<Engine> all = List.of(
                new Engine(Servers.postgresSource(), PostgresFence::transact, PostgresFence::transact, PostgresFence::transact),
                new Engine(Servers.mariadbSource(), MySqlFence::transact, MySqlFence::transact, MySqlFence::transact));
        for (Engine engine : all) {
            try (Connection connection = engine.source().getConnection(); Statement statement = connection.createStatement()) {
                statement.execute("CREATE TABLE IF NOT EXISTS race (name varchar(64) PRIMARY KEY, total int)");
            }
        }
        return all;
    }

    private static String fresh(Engine engine) throws SQLException {
        String name = "race-" + UUID.randomUUID();
        try (Connection connection = engine.source().getConnection(); Statement statement = connection.createStatement()) {
            statement.execute("INSERT INTO race VALUES ('" + name + "', 0)");
        }
        return name;
    }

    private static int total(Connection connection, String name) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT total FROM race WHERE name = '" + name + "'")) {
            rows.next();
            return rows.getInt(1);
        }
    }

    /** Reads, computes, and writes the result. */
    private static Void add(Connection connection, String name) throws SQLException {
        int next = total(connection, name) + 1;
        Thread.yield();
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE race SET total = " + next + " WHERE name = '" + name + "'");
        }
        return null;
    }

    private static Void addUnfenced(Engine engine, String name) throws SQLException {
        try (Connection connection = engine.source().getConnection()) {
            // At MariaDB's default level, from 11.6 on, the server itself refuses to change rows that were read before
            // another client's commit.
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            connection.setAutoCommit(false);
            add(connection, name);
            connection.commit();
            return null;
        }
    }

    /** How many acknowledged adds are missing after holders, each with a newer token, have raced one another. */
    private static int lost(Engine engine, boolean fenced) throws Exception {
        String name = fresh(engine);
        AtomicLong token = new AtomicLong();
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicInteger stale = new AtomicInteger();
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<Void>> all = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            all.add(threads.submit(() -> {
                for (int turn = 0; turn < TURNS; turn++) {
                    Presenter holder = Presenter.of(token.incrementAndGet());
                    try {
                        if (fenced) {
                            engine.onSource().transact(engine.source(), name, holder, connection -> add(connection, name));
                        } else {
                            addUnfenced(engine, name);
                        }
                        acknowledged.incrementAndGet();
                    } catch (StaleException late) {
                        stale.incrementAndGet();
                    }
                }
                return null;
            }));
        }
        for (Future<Void> one : all) {
            one.get();
        }
        threads.shutdown();
        assertTrue(acknowledged.get() > THREADS, "only " + acknowledged + " adds");
        assertEquals(THREADS * TURNS, acknowledged.get() + stale.get());
        return acknowledged.get() - engine.total(name);
    }

    @Test
    public void aRaceLosesNothing() throws Exception {
        for (Engine engine : engines()) {
            assertEquals(0, lost(engine, true));
            // A control: without a claim, adds are lost.
            int lost = 0;
            for (int round = 0; round < 20 && lost == 0; round++) {
                lost = lost(engine, false);
            }
            assertTrue(lost > 0, "the race shows nothing");
        }
    }

    @Test
    public void nothingIsWrittenByAnOlderHolderOrAfterAnError() throws Exception {
        for (Engine engine : engines()) {
            String name = fresh(engine);
            try (Connection connection = engine.source().getConnection()) {
                engine.onConnection().transact(connection, name, Presenter.of(8), inside -> add(inside, name));
                assertThrows(StaleException.class, () -> engine.onConnection()
                        .transact(connection, name, Presenter.of(7), inside -> add(inside, name)));
                assertThrows(ArithmeticException.class, () -> engine.onConnection()
                        .transact(connection, name, Presenter.of(9), inside -> {
                            add(inside, name);
                            throw new ArithmeticException("the work failed");
                        }));
                assertThrows(LeaseLostException.class, () -> engine.onConnection()
                        .transact(connection, name, FenceTest.OVER, inside -> add(inside, name)));
                // The failed work took its claim with it, and the connection can be used.
                assertEquals(true, connection.getAutoCommit());
                engine.onConnection().transact(connection, name, Presenter.of(8), inside -> add(inside, name));
                assertEquals(2, total(connection, name));
            }
        }
    }

    @Test
    public void severalResourcesAreClaimedTogether() throws Exception {
        for (Engine engine : engines()) {
            String one = fresh(engine);
            String other = fresh(engine);
            engine.onSource().transact(engine.source(), other, Presenter.of(9), connection -> add(connection, other));
            assertThrows(StaleException.class, () -> engine.onAll().transact(
                    engine.source(), Map.of(one, Presenter.of(8), other, Presenter.of(8)), connection -> add(connection, one)));
            assertEquals(0, engine.total(one));
            engine.onAll().transact(
                    engine.source(), Map.of(one, Presenter.of(10), other, Presenter.of(10)), connection -> add(connection, one));
            assertEquals(1, engine.total(one));
            assertThrows(IllegalArgumentException.class, () -> engine.onAll().transact(
                    engine.source(), Map.of(), connection -> add(connection, one)));
        }
    }

    /** A plausible mistake is named, and changes nothing. */
    @Test
    public void aConnectionInATransactionIsRefused() throws Exception {
        for (Engine engine : engines()) {
            String name = fresh(engine);
            try (Connection connection = engine.source().getConnection()) {
                connection.setAutoCommit(false);
                total(connection, name);
                String says = assertThrows(IllegalStateException.class, () -> engine.onConnection()
                        .transact(connection, name, Presenter.of(8), inside -> add(inside, name))).getMessage();
                assertTrue(says.contains("setAutoCommit(true)"), says);
                assertEquals(false, connection.getAutoCommit());
            }
            String says = assertThrows(NullPointerException.class, () -> engine.onSource()
                    .transact(engine.source(), name, null, inside -> add(inside, name))).getMessage();
            assertTrue(says.contains("Presenter.of(token)"), says);
            says = assertThrows(IllegalStateException.class, () -> engine.onSource()
                    .transact(engine.source(), name, Presenter.of(8), inside -> {
                        inside.setAutoCommit(true);
                        return null;
                    })).getMessage();
            assertTrue(says.contains("leave commit"), says);
            assertEquals(0, engine.total(name));
        }
    }

    private static String ask(Connection connection, String statement) throws SQLException {
        try (Statement asked = connection.createStatement()) {
            if (!asked.execute(statement)) {
                return "";
            }
            try (ResultSet rows = asked.getResultSet()) {
                rows.next();
                return rows.getString(1);
            }
        }
    }

    private static final String IDLE = "SELECT @@SESSION.idle_write_transaction_timeout";

    private record Leased(long token, Duration remaining) implements Presenter {}

    /** Else a later transaction of the connection, perhaps without a claim, would be ended by the bound of this one. */
    @Test
    public void transactLeavesTheConnectionItsOwnBound() throws Exception {
        String name = "bound-" + UUID.randomUUID();
        try (Connection connection = Servers.mariadb()) {
            for (String own : List.of("0", "300")) {
                ask(connection, "SET SESSION idle_write_transaction_timeout = " + own);
                Presenter holder = new Leased(2, Duration.ofMillis(6_500));
                MySqlFence.transact(connection, name, holder, inside -> {
                    assertEquals("7", ask(inside, IDLE));
                    return null;
                });
                assertEquals(own, ask(connection, IDLE));
                Work<Void, RuntimeException> failing = inside -> {
                    throw new ArithmeticException("the work failed");
                };
                assertThrows(ArithmeticException.class, () -> MySqlFence.transact(connection, name, holder, failing));
                assertEquals(own, ask(connection, IDLE));
                assertThrows(StaleException.class, () -> MySqlFence.transact(connection, name, Presenter.of(1), failing));
                assertEquals(own, ask(connection, IDLE));
                assertThrows(IllegalStateException.class, () -> MySqlFence.transact(connection, name, holder, inside -> {
                    inside.setAutoCommit(true);
                    return null;
                }));
                assertEquals(own, ask(connection, IDLE));
                // Of several leases the shortest bounds the transaction; of a bare token it is not known.
                Map<String, Presenter> several = Map.of(name, new Leased(2, Duration.ofMillis(4_500)),
                        "a" + name, new Leased(2, Duration.ofMillis(7_500)), "z" + name, Presenter.of(2));
                MySqlFence.transact(connection, several, inside -> {
                    assertEquals("5", ask(inside, IDLE));
                    return null;
                });
                // The control: a claim and a bare COMMIT.
                connection.setAutoCommit(false);
                MySqlFence.claim(connection, name, Presenter.of(2));
                connection.commit();
                assertEquals("10", ask(connection, IDLE));
                ask(connection, "CALL palisade_end(TRUE)");
                connection.setAutoCommit(true);
                assertEquals(own, ask(connection, IDLE));
            }
        }
    }

    @Test
    public void withoutTheProcedureThatCommitsNothingIsWritten() throws Exception {
        String database = "older_" + UUID.randomUUID().toString().replace("-", "");
        String user = "u_" + UUID.randomUUID().toString().substring(0, 8);
        try (Connection admin = Servers.mariadb()) {
            ask(admin, "CREATE DATABASE " + database);
            Servers.installMySqlFence(database);
            ask(admin, "CREATE TABLE " + database + ".things (n INT)");
            ask(admin, "CREATE USER " + user);
            ask(admin, "GRANT SELECT, INSERT ON " + database + ".things TO " + user);
            ask(admin, "GRANT EXECUTE ON PROCEDURE " + database + ".palisade_claim TO " + user);
            try (Connection role = Servers.mariadb(database, user)) {
                assertRefused(admin, role, database, "denied", "palisade_end", "GRANT EXECUTE ON");
            }
            ask(admin, "DROP PROCEDURE " + database + ".palisade_end");
            try (Connection there = Servers.mariadb(database)) {
                assertRefused(admin, there, database, "palisade_end", "an older version", "palisade fence install mysql");
            }
        }
    }

    private static void assertRefused(Connection admin, Connection connection, String database, String... says)
            throws SQLException {
        String said = assertThrows(PalisadeException.class, () -> MySqlFence.transact(
                connection, "orders", Presenter.of(7), inside -> ask(inside, "INSERT INTO things VALUES (1)"))).getMessage();
        for (String words : says) {
            assertTrue(said.contains(words), said);
        }
        assertEquals("0", ask(admin, "SELECT COUNT(*) FROM " + database + ".things"));
        assertEquals("0", ask(admin, "SELECT COUNT(*) FROM " + database + ".palisade_fence"));
    }
}
