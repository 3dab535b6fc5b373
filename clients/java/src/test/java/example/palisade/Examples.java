package example.palisade;

import example.palisade.fence.PostgresFence;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;

/** The examples of the README, which the tests run. */
final class Examples {
    private Examples() {}

    static void fencedWrite(Client client, Connection connection) throws InterruptedException, SQLException {
        try (Lease lease = client.lock("orders").ttl(Duration.ofSeconds(10)).acquire();
                Statement statement = connection.createStatement()) {
            PostgresFence.claim(connection, "orders", lease); // first: from now on no older holder can write
            statement.executeUpdate("UPDATE orders SET total = total + 1");
            connection.commit();
        }
    }

    static String report(Client client) throws InterruptedException {
        try (Lease lease = client.lock("report").waitUpTo(Duration.ofSeconds(2)).acquire()) {
            lease.lost().thenAccept(loss -> System.err.println("stop: " + loss));
            for (int part = 0; part < 3; part++) {
                lease.check(); // throws LeaseLostException; no round trip
            }
            return "done";
        } catch (LockHeldException held) {
            return "busy: " + held.holder() + ", try again in " + held.retryAfter();
        }
    }
}
