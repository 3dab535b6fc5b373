package example.palisade;

import example.palisade.testing.MemoryServer;
import java.time.Duration;
import java.util.function.UnaryOperator;

/** The client against the double, so that the double does not drift from the real server. */
public final class MemoryContractTest extends ClientContract {
    private final MemoryServer server = new MemoryServer();

    @Override
    Duration ttl() {
        return Duration.ofSeconds(3);
    }

    @Override
    Client connect(UnaryOperator<Client.Builder> settings) {
        return server.client(settings);
    }

    @Override
    boolean keepsReasons() {
        return true;
    }

    @Override
    void stop() {
        server.stall();
    }

    @Override
    void resume() {
        server.up();
    }
}
