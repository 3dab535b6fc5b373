package example.palisade;

import java.time.Duration;
import org.junit.jupiter.api.AfterEach;

/** The client against the real server. */
public final class ServerContractTest extends ClientContract {
    private final Servers.Running server = Servers.serve();

    @Override
    Duration ttl() {
        return Duration.ofSeconds(9);
    }

    @Override
    Client connect() {
        return Client.builder().endpoints(server.url()).build();
    }

    @AfterEach
    public void end() {
        server.close();
    }
}
