package example.palisade;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** Another process that a lease is handed over to: {@code Adopter URL}, then a line with the lease. */
public final class Adopter {
    private Adopter() {}

    /** Prints "ready", then the token, then "renewed"; and releases at the next line. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        String text = lines.readLine();
        try (Client client = Client.builder().endpoints(arguments[0]).build(); Lease lease = client.adopt(text)) {
            System.out.println(lease.token());
            ClientContract.awaitRenewal(lease);
            System.out.println("renewed");
            lines.readLine();
        }
    }
}
