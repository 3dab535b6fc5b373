package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.BadSequencerException;
import example.palisade.fence.Sequencer;
import example.palisade.fence.SequencerKeys;
import example.palisade.internal.Json;
import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.PrivateKey;
import java.security.Provider;
import java.security.PublicKey;
import java.security.Security;
import java.security.Signature;
import java.security.SignatureSpi;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Signed tokens: every vector is decided alike, and a lease's sequencer is believed with the keys of its own server. */
public final class SequencerTest {
    private static Map<String, Object> vectors() throws Exception {
        return Json.object(Files.readString(Path.of("../../vectors/sequencers.json")));
    }

    private static SequencerKeys vectorKeys() throws Exception {
        return new SequencerKeys(Json.write(Json.asObject(vectors().get("jwks"))));
    }

    private static Object answer(SequencerKeys keys, Map<String, Object> one) {
        try {
            return keys.check((String) one.get("sequencer"), (String) one.get("resource"), (Boolean) one.get("writes"));
        } catch (BadSequencerException bad) {
            return bad.code();
        }
    }

    private static Object expected(Map<String, Object> one) {
        Map<String, Object> claims = Json.asObject(one.get("claims"));
        if (claims == null) {
            return one.get("verdict");
        }
        List<Integer> slots = new ArrayList<>();
        for (Object slot : claims.get("slots") instanceof List<?> listed ? listed : List.of()) {
            slots.add(((Long) slot).intValue());
        }
        Sequencer.Mode mode = Sequencer.Mode.valueOf(claims.get("mode").toString().toUpperCase());
        return new Sequencer((String) claims.get("iss"), (String) claims.get("lock"), mode, (Long) claims.get("token"),
                slots, (String) claims.get("sub"));
    }

    private static List<Object> differing() throws Exception {
        SequencerKeys keys = vectorKeys();
        List<Object> found = new ArrayList<>();
        List<?> cases = (List<?>) vectors().get("cases");
        assertTrue(cases.size() > 50);
        for (Object each : cases) {
            Map<String, Object> one = Json.asObject(each);
            if (!answer(keys, one).equals(expected(one))) {
                found.add(one.get("name"));
            }
        }
        return found;
    }

    private static void refuses(String code, String says, Executable call) {
        BadSequencerException bad = assertThrows(BadSequencerException.class, call);
        assertEquals(code, bad.code(), bad.getMessage());
        assertTrue(bad.getMessage().contains(says), bad.getMessage());
        assertEquals(PalisadeException.Kind.REJECTED, bad.kind());
    }

    private static void malformed(SequencerKeys keys, String text) {
        refuses("bad_sequencer", "the sequencer is malformed: its ", () -> keys.verify(text));
    }

    private static SequencerKeys keysOf(Servers.Running server) throws Exception {
        return new SequencerKeys(jwks(server));
    }

    private static String jwks(Servers.Running server) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(server.url() + "/.well-known/jwks.json")).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    }

    @Test
    public void everyVectorIsDecidedAlike() throws Exception {
        assertEquals(List.of(), differing());
    }

    /** The group of the curve has so many elements: a scalar and this more is the same scalar. */
    private static final BigInteger ORDER =
            BigInteger.TWO.pow(252).add(new BigInteger("27742317777372353535851937790883648493"));

    /** Another spelling of the same signature would be another sequencer of the same grant. */
    @Test
    public void aSecondFormOfASignatureIsRefused() throws Exception {
        SequencerKeys keys = vectorKeys();
        int good = 0;
        for (Object each : (List<?>) vectors().get("cases")) {
            Map<String, Object> one = Json.asObject(each);
            if (one.get("claims") == null) {
                continue;
            }
            good++;
            String text = (String) one.get("sequencer");
            String front = text.substring(0, text.lastIndexOf('.') + 1);
            byte[] signature = Base64.getUrlDecoder().decode(text.substring(front.length()));
            for (int length : new int[] {0, 32, 63, 65, 128}) {
                refuses("bad_sequencer", "signature is wrong", () -> keys.verify(front + base64(Arrays.copyOf(signature, length))));
            }
            refuses("bad_sequencer", "signature is wrong", () -> keys.verify(front + base64(withTheOrder(signature))));
            // A control: its own form.
            keys.verify(front + base64(signature));
        }
        assertTrue(good > 3);
    }

    private static String base64(byte[] bytes) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }

    /** With the order of the group added to the scalar, which has its lowest byte first. */
    private static byte[] withTheOrder(byte[] signature) {
        byte[] other = signature.clone();
        byte[] scalar = new byte[32];
        for (int at = 0; at < 32; at++) {
            scalar[at] = signature[63 - at];
        }
        byte[] sum = new BigInteger(1, scalar).add(ORDER).toByteArray();
        for (int at = 0; at < sum.length && at < 32; at++) {
            other[32 + at] = sum[sum.length - 1 - at];
        }
        return other;
    }

    /** Believes every signature. */
    public static final class Gullible extends SignatureSpi {
        @Override
        protected void engineInitVerify(PublicKey key) {}

        @Override
        protected void engineInitSign(PrivateKey key) {}

        @Override
        protected void engineUpdate(byte one) {}

        @Override
        protected void engineUpdate(byte[] all, int from, int length) {}

        @Override
        protected byte[] engineSign() {
            return new byte[0];
        }

        @Override
        protected boolean engineVerify(byte[] signature) {
            return true;
        }

        @Override
        @Deprecated
        protected void engineSetParameter(String name, Object value) {}

        @Override
        @Deprecated
        protected Object engineGetParameter(String name) {
            return null;
        }
    }

    private static final class GullibleProvider extends Provider {
        private static final long serialVersionUID = 1;

        GullibleProvider() {
            super("Gullible", "1", "believes every signature");
            put("Signature.Ed25519", Gullible.class.getName());
        }
    }

    @Test
    public void aVerifierThatBelievesEverySignatureIsFound() throws Exception {
        Security.insertProviderAt(new GullibleProvider(), 1);
        try {
            List<Object> found = differing();
            assertTrue(found.contains("forged: another payload under the signature"), found.toString());
        } finally {
            Security.removeProvider("Gullible");
        }
        assertEquals(List.of(), differing());
    }

    /** An authority that signs any input. */
    private static final class Authority {
        private final KeyPair pair = KeyPairGenerator.getInstance("Ed25519").generateKeyPair();

        Authority() throws Exception {}

        private static String part(byte[] content) {
            return Base64.getUrlEncoder().withoutPadding().encodeToString(content);
        }

        SequencerKeys keys() {
            byte[] encoded = pair.getPublic().getEncoded();
            String x = part(Arrays.copyOfRange(encoded, encoded.length - 32, encoded.length));
            return new SequencerKeys(" {\"issuer\": \"a\", \"keys\": [{\"kty\": \"EC\", \"weight\": 0.5},"
                    + " {\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"kid\": \"k\", \"x\": \"" + x + "\"}]}\n");
        }

        String signed(String payload) throws Exception {
            return signed(payload.getBytes(StandardCharsets.UTF_8));
        }

        String signed(byte[] payload) throws Exception {
            String header = "{\"alg\":\"EdDSA\",\"kid\":\"k\",\"typ\":\"palisade-sequencer\"}";
            String text = part(header.getBytes(StandardCharsets.UTF_8)) + "." + part(payload);
            Signature signature = Signature.getInstance("Ed25519");
            signature.initSign(pair.getPrivate());
            signature.update(text.getBytes(StandardCharsets.US_ASCII));
            return text + "." + part(signature.sign());
        }
    }

    private static String payload(String members) {
        return "{\"iss\":\"a\",\"lock\":\"l\",\"mode\":\"exclusive\"," + members + "}";
    }

    @Test
    public void aPayloadIsTakenAsTheOtherVerifiersTakeIt() throws Exception {
        Authority authority = new Authority();
        SequencerKeys keys = authority.keys();
        assertEquals("a", keys.issuer());
        Map<String, String> right = new LinkedHashMap<>();
        right.put("\"token\":34", null);
        right.put(" \"token\" : 34 , \"sub\" : null ", null);
        right.put("\"token\":34,\"slots\":[],\"sub\":\"\"", "");
        right.put("\"\\u0074oken\":34,\"sub\":\"ü 1.5\"", "ü 1.5");
        for (Map.Entry<String, String> one : right.entrySet()) {
            assertEquals(new Sequencer("a", "l", Sequencer.Mode.EXCLUSIVE, 34, List.of(), one.getValue()),
                    keys.verify(authority.signed(payload(one.getKey()))));
        }
        for (String members : List.of("\"token\":34,\"\\u0074oken\":34", "\"token\":34.0", "\"token\":3.4e1", "\"token\":-34",
                "\"token\":+34", "\"token\":034", "\"token\":34,\"slots\":null", "\"token\":34,\"slots\":{}",
                "\"token\":34,\"sub\":7", "\"token\":34,\"sub\":null,\"sub\":null", "\"token\":34,\"aud\":\"a\"",
                "\"token\":null", "\"token\":1e999999999", "\"\\u+074oken\":34", "")) {
            malformed(keys, authority.signed(payload(members)));
        }
        String permits = "{\"iss\":\"a\",\"lock\":\"l\",\"mode\":\"permits\",\"token\":1,\"slots\":";
        assertEquals(List.of(1, 64), keys.verify(authority.signed(permits + "[1,64]}")).slots());
        for (String slots : List.of("[4294967297]", "[-1]", "[1,1.0]", "[\"1\"]", "[[1]]", "[null]")) {
            malformed(keys, authority.signed(permits + slots + "}"));
        }
        ByteArrayOutputStream notUtf8 = new ByteArrayOutputStream();
        notUtf8.write(payload("\"token\":34,\"sub\":\"ÿ\"").getBytes(StandardCharsets.ISO_8859_1));
        malformed(keys, authority.signed(notUtf8.toByteArray()));
        malformed(keys, authority.signed(" " + payload("\"token\":34")));
        malformed(keys, authority.signed("[]"));
    }

    @Test
    public void whatIsNoSequencerIsRefused() throws Exception {
        SequencerKeys keys = vectorKeys();
        String right = (String) Json.asObject(((List<?>) vectors().get("cases")).get(0)).get("sequencer");
        keys.verify(right);
        for (String text : List.of(right.substring(0, 9) + "\n" + right.substring(9), right + "\n", right + "=", right + ".AA",
                right + ".", "ü" + right, "", "\0")) {
            refuses("bad_sequencer", "it must have three parts", () -> keys.verify(text));
        }
        String deep = Authority.part(("{\"a\":" + "[".repeat(2_995)).getBytes(StandardCharsets.UTF_8));
        malformed(keys, deep + ".e30.AAAA");
        malformed(keys, "..");
        String more = "{\"alg\":\"EdDSA\",\"kid\":\"k1\",\"typ\":\"palisade-sequencer\",\"jku\":\"a\"}";
        malformed(keys, Authority.part(more.getBytes(StandardCharsets.UTF_8)) + ".e30.AAAA");
        refuses("bad_sequencer", "longer than 4096 bytes", () -> keys.verify("a".repeat(Sequencer.MAX_BYTES + 1)));
    }

    @Test
    public void whatIsNoSetOfKeysIsRefused() throws Exception {
        String key = "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"k1\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}";
        Map<String, String> bad = new LinkedHashMap<>();
        bad.put("", "not a set");
        bad.put("[]", "not a set");
        bad.put("{\"issuer\":\"a\",\"keys\":[1]}", "not a set");
        bad.put("{\"issuer\":\"b\",\"issuer\":\"a\",\"keys\":[" + key + "]}", "not a set");
        bad.put("{\"keys\":[" + key + "]}", "issuer is null");
        bad.put("{\"issuer\":\"a\\n\",\"keys\":[" + key + "]}", "issuer");
        bad.put("{\"issuer\":\"a\",\"keys\":[]}", "no key for Ed25519");
        bad.put("{\"issuer\":\"a\",\"keys\":[" + key.replace("25519", "448") + "]}", "no key for Ed25519");
        bad.put("{\"issuer\":\"a\",\"keys\":[" + key + "," + key + "]}", "two keys are called \"k1\"");
        bad.put("{\"issuer\":\"a\",\"keys\":[" + key.replace("11qY", "") + "]}", "32 bytes");
        bad.put("{\"issuer\":\"a\",\"keys\":[" + key.replace("\"k1\"", "null") + "]}", "no kid");
        // No point of the curve has this y.
        bad.put("{\"issuer\":\"a\",\"keys\":[" + key.replaceAll("11qY[^\"]*", "Ag" + "A".repeat(41)) + "]}", "no key for Ed25519");
        bad.forEach((jwks, says) -> {
            PalisadeException invalid = assertThrows(PalisadeException.class, () -> new SequencerKeys(jwks), jwks);
            assertEquals(PalisadeException.Kind.INVALID, invalid.kind());
            assertTrue(invalid.getMessage().contains(says), invalid.getMessage());
            assertTrue(invalid.getMessage().contains("/.well-known/jwks.json"), invalid.getMessage());
        });
        assertEquals("a", new SequencerKeys("{\"issuer\":\"a\",\"keys\":[" + key + "]}").issuer());
    }

    @Test
    public void aSequencerIsBelievedWithTheKeysOfItsOwnServer() throws Exception {
        try (Servers.Running server = Servers.serve();
                Servers.Running other = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).build();
                Client elsewhere = Client.builder().endpoints(other.url()).build();
                Lease orders = client.lock("orders").acquire();
                Lease foreign = elsewhere.lock("orders").acquire()) {
            SequencerKeys keys = keysOf(server);
            Sequencer sequencer = keys.check(orders.sequencer(), "orders", true);
            assertEquals(new Sequencer(orders.authority(), "orders", Sequencer.Mode.EXCLUSIVE, orders.token(), List.of(),
                    sequencer.principal()), sequencer);
            String presented = foreign.sequencer();
            assertEquals(foreign.token(), keysOf(other).check(presented, "orders", true).token());
            refuses("bad_sequencer", "names the key", () -> keys.verify(presented));
            try (Lease invoices = client.lock("invoices").acquire()) {
                assertEquals(invoices.token(), Examples.signed(invoices, jwks(server)));
            }
        }
    }

    @Test
    public void permitsReadersAndSeveralLocksHaveSequencers() throws Exception {
        try (Servers.Running server = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).build();
                Lease permits = client.lock("gpu").permits(2, 3).acquire();
                Lease reader = client.lock("report").shared().acquire();
                Lease second = client.lock("report").shared().acquire();
                Lease both = client.locks("a", "b").acquire()) {
            SequencerKeys keys = keysOf(server);
            String slots = permits.sequencer();
            for (String resource : permits.slotKeys()) {
                assertEquals(permits.slots(), keys.check(slots, resource, true).slots());
            }
            refuses("wrong_lock", "gpu~1, gpu~2", () -> keys.check(slots, "gpu~3", true));
            refuses("wrong_lock", "this resource is a", () -> keys.check(slots, "a", true));
            for (Lease one : List.of(reader, second)) {
                String presented = one.sequencer();
                assertEquals(one.token(), keys.check(presented, "report", false).token());
                refuses("bad_sequencer", "reader", () -> keys.check(presented, "report", true));
            }
            for (String name : both.locks()) {
                assertEquals(both.token(), keys.check(both.sequencer(name), name, true).token());
            }
            for (Executable wrong : List.<Executable>of(both::sequencer, () -> both.sequencer("c"))) {
                PalisadeException invalid = assertThrows(PalisadeException.class, wrong);
                assertEquals(PalisadeException.Kind.INVALID, invalid.kind());
                assertTrue(invalid.getMessage().contains("\"a\", \"b\""), invalid.getMessage());
            }
            both.releasePart("b");
            assertEquals("b", assertThrows(LeaseLostException.class, () -> both.sequencer("b")).name());
            both.check();
        }
    }

    @Test
    public void aSequencerOfALeaseThatIsOverIsNotAskedForTwice() throws Exception {
        try (Servers.Running server = Servers.serve();
                Client client = Client.builder().endpoints(server.url()).build()) {
            Lease lease = client.lock("orders").ttl(Duration.ofMinutes(1)).acquire();
            client.breakLock("orders", lease.token(), "the test");
            LeaseLostException lost = assertThrows(LeaseLostException.class, lease::sequencer);
            assertEquals("revoked orders", lost.code() + " " + lost.name());
            assertFalse(lease.isHeld());
            assertEquals("revoked", lease.lost().get().code());
            server.process().destroy();
            server.process().waitFor();
            assertEquals("revoked", assertThrows(LeaseLostException.class, lease::sequencer).code());
        }
    }
}
