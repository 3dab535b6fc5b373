package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.NotSerializableException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/**
 * Frameworks send exceptions, and objects that closures refer to, from one JVM to
 * another.
 */
public final class SerializationTest {
    private static byte[] written(Object value) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream stream = new ObjectOutputStream(bytes)) {
            stream.writeObject(value);
        }
        return bytes.toByteArray();
    }

    private static <T extends PalisadeException> T sent(T error) throws Exception {
        try (ObjectInputStream stream = new ObjectInputStream(new ByteArrayInputStream(written(error)))) {
            @SuppressWarnings("unchecked")
            T read = (T) stream.readObject();
            assertEquals(List.of(error.kind(), error.code(), error.getMessage()),
                    List.of(read.kind(), read.code(), read.getMessage()));
            return read;
        }
    }

    @Test
    public void anErrorSaysElsewhereWhatItSaidHere() throws Exception {
        sent(new PalisadeException(PalisadeException.Kind.UNAVAILABLE, "unavailable", "nobody answers"));
        LeaseLostException lost = sent(new LeaseLostException("expired", "orders", 34));
        assertEquals("orders 34", lost.name() + " " + lost.token());
        Holder holder = new Holder("me", 34, Duration.ofSeconds(7), "nightly", null, 5L, List.of(1, 3));
        LockHeldException held = sent(new LockHeldException("held", "it is held", holder, Duration.ofSeconds(7)));
        assertEquals(Optional.of(holder), held.holder());
        assertEquals(Optional.of(Duration.ofSeconds(7)), held.retryAfter());
        LockHeldException closed = sent(new LockHeldException("delayed", "it is closed", null, null));
        assertEquals(Optional.empty(), closed.holder());
    }

    /** A lease in another JVM would be a second holder, and one that nobody renews. */
    @Test
    public void whatHoldsOrAsksStaysInItsProcess() throws Exception {
        try (Servers.Running server = Servers.serve(); Client client = Client.builder().endpoints(server.url()).build();
                Lease lease = client.lock("orders").acquire(); Watch watch = client.watch("")) {
            for (Object one : new Object[] {client, client.lock("orders"), lease, lease.part("orders"), watch}) {
                NotSerializableException refused = assertThrows(NotSerializableException.class, () -> written(one));
                assertEquals(one.getClass().getName(), refused.getMessage());
            }
            LockHeldException held = assertThrows(
                    LockHeldException.class, () -> client.lock("orders").waitUpTo(Duration.ZERO).acquire());
            assertEquals(held.holder(), sent(held).holder());
            lease.check();
        }
    }
}
