package example.palisade;

import java.time.Duration;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;

/** The client against the real server. */
public final class ServerContractTest extends ClientContract {
    private final Servers.Running server = Servers.serve();

    @Override
    Duration ttl() {
        return Duration.ofSeconds(9);
    }

    @Override
    Client connect(UnaryOperator<Client.Builder> settings) {
        return settings.apply(Client.builder()).endpoints(server.url()).build();
    }

    @Override
    boolean keepsReasons() {
        return false;
    }

    @Override
    void stop() throws Exception {
        Servers.run(List.of("kill", "-STOP", Long.toString(server.process().pid())));
    }

    @Override
    void resume() throws Exception {
        Servers.run(List.of("kill", "-CONT", Long.toString(server.process().pid())));
    }

    @AfterEach
    public void end() {
        server.close();
    }
}
