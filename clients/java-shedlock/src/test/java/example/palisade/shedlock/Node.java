package example.palisade.shedlock;

import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.PalisadeException;
import example.palisade.fence.Presenter;
import example.palisade.fence.SqliteFence;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import org.sqlite.SQLiteDataSource;

/**
 * A node that a test stops in the middle of its job: {@code Node URL FILE bare|fenced|late}. The job reads a number, prints a line,
 * waits for one, and writes what it computed: without a fence; with its lease; or with what it knew of its lease before it was
 * stopped, as if the pause fell behind the check.
 */
public final class Node {
    static final Duration TTL = Duration.ofSeconds(2);

    private Node() {}

    static LockConfiguration nightly() {
        return new LockConfiguration(Instant.now(), "nightly", Duration.ofHours(2), Duration.ZERO);
    }

    /** Prints "computed", then "written" or the code of the refusal. */
    public static void main(String[] arguments) throws Throwable {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Client client = Client.builder().endpoints(arguments[0]).build()) {
            LockingTaskExecutor executor = new DefaultLockingTaskExecutor(new PalisadeLockProvider(client, TTL, ""));
            try {
                executor.executeWithLock((LockingTaskExecutor.Task) () -> job(arguments[1], arguments[2], lines), nightly());
                System.out.println("written");
            } catch (PalisadeException refused) {
                System.out.println(refused.code());
            }
        }
    }

    private static void job(String file, String mode, BufferedReader lines) throws Exception {
        Lease lease = PalisadeLock.current();
        Presenter holder = mode.equals("late") ? Presenter.of(lease.token(), lease.authority(), lease.name()) : lease;
        SQLiteDataSource source = source(file);
        try (Connection connection = source.getConnection()) {
            int total = total(connection) + 10;
            System.out.println("computed");
            lines.readLine();
            if (mode.equals("bare")) {
                write(connection, total);
            } else {
                SqliteFence.transact(connection, "orders", holder, inside -> write(inside, total));
            }
        }
    }

    static SQLiteDataSource source(String file) {
        SQLiteDataSource source = new SQLiteDataSource();
        source.setUrl("jdbc:sqlite:" + file);
        return source;
    }

    static int total(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT total FROM totals")) {
            rows.next();
            return rows.getInt(1);
        }
    }

    static Void write(Connection connection, int total) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE totals SET total = " + total);
            return null;
        }
    }
}
