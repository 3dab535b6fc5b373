package example.palisade;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import example.palisade.fence.SqliteFence;
import example.palisade.fence.StaleException;
import example.palisade.fence.Written;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.sqlite.SQLiteDataSource;

/** The fence in SQLite, through JDBC, in a file that palisade installed. */
public final class SqliteFenceTest {
    private final SQLiteDataSource source = new SQLiteDataSource();
    private String url;

    @BeforeEach
    public void install() throws Exception {
        Path file = Servers.folder("sqlite").resolve("data.db");
        url = "sqlite://" + file;
        source.setUrl("jdbc:sqlite:" + file);
        execute("CREATE TABLE totals (total int)");
        Servers.palisade("fence", "install", "sqlite", url);
        execute("INSERT INTO totals VALUES (0)");
    }

    private void execute(String sql) throws SQLException {
        try (Connection connection = source.getConnection(); Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static int total(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT total FROM totals")) {
            rows.next();
            return rows.getInt(1);
        }
    }

    private int total() throws SQLException {
        try (Connection connection = source.getConnection()) {
            return total(connection);
        }
    }

    private static Void write(Connection connection, int total) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE totals SET total = " + total);
            return null;
        }
    }

    /** It reads, is paused, and writes what it computed, after a newer holder has read and written. */
    @Test
    public void aLateHolderLosesNothing() throws Exception {
        Presenter late = Presenter.of(1, "a", "orders");
        Presenter next = Presenter.of(2, "a", "orders");
        int read = SqliteFence.transact(source, "orders", late, SqliteFenceTest::total);
        SqliteFence.transact(source, "orders", next, connection -> write(connection, total(connection) + 70));
        StaleException stale = assertThrows(StaleException.class,
                () -> SqliteFence.transact(source, "orders", late, connection -> write(connection, read + 10)));
        assertEquals("stale 2", stale.code() + " " + stale.detail());
        assertEquals(70, total());
        // The control: without the fence the acknowledged 70 is lost.
        try (Connection connection = source.getConnection()) {
            connection.setAutoCommit(false);
            write(connection, read + 10);
            connection.commit();
        }
        assertEquals(10, total());
    }

    /** What Rust shows and what it re-arms is what Java wrote and reads. */
    @Test
    public void theTableIsThatOfTheCommandLine() throws Exception {
        Presenter holder = Presenter.of(34, "a:0f3c", "nightly");
        SqliteFence.transact(source, "orders", holder, connection -> SqliteFence.write(connection, "orders", holder, 3, -1));
        String shown = Servers.palisade("fence", "show", "--json", "--url", url, "orders");
        for (String part : List.of("34", "a:0f3c", "nightly", "3")) {
            assertTrue(shown.contains(part), shown);
        }
        Servers.palisade("fence", "rearm", "--url", url, "orders", "--floor", "100", "--yes");
        assertEquals("stale 100", told(assertThrows(RejectedException.class,
                () -> SqliteFence.transact(source, "orders", holder, SqliteFenceTest::total))));
        SqliteFence.transact(source, "orders", Presenter.of(101), SqliteFenceTest::total);
    }

    private static String told(RejectedException rejected) {
        return rejected.code() + " " + rejected.detail();
    }

    @Test
    public void aNumberedWriteIsRecognisedAndAnswered() throws Exception {
        Presenter holder = Presenter.of(7, "authority", "lock");
        for (boolean repeat : new boolean[] {false, true}) {
            SqliteFence.transact(source, "orders", holder, connection -> {
                Written written = SqliteFence.write(connection, "orders", holder, 1, -1);
                assertEquals(repeat, written.repeat());
                if (repeat) {
                    assertArrayEquals("seat 12A".getBytes(), written.result());
                } else {
                    assertNull(written.result());
                    SqliteFence.record(connection, "orders", holder, 1, "seat 12A".getBytes());
                }
                return null;
            });
        }
        assertEquals("sequence_reused 1", told(assertThrows(RejectedException.class, () -> SqliteFence.transact(
                source, "orders", holder, connection -> SqliteFence.write(connection, "orders", holder, 1, 5)))));
        assertEquals("wrong_authority authority", told(assertThrows(RejectedException.class,
                () -> SqliteFence.transact(source, "orders", Presenter.of(8), SqliteFenceTest::total))));
        assertThrows(IllegalArgumentException.class, () -> SqliteFence.transact(source, "orders", holder, connection -> {
            SqliteFence.record(connection, "orders", holder, 2, new byte[1]);
            return null;
        }));
    }

    @Test
    public void afterAFailureNothingIsWritten() throws Exception {
        SqliteFence.transact(source, "orders", Presenter.of(8), connection -> write(connection, 1));
        assertThrows(ArithmeticException.class, () -> SqliteFence.transact(source, "orders", Presenter.of(9), connection -> {
            write(connection, 2);
            throw new ArithmeticException("the work failed");
        }));
        // The failed work took its claim with it.
        SqliteFence.transact(source, "orders", Presenter.of(8), connection -> write(connection, total(connection) + 1));
        assertEquals(2, total());
        assertThrows(StaleException.class, () -> SqliteFence.transact(
                source, Map.of("another", Presenter.of(8), "orders", Presenter.of(7)), connection -> write(connection, 3)));
        SqliteFence.transact(source, "another", Presenter.of(1), connection -> write(connection, 4));
        assertThrows(LeaseLostException.class,
                () -> SqliteFence.transact(source, "orders", FenceTest.OVER, connection -> write(connection, 5)));
        assertEquals(4, total());
    }

    @Test
    public void whatIsMissingIsNamed() throws Exception {
        try (Connection connection = source.getConnection()) {
            assertThrows(IllegalStateException.class, () -> SqliteFence.claim(connection, "orders", Presenter.of(7)));
        }
        assertThrows(IllegalArgumentException.class,
                () -> SqliteFence.transact(source, "ä", Presenter.of(7), SqliteFenceTest::total));
        SQLiteDataSource bare = new SQLiteDataSource();
        bare.setUrl("jdbc:sqlite:" + Servers.folder("bare").resolve("data.db"));
        PalisadeException missing = assertThrows(
                PalisadeException.class, () -> SqliteFence.transact(bare, "orders", Presenter.of(7), connection -> null));
        assertEquals("not_installed", missing.code());
        assertTrue(missing.getMessage().contains("palisade fence install sqlite"), missing.getMessage());
    }
}
