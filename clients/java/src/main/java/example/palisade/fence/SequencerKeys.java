package example.palisade.fence;

import example.palisade.PalisadeException;
import example.palisade.internal.Json;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.Signature;
import java.security.SignatureException;
import java.security.spec.X509EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The public keys of one authority: checks fencing tokens that it has signed, for a resource of your own, without asking
 * anybody.
 *
 * <pre>{@code
 * SequencerKeys keys = new SequencerKeys(jwks);  // the text of the authority's /.well-known/jwks.json
 * Sequencer sequencer = keys.check(presented, "orders", true);
 * }</pre>
 *
 * <p>A holder gets the text from {@link example.palisade.Lease#sequencer()}. It does not expire: the fence still compares its
 * token with the highest one, and no bound of a jump applies to it. When the authority's keys change, make new ones. They can
 * be used by several threads.
 */
public final class SequencerKeys {
    /** The prefix of a key's 32 bytes in its X.509 form (RFC 8410). */
    private static final byte[] X509 = HexFormat.of().parseHex("302a300506032b6570032100");
    private static final int SIGNATURE_BYTES = 64;
    private static final Set<String> HEADER = Set.of("alg", "kid", "typ");
    private static final Set<String> CLAIMS = Set.of("iss", "lock", "mode", "token", "slots", "sub");
    private static final Map<String, Sequencer.Mode> MODES = Map.of(
            "exclusive", Sequencer.Mode.EXCLUSIVE, "shared", Sequencer.Mode.SHARED, "permits", Sequencer.Mode.PERMITS);

    private final String issuer;
    private final Map<String, PublicKey> keys = new HashMap<>();

    /**
     * Reads the text of the authority's {@code /.well-known/jwks.json}. Keys of other kinds than Ed25519 are left out.
     *
     * @throws PalisadeException of kind {@code INVALID} for what is not such a set
     */
    public SequencerKeys(String jwks) {
        Map<String, Object> set;
        try {
            set = Json.strictObject(jwks);
        } catch (IllegalArgumentException notJson) {
            set = Map.of();
        }
        if (!(set.get("keys") instanceof List<?> listed)) {
            throw badKeys("this is not a set of keys");
        }
        if (!isName(set.get("issuer"))) {
            throw badKeys("issuer is " + set.get("issuer") + ", which is not the name of an authority");
        }
        issuer = (String) set.get("issuer");
        for (Object each : listed) {
            add(Json.asObject(each));
        }
        if (keys.isEmpty()) {
            throw badKeys("it has no key for Ed25519");
        }
    }

    private void add(Map<String, Object> key) {
        if (key == null) {
            throw badKeys("this is not a set of keys");
        }
        if (!"OKP".equals(key.get("kty")) || !"Ed25519".equals(key.get("crv"))) {
            return;
        }
        if (!(key.get("kid") instanceof String kid)) {
            throw badKeys("a key has no kid");
        }
        byte[] x = key.get("x") instanceof String text ? decoded(text) : null;
        if (x == null || x.length != 32) {
            throw badKeys("x of the key \"" + kid + "\" is not 32 bytes");
        }
        try {
            byte[] encoded = ByteBuffer.allocate(X509.length + x.length).put(X509).put(x).array();
            PublicKey found = KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(encoded));
            verifier(found);
            if (keys.put(kid, found) != null) {
                throw badKeys("two keys are called \"" + kid + "\"");
            }
        } catch (GeneralSecurityException noKey) {
            throw badKeys("x of the key \"" + kid + "\" is no key for Ed25519: " + noKey.getMessage());
        }
    }

    /** The authority whose keys these are. */
    public String issuer() {
        return issuer;
    }

    /**
     * Checks a sequencer that was presented at a resource: that the authority issued it, that it is for this resource, and
     * that a reader does not write.
     *
     * @param writes whether the request writes
     * @throws BadSequencerException if it is not believed
     */
    public Sequencer check(String presented, String resource, boolean writes) {
        Sequencer sequencer = verify(presented);
        sequencer.checkCovers(resource);
        if (writes && sequencer.mode() == Sequencer.Mode.SHARED) {
            throw BadSequencerException.bad("the sequencer is a reader's (mode shared), and this request writes");
        }
        return sequencer;
    }

    /**
     * Checks that the authority issued it, and returns its content. {@link Sequencer#checkCovers} checks that it is for the
     * resource at hand.
     *
     * @throws BadSequencerException if it is not believed
     */
    public Sequencer verify(String presented) {
        if (presented.length() > Sequencer.MAX_BYTES) {
            throw BadSequencerException.malformed("it is longer than " + Sequencer.MAX_BYTES + " bytes");
        }
        List<byte[]> parts = new ArrayList<>();
        for (String part : presented.split("\\.", -1)) {
            parts.add(decoded(part));
        }
        if (parts.size() != 3 || parts.contains(null)) {
            throw BadSequencerException.malformed("it must have three parts in base64url, with dots between them");
        }
        String signed = presented.substring(0, presented.lastIndexOf('.'));
        if (!isSigned(named(parts.get(0)), signed, parts.get(2))) {
            throw BadSequencerException.bad("the sequencer's signature is wrong: the authority did not issue it");
        }
        return read(parts.get(1));
    }

    private static boolean isSigned(PublicKey key, String text, byte[] signature) {
        // Java 17 ignores any bytes after them, which would be a second form of the same signature.
        if (signature.length != SIGNATURE_BYTES) {
            return false;
        }
        try {
            Signature verifier = verifier(key);
            verifier.update(text.getBytes(StandardCharsets.US_ASCII));
            return verifier.verify(signature);
        } catch (SignatureException malformed) {
            // With a scalar that is not reduced.
            return false;
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("this Java cannot check a signature by Ed25519", error);
        }
    }

    /** The algorithm is that of the key, and never taken from the sequencer. */
    private static Signature verifier(PublicKey key) throws GeneralSecurityException {
        Signature verifier = Signature.getInstance("Ed25519");
        verifier.initVerify(key);
        return verifier;
    }

    /** The key that a header names. */
    private PublicKey named(byte[] content) {
        Map<String, Object> header = object(content);
        if (!header.keySet().equals(HEADER) || !header.values().stream().allMatch(String.class::isInstance)) {
            throw BadSequencerException.malformed("its header must have alg, kid and typ, once each");
        }
        // "none" is an algorithm, too.
        if (!header.get("alg").equals("EdDSA")) {
            throw BadSequencerException.bad(
                    "the sequencer's algorithm is \"" + start(header.get("alg")) + "\": only EdDSA is accepted");
        }
        if (!header.get("typ").equals("palisade-sequencer")) {
            throw BadSequencerException.malformed("its typ is not palisade-sequencer");
        }
        PublicKey key = keys.get(header.get("kid"));
        if (key == null) {
            throw BadSequencerException.bad("the sequencer names the key \"" + start(header.get("kid"))
                    + "\", which is not known here: get the authority's /.well-known/jwks.json again");
        }
        return key;
    }

    /** Reads the payload, whose signature was verified. */
    private Sequencer read(byte[] content) {
        Map<String, Object> claims = object(content);
        Sequencer.Mode mode = claims.get("mode") instanceof String text ? MODES.get(text) : null;
        Object principal = claims.get("sub");
        if (!CLAIMS.containsAll(claims.keySet())
                || !(claims.get("iss") instanceof String named)
                || mode == null
                || !(claims.getOrDefault("slots", List.of()) instanceof List<?> listed)
                || !(principal == null || principal instanceof String)) {
            throw BadSequencerException.malformed("its payload is not that of a sequencer");
        }
        if (!named.equals(issuer)) {
            throw new BadSequencerException("wrong_authority",
                    "authority " + start(named) + " issued the sequencer, and the keys here belong to " + issuer);
        }
        List<Integer> slots = new ArrayList<>();
        long before = 0;
        for (Object each : listed) {
            // 0 is never a slot.
            long slot = each instanceof Long number && number > before && number <= Integer.MAX_VALUE ? number : 0;
            slots.add((int) slot);
            before = slot;
        }
        if (slots.contains(0) || slots.isEmpty() == (mode == Sequencer.Mode.PERMITS)) {
            throw BadSequencerException.malformed("its slots do not fit its mode");
        }
        if (!isName(claims.get("lock"))) {
            throw BadSequencerException.malformed("its lock is not a name");
        }
        if (!(claims.get("token") instanceof Long token) || token < 1 || token > Presenter.MAX_TOKEN) {
            throw BadSequencerException.malformed("its token is out of range");
        }
        return new Sequencer(issuer, (String) claims.get("lock"), mode, token, List.copyOf(slots), (String) principal);
    }

    /** Base64url in its one spelling: without padding, and with no bits after the last byte; else null. */
    private static byte[] decoded(String part) {
        try {
            byte[] found = Base64.getUrlDecoder().decode(part);
            return Base64.getUrlEncoder().withoutPadding().encodeToString(found).equals(part) ? found : null;
        } catch (IllegalArgumentException otherLetters) {
            return null;
        }
    }

    /** A JSON object in UTF-8; empty for everything else. */
    private static Map<String, Object> object(byte[] content) {
        try {
            String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
            return text.startsWith("{") ? Json.strictObject(text) : Map.of();
        } catch (CharacterCodingException | IllegalArgumentException notJson) {
            return Map.of();
        }
    }

    private static boolean isName(Object value) {
        return value instanceof String name && name.matches("[ -~]{1,255}");
    }

    /** The start of a caller's text, for a message. */
    private static String start(Object text) {
        String whole = text.toString();
        return whole.substring(0, Math.min(64, whole.length()));
    }

    private static PalisadeException badKeys(String why) {
        return new PalisadeException(PalisadeException.Kind.INVALID, "invalid",
                why + "; it should be what the authority has at /.well-known/jwks.json");
    }
}
