package example.palisade;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** Another process that a lease is handed over to: {@code Adopter URL}, then a line with the lease, and one to release it. */
public final class Adopter {
    private Adopter() {}

    /** Prints the token, and at the end whether it was still held. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Client client = Client.builder().endpoints(arguments[0]).build(); Lease lease = client.adopt(lines.readLine())) {
            System.out.println(lease.token());
            lines.readLine();
            System.out.println(lease.isHeld() ? "held" : "lost");
        }
    }
}
