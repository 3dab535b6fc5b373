package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;

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
    private static final Duration TTL = Duration.ofSeconds(9);

    @Test
    public void anotherProcessGoesOnWithALease() throws Exception {
        try (Servers.Running server = Servers.serve(); Client client = Client.builder().endpoints(server.url()).build()) {
            Lease lease = client.lock("orders").ttl(TTL).acquire();
            Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1",
                    "-cp", System.getProperty("java.class.path"), "example.palisade.Adopter", server.url())
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            try (Writer in = process.outputWriter(StandardCharsets.UTF_8);
                    BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
                assertEquals("ready", out.readLine());
                in.write(lease.export() + "\n");
                in.flush();
                assertEquals(Long.toString(lease.token()), out.readLine());
                assertEquals("renewed", out.readLine());
                assertEquals(lease.token(), client.show("orders").holder().token());
                in.write("release\n");
                in.flush();
                try (Lease next = client.lock("orders").acquire()) {
                    assertEquals(lease.token() + 1, next.token());
                }
            } finally {
                Servers.end(process);
            }
            // The control: nobody adopts it, and it expires.
            Lease left = client.lock("orders").ttl(Duration.ofMillis(300)).acquire();
            left.export();
            try (Lease next = client.lock("orders").waitUpTo(Duration.ofMinutes(1)).acquire()) {
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
