package example.palisade;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;

/** Stays at the address that last answered, follows the leader, and goes on to the next address after a failure. */
final class Endpoints {
    private static final String DEFAULT = "http://127.0.0.1:7420";
    private static final int MAX_HOPS = 5;

    private final List<String> addresses = new ArrayList<>();
    /** A bearer token is sent, so every address must keep it from others. */
    private final boolean secret;
    private int at;
    private String leader;
    private int hops;
    /** The address that answered last, or null. */
    private String alive;

    Endpoints(List<String> given, boolean secret) {
        this.secret = secret;
        List<String> all = given;
        if (all == null) {
            String variable = System.getenv("PALISADE_URL");
            all = List.of((variable == null || variable.isEmpty() ? DEFAULT : variable).split(","));
        }
        all.forEach(address -> addresses.add(checked(address)));
        if (addresses.isEmpty()) {
            throw PalisadeException.invalid("the address of a server is needed, such as " + DEFAULT);
        }
        for (String address : addresses) {
            if (secret && !keepsSecrets(address)) {
                throw PalisadeException.invalid("a token is not sent to " + address
                        + " without TLS, because others could read it: write https://");
            }
        }
    }

    /** The same addresses, with an order of their own. */
    Endpoints again() {
        return new Endpoints(addresses, secret);
    }

    int size() {
        return addresses.size();
    }

    synchronized String current() {
        return leader != null ? leader : addresses.get(at);
    }

    /** Whether that address is the one that answered last. */
    synchronized boolean isAlive(String address) {
        return address.equals(alive);
    }

    /** Goes on to the next address, unless another call already did. */
    synchronized void failed(String address) {
        if (address.equals(alive)) {
            alive = null;
        }
        if (address.equals(leader)) {
            leader = null;
        } else if (leader == null && address.equals(addresses.get(at))) {
            at = (at + 1) % addresses.size();
        }
    }

    /** Records an answer's information about the address and the leader. True: ask the leader at once. */
    synchronized boolean answered(String address, Reply reply) {
        alive = address;
        if (reply.status() < 500 || !reply.code().equals("not_leader")) {
            hops = 0;
            if (reply.isToBeRepeated()) {
                failed(address);
            }
            return false;
        }
        failed(address);
        hops++;
        if (hops > MAX_HOPS) {
            hops = 0;
            return false;
        }
        try {
            String next = checked(reply.leader());
            if (address.startsWith("https:") && !next.startsWith("https:") || secret && !keepsSecrets(next)) {
                return false;
            }
            leader = next;
            return true;
        } catch (PalisadeException notAnAddress) {
            return false;
        }
    }

    /** Whether nobody on the way can read the requests: they use TLS, or stay on this machine. */
    private static boolean keepsSecrets(String address) {
        URI parsed = URI.create(address);
        return "https".equals(parsed.getScheme()) || parsed.getHost().matches("localhost|127(\\.\\d{1,3}){3}|\\[::1\\]");
    }

    /** Never puts the password of an address into an error. */
    static String checked(String given) {
        String address = given.strip().replaceAll("/$", "");
        URI parsed;
        try {
            parsed = URI.create(address);
        } catch (IllegalArgumentException error) {
            throw PalisadeException.invalid("an address cannot be read: http://HOST:PORT is needed");
        }
        if (parsed.getRawUserInfo() != null) {
            throw PalisadeException.invalid("an address with a password is not supported: use bearerToken");
        }
        boolean http = "http".equals(parsed.getScheme()) || "https".equals(parsed.getScheme());
        if (!http || parsed.getHost() == null || !parsed.getRawPath().isEmpty() || parsed.getRawQuery() != null
                || parsed.getRawFragment() != null) {
            throw PalisadeException.invalid("\"" + address + "\" is not the address of a server: http://HOST:PORT is needed");
        }
        return address;
    }
}
