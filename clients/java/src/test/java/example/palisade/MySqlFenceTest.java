package example.palisade;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.MySqlFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import example.palisade.fence.StaleException;
import example.palisade.fence.Written;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** The fence in MariaDB, through JDBC. */
public final class MySqlFenceTest {
    private final String resource = "orders-" + UUID.randomUUID();

    private static Connection begin() throws Exception {
        Connection connection = Servers.mariadb();
        connection.setAutoCommit(false);
        return connection;
    }

    private void claim(long token) throws Exception {
        try (Connection connection = begin()) {
            MySqlFence.claim(connection, resource, Presenter.of(token));
            connection.commit();
        }
    }

    @Test
    public void aNewerHolderShutsTheOlderOneOut() throws Exception {
        claim(7);
        claim(8);
        StaleException stale = assertThrows(StaleException.class, () -> claim(7));
        assertEquals("stale 8", stale.code() + " " + stale.detail());
        try (Connection connection = begin()) {
            assertThrows(StaleException.class, () -> MySqlFence.check(connection, resource, Presenter.of(7)));
        }
        claim(8);
    }

    @Test
    public void aNumberedWriteIsRecognisedAndAnswered() throws Exception {
        Presenter holder = Presenter.of(7, "authority", "lock");
        for (boolean repeat : new boolean[] {false, true}) {
            try (Connection connection = begin()) {
                Written written = MySqlFence.write(connection, resource, holder, 1, -1);
                assertEquals(repeat, written.repeat());
                if (repeat) {
                    assertArrayEquals("seat 12A".getBytes(), written.result());
                } else {
                    assertNull(written.result());
                    MySqlFence.record(connection, resource, 1, "seat 12A".getBytes());
                }
                connection.commit();
            }
        }
        try (Connection connection = begin()) {
            assertEquals("sequence_reused 1", told(assertThrows(RejectedException.class,
                    () -> MySqlFence.write(connection, resource, holder, 1, 5))));
        }
        assertEquals("wrong_authority authority", told(assertThrows(RejectedException.class, () -> claim(8))));
    }

    private static String told(RejectedException rejected) {
        return rejected.code() + " " + rejected.detail();
    }

    @Test
    public void aReadBeforeTheClaimIsFound() throws Exception {
        claim(7);
        try (Connection connection = begin(); Statement statement = connection.createStatement()) {
            statement.executeQuery("SELECT count(*) FROM palisade_fence").close();
            claim(8);
            PalisadeException late = assertThrows(
                    PalisadeException.class, () -> MySqlFence.claim(connection, resource, Presenter.of(9)));
            assertEquals("read_before_claim", late.code());
        }
    }

    @Test
    public void aHolderThatIsOverSendsNothing() throws Exception {
        try (Connection connection = begin()) {
            assertThrows(LeaseLostException.class, () -> MySqlFence.claim(connection, resource, FenceTest.OVER));
            assertThrows(LeaseLostException.class, () -> MySqlFence.check(connection, resource, FenceTest.OVER));
            assertThrows(LeaseLostException.class, () -> MySqlFence.write(connection, resource, FenceTest.OVER, 1, 0));
        }
        claim(6);
    }

    @Test
    public void withoutATransactionOrAFenceItSaysWhatToDo() throws Exception {
        try (Connection connection = Servers.mariadb(); Statement statement = connection.createStatement()) {
            assertThrows(IllegalStateException.class, () -> MySqlFence.claim(connection, resource, Presenter.of(7)));
            String bare = "d_" + UUID.randomUUID().toString().replace("-", "");
            statement.execute("CREATE DATABASE " + bare);
            try (Connection there = Servers.mariadb(bare)) {
                there.setAutoCommit(false);
                PalisadeException missing = assertThrows(
                        PalisadeException.class, () -> MySqlFence.claim(there, resource, Presenter.of(7)));
                assertTrue(missing.getMessage().contains("palisade fence install mysql"), missing.getMessage());
            }
        }
    }

    @Test
    public void aStickyTableRefusesCodeThatForgotTheFence() throws Exception {
        String table = "t_" + UUID.randomUUID().toString().replace("-", "");
        try (Connection connection = Servers.mariadb();
                Connection forgetful = Servers.mariadb();
                Statement statement = connection.createStatement();
                Statement other = forgetful.createStatement()) {
            statement.execute("CREATE TABLE " + table + " (n int)");
            statement.execute("CREATE TRIGGER " + table + "_insert BEFORE INSERT ON " + table
                    + " FOR EACH ROW CALL palisade_check_token('" + resource + "')");
            connection.setAutoCommit(false);
            MySqlFence.claim(connection, resource, Presenter.of(7));
            statement.execute("INSERT INTO " + table + " VALUES (1)");
            connection.commit();
            SQLException forgot = assertThrows(
                    SQLException.class, () -> other.execute("INSERT INTO " + table + " VALUES (2)"));
            assertEquals("tokenless 7", told(MySqlFence.rejection(forgot)));
            assertNull(MySqlFence.rejection(assertThrows(SQLException.class, () -> other.execute("nonsense"))));
            assertNull(MySqlFence.rejection(new SQLException("a pool names no state")));
            // The token that the triggers read outlives its transaction on the connection; a stale token is refused
            // even then.
            claim(8);
            SQLException late = assertThrows(
                    SQLException.class, () -> statement.execute("INSERT INTO " + table + " VALUES (3)"));
            assertEquals("stale 8", told(MySqlFence.rejection(late)));
        }
    }
}
