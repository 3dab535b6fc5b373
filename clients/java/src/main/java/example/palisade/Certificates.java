package example.palisade;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyManagementException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.SecureRandom;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLContextSpi;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocketFactory;
import javax.net.ssl.SSLSessionContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/**
 * The certificates of a client, its own and those that it trusts, as its files are when a connection is made. A certificate may
 * live for an hour and the client for weeks. Files that cannot be used, because one of two is being replaced, leave the old
 * ones in force.
 */
final class Certificates extends SSLContextSpi {
    private static final Pattern KEY =
            Pattern.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END PRIVATE KEY-----");
    private static final char[] NO_PASSWORD = {};
    private static final Map<String, String> SIGNATURES =
            Map.of("RSA", "SHA256withRSA", "EC", "SHA256withECDSA", "EdDSA", "EdDSA");

    private final Path ca;
    private final Path certificate;
    private final Path key;
    private byte[][] contents;
    private SSLContext context;
    private X509Certificate own;

    private Certificates(Path ca, Path certificate, Path key) {
        this.ca = ca;
        this.certificate = certificate;
        this.key = key;
    }

    /** A context that looks at the files for each connection; null stands for a file that is not there. */
    static SSLContext of(Path ca, Path certificate, Path key) {
        if ((certificate == null) != (key == null)) {
            throw PalisadeException.invalid("tlsFiles: a certificate and its key are needed, both or none");
        }
        Certificates files = new Certificates(ca, certificate, key);
        try {
            files.look();
        } catch (IOException | GeneralSecurityException | IllegalArgumentException error) {
            throw PalisadeException.invalid("tlsFiles: " + error);
        }
        return new Following(files);
    }

    private static final class Following extends SSLContext {
        private final Certificates files;

        Following(Certificates files) {
            super(files, files.context.getProvider(), files.context.getProtocol());
            this.files = files;
        }
    }

    /**
     * Words for an error if the client's certificate has ended by the clock here: a server ends the connection then, and often
     * nothing comes through of its reason.
     */
    static String ended(SSLContext context) {
        return context instanceof Following following ? following.files.ended() : "";
    }

    private synchronized String ended() {
        if (own == null || own.getNotAfter().after(new Date())) {
            return "";
        }
        return ". Perhaps because the client's certificate " + certificate + " has expired (" + own.getNotAfter().toInstant()
                + "): put a new one in its place";
    }

    private synchronized SSLContext current() {
        try {
            look();
        } catch (IOException | GeneralSecurityException | IllegalArgumentException beingReplaced) {
            // The old ones stay, and the next connection looks again.
        }
        return context;
    }

    private void look() throws IOException, GeneralSecurityException {
        byte[][] found = {read(ca), read(certificate), read(key)};
        if (context != null && Arrays.deepEquals(found, contents)) {
            return;
        }
        TrustManager[] trusted = null;
        if (ca != null) {
            KeyStore authorities = emptyStore();
            for (Certificate one : certificates(ca, found[0])) {
                authorities.setCertificateEntry("ca-" + authorities.size(), one);
            }
            TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            factory.init(authorities);
            trusted = factory.getTrustManagers();
        }
        KeyManager[] own = null;
        X509Certificate shown = null;
        if (certificate != null) {
            Certificate[] chain = certificates(certificate, found[1]).toArray(Certificate[]::new);
            shown = (X509Certificate) chain[0];
            PrivateKey secret = key(key, found[2]);
            checkPair(chain[0].getPublicKey(), secret);
            KeyStore keys = emptyStore();
            keys.setKeyEntry("own", secret, NO_PASSWORD, chain);
            KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            factory.init(keys, NO_PASSWORD);
            own = factory.getKeyManagers();
        }
        SSLContext made = SSLContext.getInstance("TLS");
        made.init(own, trusted, null);
        contents = found;
        context = made;
        this.own = shown;
    }

    private static byte[] read(Path file) throws IOException {
        return file == null ? new byte[0] : Files.readAllBytes(file);
    }

    private static KeyStore emptyStore() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(Path file, byte[] pem) throws GeneralSecurityException {
        Collection<? extends Certificate> found =
                CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
        if (found.isEmpty()) {
            throw new IllegalArgumentException(file + " has no certificate in PEM in it");
        }
        return found;
    }

    /** No message has any of the key in it. */
    private static PrivateKey key(Path file, byte[] pem) throws GeneralSecurityException {
        Matcher text = KEY.matcher(new String(pem, StandardCharsets.ISO_8859_1));
        if (!text.find()) {
            throw new IllegalArgumentException(file + " has no key in PKCS #8, -----BEGIN PRIVATE KEY-----, without a passphrase"
                    + " in it (openssl pkcs8 -topk8 -nodes -in OLD -out NEW makes one)");
        }
        PKCS8EncodedKeySpec coded = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(text.group(1)));
        for (String kind : List.of("EC", "RSA", "EdDSA")) {
            try {
                return KeyFactory.getInstance(kind).generatePrivate(coded);
            } catch (InvalidKeySpecException another) {
                // It is of another kind.
            }
        }
        throw new IllegalArgumentException(file + " has a key of another kind than EC, RSA and Ed25519 in it");
    }

    /** While one of two files is being replaced, they do not belong together. A KeyStore would take them. */
    private void checkPair(PublicKey shown, PrivateKey secret) throws GeneralSecurityException {
        boolean fits = shown.getAlgorithm().equals(secret.getAlgorithm());
        if (fits) {
            byte[] sample = new byte[32];
            new SecureRandom().nextBytes(sample);
            Signature signature = Signature.getInstance(SIGNATURES.getOrDefault(shown.getAlgorithm(), shown.getAlgorithm()));
            signature.initSign(secret);
            signature.update(sample);
            byte[] signed = signature.sign();
            signature.initVerify(shown);
            signature.update(sample);
            fits = signature.verify(signed);
        }
        if (!fits) {
            throw new IllegalArgumentException(certificate + " and " + key + " do not belong together");
        }
    }

    @Override
    protected SSLEngine engineCreateSSLEngine(String host, int port) {
        return current().createSSLEngine(host, port);
    }

    @Override
    protected SSLEngine engineCreateSSLEngine() {
        return current().createSSLEngine();
    }

    @Override
    protected SSLSocketFactory engineGetSocketFactory() {
        return current().getSocketFactory();
    }

    @Override
    protected SSLParameters engineGetDefaultSSLParameters() {
        return current().getDefaultSSLParameters();
    }

    @Override
    protected SSLParameters engineGetSupportedSSLParameters() {
        return current().getSupportedSSLParameters();
    }

    @Override
    protected SSLSessionContext engineGetClientSessionContext() {
        return current().getClientSessionContext();
    }

    @Override
    protected SSLSessionContext engineGetServerSessionContext() {
        return current().getServerSessionContext();
    }

    @Override
    protected SSLServerSocketFactory engineGetServerSocketFactory() {
        return current().getServerSocketFactory();
    }

    @Override
    protected void engineInit(KeyManager[] own, TrustManager[] trusted, SecureRandom random) throws KeyManagementException {
        throw new KeyManagementException("it is made of files");
    }
}
