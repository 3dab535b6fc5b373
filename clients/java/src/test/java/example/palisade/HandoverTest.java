package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.internal.Json;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A lease that is handed over to another process. */
public final class HandoverTest {
    private static final Duration TTL = Duration.ofSeconds(2);

    @Test
    public void anotherProcessGoesOnWithALease() throws Exception {
        try (Servers.Running server = Servers.serve(); Client client = Client.builder().endpoints(server.url()).build()) {
            Lease lease = client.lock("orders").ttl(TTL).acquire();
            Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1",
                    "-cp", System.getProperty("java.class.path"), "example.palisade.Adopter", server.url())
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            try (Writer in = process.outputWriter(StandardCharsets.UTF_8);
                    BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
                in.write(lease.export() + "\n");
                in.flush();
                assertEquals(Long.toString(lease.token()), out.readLine());
                // Nobody here renews it any more.
                assertTrue(client.lock("orders").waitUpTo(TTL.multipliedBy(2)).tryAcquire().isEmpty());
                in.write("release\n");
                in.flush();
                assertEquals("held", out.readLine());
                try (Lease next = client.lock("orders").acquire()) {
                    assertEquals(lease.token() + 1, next.token());
                }
            } finally {
                Servers.end(process);
            }
            // The control: nobody adopts it, and it expires.
            Lease left = client.lock("orders").ttl(TTL).acquire();
            left.export();
            try (Lease next = client.lock("orders").waitUpTo(TTL.multipliedBy(2)).tryAcquire().orElseThrow()) {
                assertEquals(left.token() + 1, next.token());
            }
        }
    }

    /** An adopter that counted from the exporter's deadline would compare the clocks of two machines: no field has one. */
    @Test
    public void noFieldHasADeadline() throws Exception {
        try (Servers.Running server = Servers.serve(); Client client = Client.builder().endpoints(server.url()).build()) {
            String text = client.lock("orders").metadata("why").acquire().export();
            String json = new String(
                    Base64.getUrlDecoder().decode(text.substring("palisade-lease/1.".length())), StandardCharsets.UTF_8);
            assertEquals(Set.of("lock", "authority", "fencing_token", "lock_token", "ttl_ms", "client_id", "metadata"),
                    Json.object(json).keySet());
            assertEquals(15_000L, Json.object(json).get("ttl_ms"));
        }
    }
}
