package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** The file of a bearer token. */
public final class BearerTest {
    /** As Kubernetes does: the new file takes the old one's place. */
    private static void replace(Path file, String text) throws Exception {
        Path fresh = Files.writeString(file.resolveSibling("fresh"), text);
        Files.move(fresh, file, StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE);
    }

    @Test
    public void aBearerTokenThatIsReplacedInItsFileIsTaken() throws Exception {
        AtomicReference<String> counts = new AtomicReference<>("one");
        HttpServer guarded = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        guarded.createContext("/", exchange -> {
            boolean known = ("Bearer " + counts.get()).equals(exchange.getRequestHeaders().getFirst("Authorization"));
            byte[] body = (known
                    ? "{\"resource_id\": \"report\", \"holder\": null, \"waiters\": 0}"
                    : "{\"error\": {\"code\": \"unauthenticated\", \"message\": \"another token counts\"}}")
                    .getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Palisade-Nonce", exchange.getRequestHeaders().getFirst("Palisade-Nonce"));
            exchange.sendResponseHeaders(known ? 200 : 401, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        guarded.start();
        Path folder = Files.createTempDirectory("palisade-java-");
        Path file = folder.resolve("token");
        replace(file, "one\n");
        String url = "http://127.0.0.1:" + guarded.getAddress().getPort();
        try (Client renewed = Client.builder().endpoints(url).bearerTokenFile(file).build();
                Client fixed = Client.builder().endpoints(url).bearerToken("one").build()) {
            renewed.show("report");
            fixed.show("report");
            replace(file, "two\n");
            counts.set("two");
            renewed.show("report");
            // A control: a client that does not read the file again is refused.
            assertEquals("unauthenticated", assertThrows(PalisadeException.class, () -> fixed.show("report")).code());
            // While the file cannot be used, the last token stays.
            replace(file, "two words");
            renewed.show("report");
            Files.delete(file);
            renewed.show("report");
            assertThrows(PalisadeException.class, () -> Client.builder().bearerTokenFile(file).build());
            assertThrows(
                    PalisadeException.class, () -> Client.builder().bearerTokenFile(file).bearerToken("one").build());
        } finally {
            guarded.stop(0);
            Files.deleteIfExists(file);
            Files.delete(folder);
        }
    }
}
