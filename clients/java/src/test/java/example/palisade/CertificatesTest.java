package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import javax.net.ssl.KeyManager;
import javax.net.ssl.SSLContext;
import org.junit.jupiter.api.Test;

/** Certificates that are replaced while a client runs: real servers with TLS, of one CA and then of another. */
public class CertificatesTest {
    /** A CA with a certificate for a server and one for a client. */
    private static Path authority() throws Exception {
        Path folder = Servers.folder("ca");
        for (String subject : List.of("127.0.0.1", "me")) {
            Servers.run(List.of(Servers.binary(), "auth", "cert", "--dir", folder.toString(), subject));
        }
        return folder;
    }

    private static Servers.Running serve(Path ca) {
        return Servers.serve("--tls-cert", ca.resolve("127.0.0.1.pem").toString(), "--tls-key",
                ca.resolve("127.0.0.1.key").toString(), "--tls-client-ca", ca.resolve("ca.pem").toString());
    }

    private static SSLContext files(Path folder) {
        return Certificates.of(folder.resolve("ca.pem"), folder.resolve("me.pem"), folder.resolve("me.key"));
    }

    private static void take(Path mine, Path from, String... names) throws IOException {
        for (String name : names) {
            // As Kubernetes does: the new file takes the old one's place.
            Files.copy(from.resolve(name), mine.resolve("next"));
            Files.move(mine.resolve("next"), mine.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        }
    }

    @Test
    public void aNewConnectionHasWhatIsInTheFiles() throws Exception {
        Path old = authority();
        Path fresh = authority();
        Path mine = Servers.folder("mine");
        take(mine, old, "ca.pem", "me.pem", "me.key");
        // The files of a client that reads them once: those of a folder that nobody touches.
        SSLContext once = files(old);
        try (Servers.Running first = serve(old); Servers.Running second = serve(old); Servers.Running third = serve(fresh);
                Client client = Client.builder().endpoints(first.url(), second.url(), third.url())
                        .tlsFiles(mine.resolve("ca.pem"), mine.resolve("me.pem"), mine.resolve("me.key")).build();
                Client readsOnce = Client.builder().endpoints(first.url(), second.url(), third.url())
                        .sslContext(once).patience(Duration.ofSeconds(1)).build()) {
            client.show("orders");
            readsOnce.show("orders");
            // One of two files is replaced: the old pair stays in use.
            take(mine, fresh, "me.pem");
            Servers.end(first.process());
            client.show("orders");
            readsOnce.show("orders");
            take(mine, fresh, "me.key", "ca.pem");
            Servers.end(second.process());
            client.show("orders");
            // A control: a client that reads its files once is refused, and trusts nobody there.
            assertThrows(PalisadeException.class, () -> readsOnce.show("orders"));
        }
    }

    /** A server that knows who a connection belongs to for its first answers only, as if its certificate were over. */
    private static HttpsServer forgetful(Path ca, int knows, List<String> asked) throws Exception {
        Map<InetSocketAddress, Integer> answers = new HashMap<>();
        HttpsServer server = HttpsServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(
                Certificates.of(null, ca.resolve("127.0.0.1.pem"), ca.resolve("127.0.0.1.key"))));
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", (HttpExchange exchange) -> {
            boolean known;
            synchronized (answers) {
                asked.add(exchange.getRequestURI().getPath());
                known = answers.merge(exchange.getRemoteAddress(), 1, Integer::sum) <= knows;
            }
            String answer = !known
                    ? "{\"error\": {\"code\": \"unauthenticated\", \"message\": \"the client certificate has expired\"}}"
                    : exchange.getRequestURI().getPath().endsWith("/watch")
                            ? "id: 7\nevent: missed\ndata: {\"missed\": 2}\n\n"
                            : "{\"resource_id\": \"orders\", \"holder\": null, \"waiters\": 0}";
            exchange.getResponseHeaders().set("Palisade-Nonce", exchange.getRequestHeaders().getFirst("Palisade-Nonce"));
            exchange.sendResponseHeaders(known ? 200 : 401, answer.length());
            exchange.getResponseBody().write(answer.getBytes());
            exchange.close();
        });
        server.start();
        return server;
    }

    private static String url(HttpsServer server) {
        return "https://127.0.0.1:" + server.getAddress().getPort();
    }

    @Test
    public void aConnectionWhoseCertificateIsOverIsReplaced() throws Exception {
        Path ca = authority();
        List<String> asked = Collections.synchronizedList(new ArrayList<>());
        List<String> strangers = Collections.synchronizedList(new ArrayList<>());
        HttpsServer server = forgetful(ca, 1, asked);
        HttpsServer unknowing = forgetful(ca, 0, strangers);
        try (Client client = Client.builder().endpoints(url(server)).tlsFiles(ca.resolve("ca.pem"), null, null).build();
                Client stranger =
                        Client.builder().endpoints(url(unknowing)).tlsFiles(ca.resolve("ca.pem"), null, null).build()) {
            client.show("orders");
            client.show("orders");
            try (Watch watch = client.watch("")) {
                assertEquals("missed", watch.next().kind());
            }
            String shown = "/v1/locks/orders";
            assertEquals(List.of(shown, shown, shown, "/v1/watch", "/v1/watch"), asked);
            // A control: a caller that is unknown on a new connection, too, gets the error after one more attempt.
            PalisadeException refused = assertThrows(PalisadeException.class, () -> stranger.show("orders"));
            assertEquals("unauthenticated", refused.code());
            assertEquals(List.of(shown, shown), strangers);
        } finally {
            server.stop(0);
            unknowing.stop(0);
        }
    }

    private static Path pem(Path folder, String what, byte[] content) throws IOException {
        String text = Base64.getMimeEncoder().encodeToString(content);
        return Files.writeString(
                Path.of(folder + what + ".pem"), "-----BEGIN " + what + "-----\n" + text + "\n-----END " + what + "-----\n");
    }

    @Test
    public void filesThatCannotBeUsedAreNamed() throws Exception {
        Path ca = authority();
        Path certificate = ca.resolve("me.pem");
        Map<String, Path[]> cases = Map.of(
                "nobody.pem", new Path[] {ca.resolve("nobody.pem"), null, null},
                "me.pem has no key in PKCS #8", new Path[] {null, certificate, certificate},
                "do not belong together", new Path[] {null, certificate, ca.resolve("127.0.0.1.key")},
                "both or none", new Path[] {null, certificate, null});
        cases.forEach((says, files) -> {
            PalisadeException refused = assertThrows(
                    PalisadeException.class, () -> Client.builder().tlsFiles(files[0], files[1], files[2]), says);
            assertTrue(refused.getMessage().contains(says), refused.getMessage());
        });
        for (String kind : List.of("RSA", "Ed25519")) {
            Path store = Servers.folder("key").resolve("store");
            Servers.run(List.of(System.getProperty("java.home") + "/bin/keytool", "-genkeypair", "-keystore", store.toString(),
                    "-storepass", "changeit", "-keyalg", kind, "-dname", "CN=a"));
            KeyStore keys = KeyStore.getInstance(store.toFile(), "changeit".toCharArray());
            Path own = pem(store, "CERTIFICATE", keys.getCertificate("mykey").getEncoded());
            Path key = pem(store, "PRIVATE KEY", keys.getKey("mykey", "changeit".toCharArray()).getEncoded());
            Certificates.of(own, own, key).createSSLEngine();
        }
        assertThrows(Exception.class, () -> files(ca).init(new KeyManager[0], null, null));
    }
}
