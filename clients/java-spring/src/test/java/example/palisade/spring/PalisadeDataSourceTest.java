package example.palisade.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariDataSource;
import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.LeaseLostException;
import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.StaleException;
import example.palisade.testing.MemoryServer;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;
import org.springframework.jdbc.datasource.lookup.AbstractRoutingDataSource;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionExecution;
import org.springframework.transaction.TransactionExecutionListener;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Transactions of a thread with a bound lease, in PostgreSQL. */
public final class PalisadeDataSourceTest {
    private static int test;

    private final String resource = "orders-" + ++test;
    private final MemoryServer server = new MemoryServer();
    private final Client client = server.client();
    private HikariDataSource pool;
    private PalisadeDataSource source;
    private JdbcTemplate template;

    @BeforeEach
    public void begin() throws Exception {
        pool = Databases.pool(Databases.postgres());
        source = new PalisadeDataSource(pool);
        template = new JdbcTemplate(source);
    }

    @AfterEach
    public void end() {
        assertFalse(TransactionSynchronizationManager.isSynchronizationActive(), "a transaction was left on the thread");
        assertEquals(0, pool.getHikariPoolMXBean().getActiveConnections(), "a connection was not given back");
        pool.close();
        client.close();
    }

    private int total() {
        return new JdbcTemplate(pool).queryForObject("SELECT total FROM orders", Integer.class);
    }

    private TransactionTemplate transaction(int propagation) {
        return new TransactionTemplate(new DataSourceTransactionManager(source), new org.springframework.transaction.support
                .DefaultTransactionDefinition(propagation));
    }

    private TransactionTemplate transaction() {
        return transaction(TransactionDefinition.PROPAGATION_REQUIRED);
    }

    /** A holder that was paused: a newer one has claimed, and it has not noticed. */
    private Presenter stale() throws Exception {
        Lease first = client.lock(resource).acquire();
        server.expire(resource);
        try (Lease next = client.lock(resource).acquire()) {
            PostgresFence.transact(pool, resource, next, connection -> connection.createStatement()
                    .executeUpdate("UPDATE orders SET total = 70"));
        }
        return Presenter.of(first.token(), first.authority(), first.name());
    }

    private String refusal(Executable work) {
        DataAccessException error = assertThrows(DataAccessException.class, work);
        return Fenced.rejection(error).code();
    }

    /** The late write is refused, by each framework's own exception; on the bare pool it loses the write of the next holder. */
    @Test
    public void aLateWriteIsRefusedInEachFramework() throws Exception {
        Presenter late = stale();
        for (Map.Entry<String, Orders.Factory> each : Orders.ALL.entrySet()) {
            Orders orders = each.getValue().on(source);
            try (var bound = Fenced.bind(resource, late)) {
                RuntimeException error = assertThrows(RuntimeException.class, () -> orders.add(10), each.getKey());
                assertInstanceOf(StaleException.class, Fenced.rejection(error), each.getKey() + ": " + error);
                RuntimeException seen = orders.translated(error);
                boolean expected = each.getKey().equals("jOOQ") ? seen instanceof org.jooq.exception.DataAccessException
                        : seen instanceof DataAccessException;
                assertTrue(expected, each.getKey() + ": " + seen.getClass());
            }
            assertEquals(70, total(), each.getKey());
            // A control: the newest holder writes.
            try (Lease lease = client.lock(resource).acquire(); var bound = Fenced.bind(resource, lease)) {
                orders.add(5);
                assertEquals(75, total(), each.getKey());
            }
            // A control: without the fence.
            Orders bare = each.getValue().on(pool);
            try (var bound = Fenced.bind(resource, late)) {
                bare.transactions().executeWithoutResult(status -> bare.setTotal(70));
            }
            assertEquals(70, total(), each.getKey());
        }
    }

    /** So a lease's authority knows of it: the client reports what its lease is told. */
    @Test
    public void aHolderIsToldOfItsLateWrite() throws Exception {
        Presenter refused = stale();
        List<String> told = new ArrayList<>();
        Presenter late = new Presenter() {
            @Override
            public long token() {
                return refused.token();
            }

            @Override
            public String authority() {
                return refused.authority();
            }

            @Override
            public String name() {
                return resource;
            }

            @Override
            public void refused(String refusing, String operation, long highest) {
                told.add(operation + " " + refusing + " " + (highest - token()));
            }
        };
        try (var bound = Fenced.bind(resource, late)) {
            assertThrows(RuntimeException.class, () -> Orders.jdbc(source).add(10));
        }
        assertEquals(List.of("claim " + resource + " 1"), told);
    }

    @Test
    public void aLostLeaseSendsNothing() throws Exception {
        Lease lease = client.lock(resource).acquire();
        server.expire(resource);
        lease.lost().get(1, TimeUnit.MINUTES);
        try (var bound = Fenced.bind(resource, lease)) {
            DataAccessException error =
                    assertThrows(DataAccessException.class, () -> Orders.jdbc(source).add(1));
            assertInstanceOf(LeaseLostException.class, Fenced.rejection(error));
        }
        assertEquals(0, new JdbcTemplate(pool).queryForObject(
                "SELECT count(*) FROM palisade_fence WHERE resource = ?", Integer.class, resource));
        assertNull(Fenced.rejection(new IllegalStateException("another error")));
    }

    @Test
    public void aStatementWithAutoCommitOnlyReads() throws Exception {
        Lease lease = client.lock(resource).acquire();
        try (var bound = Fenced.bind(resource, lease)) {
            assertEquals(0, template.queryForObject("/* a hint */ SELECT total FROM orders;", Integer.class));
            for (String write : new String[] {"UPDATE orders SET total = 1", "SELECT 1; DELETE FROM orders",
                    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone", "SELECT * INTO copy FROM orders",
                    "/*! DELETE FROM orders */", "-- SELECT\nDELETE FROM orders",
                    "/* a /* nested */ SELECT */ DELETE FROM orders", "BEGIN", "DO $$ BEGIN END $$"}) {
                assertEquals("auto_commit", refusal(() -> template.execute(write)), write);
            }
            assertEquals("auto_commit", refusal(() -> template.batchUpdate("UPDATE orders SET total = 1")));
            assertEquals("auto_commit", refusal(() -> template.update("UPDATE orders SET total = ?", 1)));
        }
        assertEquals(0, total());
        // A control: without a bound lease it is the application's affair.
        template.update("UPDATE orders SET total = ?", 1);
        assertEquals(1, total());
    }

    /** Where a claim in afterBegin leaves its transaction on the thread, the control shows. */
    @Test
    public void aRefusedClaimLeavesNoTransactionBehind() throws Exception {
        Presenter late = stale();
        try (var bound = Fenced.bind(resource, late)) {
            assertEquals("stale", refusal(() -> Orders.jdbc(source).add(1)));
        }
        assertFalse(TransactionSynchronizationManager.hasResource(source));
        assertEquals(0, pool.getHikariPoolMXBean().getActiveConnections());
        DataSourceTransactionManager manager = new DataSourceTransactionManager(pool);
        manager.addListener(new TransactionExecutionListener() {
            @Override
            public void afterBegin(TransactionExecution transaction, Throwable failure) {
                try {
                    PostgresFence.claim(DataSourceUtils.getConnection(pool), resource, late);
                } catch (SQLException error) {
                    throw new IllegalStateException(error);
                }
            }
        });
        assertThrows(StaleException.class, () -> new TransactionTemplate(manager).executeWithoutResult(status -> {}));
        assertTrue(TransactionSynchronizationManager.hasResource(pool));
        assertEquals(1, pool.getHikariPoolMXBean().getActiveConnections());
        var left = (org.springframework.jdbc.datasource.ConnectionHolder) TransactionSynchronizationManager.unbindResource(pool);
        left.getConnection().close();
        if (TransactionSynchronizationManager.isSynchronizationActive()) {
            TransactionSynchronizationManager.clear();
        }
    }

    /** It would wait for the outer one, which waits for it: the database sees no deadlock. */
    @Test
    public void aNewTransactionInsideOfAClaimedOneIsRefusedAtOnce() throws Exception {
        Lease lease = client.lock(resource).acquire();
        TransactionTemplate inner = transaction(TransactionDefinition.PROPAGATION_REQUIRES_NEW);
        try (var bound = Fenced.bind(resource, lease)) {
            transaction().executeWithoutResult(outer -> {
                template.update("UPDATE orders SET total = 1");
                assertEquals("already_claimed", refusal(() -> inner.executeWithoutResult(
                        status -> template.update("UPDATE orders SET total = 2"))));
                assertEquals(1, template.queryForObject("SELECT total FROM orders", Integer.class));
            });
            assertEquals(1, total());
            // A control: one after the other, and before the outer one has claimed.
            inner.executeWithoutResult(status -> template.update("UPDATE orders SET total = 3"));
            transaction().executeWithoutResult(outer -> {
                inner.executeWithoutResult(status -> template.update("UPDATE orders SET total = 4"));
                template.update("UPDATE orders SET total = total + 1");
            });
            assertEquals(5, total());
        }
    }

    /** A savepoint is made after the claim, so going back to it does not undo the claim. */
    @Test
    public void aNestedTransactionThatRollsBackKeepsTheClaim() throws Exception {
        Lease lease = client.lock(resource).acquire();
        TransactionTemplate nested = transaction(TransactionDefinition.PROPAGATION_NESTED);
        try (var bound = Fenced.bind(resource, lease)) {
            transaction().executeWithoutResult(outer -> {
                nested.executeWithoutResult(status -> {
                    template.update("UPDATE orders SET total = 1");
                    status.setRollbackOnly();
                });
                template.update("UPDATE orders SET total = total + 2");
            });
        }
        assertEquals(2, total());
        // The mark would be missing if the claim had gone with the savepoint.
        assertEquals(lease.token(), new JdbcTemplate(pool).queryForObject(
                "SELECT token FROM palisade_fence WHERE resource = ?", Long.class, resource));
    }

    @Test
    public void aReadOnlyTransactionReadsWithoutAClaim() throws Exception {
        Presenter late = stale();
        TransactionTemplate reads = transaction();
        reads.setReadOnly(true);
        try (var bound = Fenced.bind(resource, late)) {
            assertEquals(70, reads.<Integer>execute(status -> template.queryForObject("SELECT total FROM orders", Integer.class)));
            assertEquals("read_only", refusal(() -> reads.executeWithoutResult(
                    status -> template.update("UPDATE orders SET total = 1"))));
            // A control: in a transaction that may write, the same read claims.
            assertEquals("stale", refusal(() -> transaction().executeWithoutResult(
                    status -> template.queryForObject("SELECT total FROM orders", Integer.class))));
        }
    }

    /** Each database has its own marks: another one is fenced if it has a PalisadeDataSource and the fence. */
    @Test
    public void aSecondDataSourceHasAFenceOfItsOwn() throws Exception {
        Lease lease = client.lock(resource).acquire();
        String other = Databases.postgres().replace("/postgres?", "/other?");
        try (HikariDataSource second = Databases.pool(other); var bound = Fenced.bind(resource, lease)) {
            assertEquals("not_installed", refusal(() -> Orders.jdbc(new PalisadeDataSource(second)).add(1)));
            // A control: without the wrapper nobody asks.
            Orders.jdbc(second).add(1);
            // Its transaction may be inside of another database's.
            transaction().executeWithoutResult(outer -> {
                template.update("UPDATE orders SET total = 1");
                Orders.jdbc(second).add(1);
            });
            assertEquals(2, new JdbcTemplate(second).queryForObject("SELECT total FROM orders", Integer.class));
        }
    }

    @Test
    public void distributedTransactionsAreRefused() {
        DataSource distributed = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {
            DataSource.class, javax.sql.XADataSource.class}, (self, method, arguments) -> null);
        assertThrows(IllegalArgumentException.class, () -> new PalisadeDataSource(distributed));
    }

    @Test
    public void aLeaseIsBoundBeforeTheFirstStatement() throws Exception {
        Lease lease = client.lock(resource).acquire();
        assertEquals("read_before_claim", refusal(() -> transaction().executeWithoutResult(status -> {
            int read = template.queryForObject("SELECT total FROM orders", Integer.class);
            try (var bound = Fenced.bind(resource, lease)) {
                template.update("UPDATE orders SET total = ?", read + 1);
            }
        })));
        assertEquals(0, total());
        // A control: the transaction may be begun before.
        transaction().executeWithoutResult(status -> {
            try (var bound = Fenced.bind(resource, lease)) {
                template.update("UPDATE orders SET total = 1");
            }
            template.update("UPDATE orders SET total = total + 1");
        });
        assertEquals(2, total());
    }

    /** The transaction of a refusal that nobody passed on does not seem committed. */
    @Test
    public void aSwallowedRefusalFailsTheCommit() throws Exception {
        Presenter late = stale();
        try (var bound = Fenced.bind(resource, late); Connection connection = source.getConnection();
                Statement statement = connection.createStatement()) {
            connection.setAutoCommit(false);
            assertThrows(RefusedException.class, () -> statement.execute("UPDATE orders SET total = 1"));
            assertThrows(RefusedException.class, () -> statement.execute("UPDATE orders SET total = 1"));
            RefusedException error = assertThrows(RefusedException.class, connection::commit);
            assertEquals("PF001", error.getSQLState());
            assertThrows(RefusedException.class, () -> connection.unwrap(org.postgresql.PGConnection.class));
            connection.rollback();
        }
        assertEquals(70, total());
        // Auto-commit commits, too.
        try (Connection connection = source.getConnection(); Statement statement = connection.createStatement()) {
            connection.setAutoCommit(false);
            try (var bound = Fenced.bind(resource, late)) {
                assertThrows(RefusedException.class, () -> statement.execute("UPDATE orders SET total = 1"));
            }
            assertThrows(RefusedException.class, () -> connection.setAutoCommit(true));
            assertTrue(connection.getAutoCommit());
        }
        // Its writes before the lease was bound are not committed either.
        Exception commit = assertThrows(TransactionSystemException.class, () -> transaction().executeWithoutResult(status -> {
            template.update("UPDATE orders SET total = 1");
            try (Lease lease = client.lock(resource).acquire(); var bound = Fenced.bind(resource, lease)) {
                assertThrows(DataAccessException.class, () -> template.update("UPDATE orders SET total = 2"));
            } catch (InterruptedException gone) {
                throw new IllegalStateException(gone);
            }
        }));
        assertEquals("read_before_claim", Fenced.rejection(commit).code());
        assertEquals(70, total());
    }

    /** Each of them is a transaction of its own that has to claim. */
    @Test
    public void everyTransactionOfAConnectionClaims() throws Exception {
        Lease first = client.lock(resource).acquire();
        Presenter late = Presenter.of(first.token(), first.authority(), first.name());
        for (String end : new String[] {"commit", "COMMIT", "/* now */ rollback", "/* /* nested */ */ COMMIT", "END", "ABORT", "setAutoCommit"}) {
            Lease next;
            try (var bound = Fenced.bind(resource, late); Connection connection = source.getConnection()) {
                connection.setAutoCommit(false);
                try (PreparedStatement update = connection.prepareStatement("UPDATE orders SET total = total + 1");
                        Statement statement = connection.createStatement()) {
                    update.executeUpdate();
                    statement.execute("SAVEPOINT s");
                    statement.execute("ROLLBACK TO s");
                    switch (end) {
                        case "commit" -> connection.commit();
                        case "setAutoCommit" -> {
                            connection.setAutoCommit(true);
                            connection.setAutoCommit(false);
                        }
                        default -> statement.execute(end);
                    }
                    server.expire(resource);
                    next = client.lock(resource).acquire();
                    PostgresFence.transact(pool, resource, next, inside -> inside.createStatement()
                            .executeUpdate("UPDATE orders SET total = 70"));
                    SQLException refused = assertThrows(SQLException.class, update::executeUpdate, end);
                    assertInstanceOf(StaleException.class, Fenced.rejection(refused), end);
                    connection.rollback();
                }
            }
            assertEquals(70, total(), end);
            late = Presenter.of(next.token(), next.authority(), next.name());
        }
    }

    @Test
    public void whatWouldWriteWithoutAStatementIsRefused() throws Exception {
        Lease lease = client.lock(resource).acquire();
        try (var bound = Fenced.bind(resource, lease); Connection connection = source.getConnection()) {
            assertThrows(RefusedException.class, () -> connection.unwrap(org.postgresql.PGConnection.class));
            Statement updates = connection.createStatement(ResultSet.TYPE_SCROLL_SENSITIVE, ResultSet.CONCUR_UPDATABLE);
            assertThrows(RefusedException.class, () -> updates.executeQuery("SELECT * FROM orders"));
            connection.setAutoCommit(false);
            connection.unwrap(org.postgresql.PGConnection.class);
            connection.commit();
        }
        // It has claimed.
        assertEquals(lease.token(), new JdbcTemplate(pool).queryForObject(
                "SELECT token FROM palisade_fence WHERE resource = ?", Long.class, resource));
    }

    /** The triggers of the fence refuse it, and the driver's exception is recognised. */
    @Test
    public void aWriteThatForgotTheLeaseIsNamed() throws Exception {
        Lease lease = client.lock(resource).acquire();
        new JdbcTemplate(pool).queryForList("SELECT palisade_sticky('orders', ?)::text", resource);
        assertEquals("tokenless", refusal(() -> Orders.jdbc(source).add(1)));
        assertEquals("tokenless", refusal(() -> template.update("UPDATE orders SET total = 1")));
        // A control.
        try (var bound = Fenced.bind(resource, lease)) {
            Orders.jdbc(source).add(1);
        }
        assertEquals(1, total());
    }

    @Test
    public void aBindingBelongsToItsThread() throws Exception {
        Presenter late = stale();
        try (var bound = Fenced.bind(resource, late)) {
            Thread other = new Thread(() -> Orders.jdbc(source).add(1));
            other.start();
            other.join();
        }
        assertEquals(71, total());
        Orders.jdbc(source).add(1);
        assertEquals(72, total());
    }

    private Lease acquired() {
        try {
            return client.lock(resource).acquire();
        } catch (InterruptedException gone) {
            throw new IllegalStateException(gone);
        }
    }

    /** Where the advice of the transaction is around that of the lock. Without the fence the next holder reads too early. */
    @Test
    public void aLockThatIsReleasedBeforeTheCommitLosesNothing() throws Exception {
        for (Map.Entry<DataSource, Integer> each : Map.<DataSource, Integer>of(pool, 10, source, 11).entrySet()) {
            Orders orders = Orders.jdbc(each.getKey());
            new JdbcTemplate(pool).update("UPDATE orders SET total = 0");
            CompletableFuture<Void> next = orders.transactions().execute(status -> {
                try (Lease lease = acquired(); var bound = Fenced.bind(resource, lease)) {
                    orders.setTotal(orders.total() + 1);
                }
                CompletableFuture<Void> began = CompletableFuture.runAsync(() -> {
                    try (Lease lease = acquired(); var bound = Fenced.bind(resource, lease)) {
                        orders.add(10);
                    }
                });
                // It waits for this transaction: at its claim, or on the pool at its write.
                try (Connection watches = pool.getConnection()) {
                    while (number(watches, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == 0) {
                        assertFalse(began.isDone());
                    }
                } catch (SQLException error) {
                    throw new IllegalStateException(error);
                }
                return began;
            });
            next.get(1, TimeUnit.MINUTES);
            assertEquals(each.getValue(), total());
        }
    }

    private static int number(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getInt(1);
        }
    }

    /** The bound of a claim is the session's: it would end a later transaction of the pool's connection. */
    @Test
    public void aConnectionOfMariaDbGoesBackAsItWas() throws Exception {
        String bounds = "SELECT @@SESSION.idle_write_transaction_timeout";
        Lease lease = client.lock(resource).acquire();
        Presenter late = Presenter.of(lease.token(), lease.authority(), lease.name());
        try (HikariDataSource maria = Databases.pool(Databases.mariadb()); Connection only = maria.getConnection()) {
            DataSource fenced = new PalisadeDataSource(new SingleConnectionDataSource(only, true));
            for (String end : new String[] {"commit", "rollback", "setAutoCommit", "close", "COMMIT", "refused"}) {
                if (end.equals("refused")) {
                    server.expire(resource);
                    MySqlFence.transact(maria, resource, client.lock(resource).acquire(), inside -> null);
                }
                try (var bound = Fenced.bind(resource, late); Connection connection = fenced.getConnection();
                        Statement statement = connection.createStatement()) {
                    connection.setAutoCommit(false);
                    if (end.equals("refused")) {
                        assertThrows(RefusedException.class, () -> statement.execute("UPDATE orders SET total = 1"));
                        connection.rollback();
                    } else {
                        statement.execute("UPDATE orders SET total = total + 1");
                        // A control: as the claim leaves it.
                        assertTrue(number(only, bounds) > 0, end);
                    }
                    switch (end) {
                        case "commit" -> connection.commit();
                        case "rollback" -> connection.rollback();
                        case "setAutoCommit" -> connection.setAutoCommit(true);
                        case "COMMIT" -> statement.execute("COMMIT");
                        default -> { }
                    }
                }
                assertEquals(0, number(only, bounds), end);
                assertEquals(1, number(only, "SELECT @palisade_lease_left_ms IS NULL"), end);
                only.setAutoCommit(true);
            }
            assertEquals(3, number(only, "SELECT total FROM orders"));
        }
    }

    /** DDL commits in MariaDB, and a procedure may. What follows is another transaction. */
    @Test
    public void whatFollowsASilentCommitClaims() throws Exception {
        try (HikariDataSource maria = Databases.pool(Databases.mariadb())) {
            for (String commits : new String[] {"TRUNCATE TABLE scratch", "batch"}) {
                new JdbcTemplate(maria).execute("CREATE TABLE IF NOT EXISTS scratch (id int)");
                Lease first = client.lock(resource).acquire();
                Presenter late = Presenter.of(first.token(), first.authority(), first.name());
                try (var bound = Fenced.bind(resource, late);
                        Connection connection = new PalisadeDataSource(maria).getConnection();
                        Statement statement = connection.createStatement()) {
                    connection.setAutoCommit(false);
                    // A control: what commits nothing is followed by a claim that changes nothing.
                    statement.execute("UPDATE orders SET total = 1");
                    statement.execute("SET @other = 1");
                    assertEquals(1, number(connection, "SELECT total FROM orders"));
                    if (commits.equals("batch")) {
                        statement.addBatch("TRUNCATE TABLE scratch");
                        statement.executeBatch();
                    } else {
                        statement.execute(commits);
                    }
                    server.expire(resource);
                    try (Lease next = client.lock(resource).acquire()) {
                        MySqlFence.transact(maria, resource, next, inside -> inside.createStatement()
                                .executeUpdate("UPDATE orders SET total = 70"));
                    }
                    SQLException refused = assertThrows(SQLException.class,
                            () -> statement.execute("UPDATE orders SET total = 2"), commits);
                    assertInstanceOf(StaleException.class, Fenced.rejection(refused));
                    connection.rollback();
                }
                assertEquals(70, new JdbcTemplate(maria).queryForObject("SELECT total FROM orders", Integer.class));
            }
        }
    }

    /** It may have no target before a request names one, and its targets may be of several kinds. */
    @Test
    public void aDataSourceThatRoutesClaimsAtEachTarget() throws Exception {
        try (HikariDataSource maria = Databases.pool(Databases.mariadb())) {
            String[] target = {null};
            AbstractRoutingDataSource routes = new AbstractRoutingDataSource() {
                @Override
                protected Object determineCurrentLookupKey() {
                    return target[0];
                }
            };
            routes.setTargetDataSources(Map.of("postgres", pool, "mariadb", maria));
            routes.afterPropertiesSet();
            Orders orders = Orders.jdbc(new PalisadeDataSource(routes));
            Lease first = client.lock(resource).acquire();
            Presenter late = Presenter.of(first.token(), first.authority(), first.name());
            server.expire(resource);
            for (String each : new String[] {"postgres", "mariadb"}) {
                target[0] = each;
                try (Lease next = client.lock(resource).acquire(); var bound = Fenced.bind(resource, next)) {
                    orders.add(70);
                }
                try (var bound = Fenced.bind(resource, late)) {
                    assertEquals("stale", refusal(() -> orders.add(10)), each);
                }
                assertEquals(70, orders.total(), each);
            }
        }
    }

    /** A statement that was made before the lease was bound is judged when it is used. */
    @Test
    public void anUpdatableResultSetIsRefusedWhereverItWasMade() throws Exception {
        Lease lease = client.lock(resource).acquire();
        try (Connection connection = source.getConnection(); Statement updates = connection.createStatement(
                ResultSet.TYPE_SCROLL_SENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
            try (var bound = Fenced.bind(resource, lease)) {
                assertThrows(RefusedException.class, () -> updates.executeQuery("SELECT * FROM orders"));
            }
            // A control: without a lease it writes.
            try (ResultSet rows = updates.executeQuery("SELECT * FROM orders")) {
                rows.next();
                rows.updateInt("total", 1);
                rows.updateRow();
            }
        }
        assertEquals(1, total());
    }

    @Test
    public void mariaDbClaimsToo() throws Exception {
        try (HikariDataSource maria = Databases.pool(Databases.mariadb())) {
            Orders orders = Orders.jdbc(new PalisadeDataSource(maria));
            Lease first = client.lock(resource).acquire();
            try (var bound = Fenced.bind(resource, first)) {
                orders.add(1);
            }
            server.expire(resource);
            try (Lease next = client.lock(resource).acquire(); var bound = Fenced.bind(resource, next)) {
                orders.add(69);
            }
            try (var bound = Fenced.bind(resource, Presenter.of(first.token(), first.authority(), first.name()))) {
                assertEquals("stale", refusal(() -> orders.add(10)));
            }
            assertEquals(70, orders.total());
            // A control: on the bare pool it is written.
            Orders.jdbc(maria).add(10);
            assertEquals(80, orders.total());
        }
    }
}
