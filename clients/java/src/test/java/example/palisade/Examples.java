package example.palisade;

import example.palisade.attempts.Attempt;
import example.palisade.attempts.Attempts;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Sequencer;
import example.palisade.fence.SequencerKeys;
import example.palisade.testing.MemoryServer;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import javax.sql.DataSource;

/** The examples of the README, which the tests run. */
final class Examples {
    private Examples() {}

    static int fencedWrite(Client client, DataSource dataSource) throws InterruptedException, SQLException {
        try (Lease lease = client.lock("orders").ttl(Duration.ofSeconds(10)).acquire()) {
            return PostgresFence.transact(dataSource, "orders", lease, connection -> { // claims first: no older holder can write
                return connection.createStatement().executeUpdate("UPDATE orders SET total = total + 1");
            });
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

    /** The example of docs/use/notices.md. */
    static Lease.Registration listening(Lease lease, Runnable yield) {
        Lease.Registration listener = lease.listen(notice -> {
            switch (notice.kind()) {
                case SUSPENDED -> System.out.println("no new batch: held for " + notice.remaining()); // then RESTORED or LOST
                case WANTED -> yield.run(); // UNWANTED follows when nobody waits any more
                case LOST -> System.out.println(notice.loss().getMessage());
                default -> {}
            }
        });
        return listener;
    }

    static String tested() throws InterruptedException {
        MemoryServer server = new MemoryServer(); // of example.palisade.testing, in the same jar
        server.hold("report");
        try (Client client = server.client()) {
            return report(client); // finds the lock taken
        }
    }

    static void attempts(Connection connection) throws SQLException {
        Attempts jobs = Attempts.of("jobs").lease(Duration.ofSeconds(30)).maxAttempts(5);
        Optional<Attempt> taken = jobs.take(connection, "worker-1");
        if (taken.isPresent()) {
            jobs.transact(connection, taken.get(), inside -> // all effects, and the job is done
                    inside.createStatement().executeUpdate("UPDATE orders SET total = total + 1"));
        }
    }

    static long signed(Lease lease, String jwks) throws InterruptedException {
        String presented = lease.sequencer(); // it goes to the resource, over TLS, and into no log

        // At the resource: get the text of /.well-known/jwks.json over TLS, and again when it has changed.
        SequencerKeys keys = new SequencerKeys(jwks);
        Sequencer sequencer = keys.check(presented, "invoices", true); // true: the request writes
        return sequencer.token(); // the fence compares it, as always
    }
}
