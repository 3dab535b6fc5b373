package example.palisade.spring;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.fence.Presenter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import org.springframework.dao.DataAccessException;
import org.springframework.integration.support.locks.DistributedLock;

/**
 * A node that a test stops while it has a lock of Spring Integration: {@code Node URL DATABASE bare|fenced|late}. It reads a number,
 * prints a line, waits for one, and writes what it computed: without a fence; with its lease; or with what it knew of its lease before
 * it was stopped, as if the pause fell behind the check.
 */
public final class Node {
    static final Duration TTL = Duration.ofSeconds(1);

    private Node() {}

    /** Prints "computed", then "written" or the code of the refusal, then what {@code unlock} said. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(arguments[1]);
        try (Client client = Client.builder().endpoints(arguments[0]).build(); HikariDataSource pool = new HikariDataSource(config)) {
            PalisadeLockRegistry registry = new PalisadeLockRegistry(client, TTL, "");
            DistributedLock lock = registry.obtain("nightly");
            lock.lock();
            String said;
            try {
                Lease lease = registry.lease("nightly");
                Orders orders = Orders.jdbc(new PalisadeDataSource(pool));
                int total = orders.total() + 10;
                System.out.println("computed");
                lines.readLine();
                said = write(orders, total, switch (arguments[2]) {
                    case "bare" -> null;
                    case "late" -> Presenter.of(lease.token(), lease.authority(), lease.name());
                    default -> lease;
                });
            } finally {
                try {
                    lock.unlock();
                } catch (ConcurrentModificationException lost) {
                    System.out.println("lost");
                }
            }
            System.out.println(said);
        }
    }

    private static String write(Orders orders, int total, Presenter holder) {
        try (var bound = holder == null ? null : Fenced.bind("orders", holder)) {
            orders.transactions().executeWithoutResult(status -> orders.setTotal(total));
            return "written";
        } catch (DataAccessException refused) {
            return Fenced.rejection(refused).code();
        }
    }
}
