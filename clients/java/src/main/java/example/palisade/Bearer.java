package example.palisade;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** The token that shows who a client is: a fixed one, or that of a file. No error repeats it: it is a secret. */
final class Bearer {
    /** Null: the token is fixed. */
    private final Path file;
    private volatile String token;

    /** The token that was given, or that of the file, or that of PALISADE_TOKEN. */
    Bearer(String given, Path file) {
        if (given != null && file != null) {
            throw PalisadeException.invalid("bearerToken and bearerTokenFile are both given: give one of them");
        }
        this.file = file;
        String environment = System.getenv("PALISADE_TOKEN");
        if (file != null) {
            token = read(file);
        } else if (given != null) {
            token = checked("bearerToken", given);
        } else if (environment != null) {
            token = checked("PALISADE_TOKEN", environment);
        }
    }

    boolean isSet() {
        return token != null;
    }

    /**
     * The token as it is now, or null. A file is read again: its token may be replaced before it expires. While the file
     * cannot be used, the last token stays.
     */
    String current() {
        if (file != null) {
            try {
                token = read(file);
            } catch (PalisadeException unusable) {
                return token;
            }
        }
        return token;
    }

    private static String read(Path file) {
        try {
            return checked(file.toString(), Files.readString(file, StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw PalisadeException.invalid("the file of the bearer token cannot be read: " + error);
        }
    }

    private static String checked(String name, String token) {
        if (!token.strip().matches("[!-~]+")) {
            throw PalisadeException.invalid(name + ": a bearer token is printable ASCII without spaces");
        }
        return token.strip();
    }
}
