package example.palisade.shedlock;

import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.Client;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of a provider, against a real server. */
public final class PalisadeLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    private static Server server;
    private static Client client;
    private static int test;

    private PalisadeLockProvider provider;
    private String prefix;

    @BeforeAll
    public static void begin() throws Exception {
        server = new Server();
        client = Client.builder().endpoints(server.url).build();
    }

    @AfterAll
    public static void end() throws Exception {
        client.close();
        server.close();
    }

    /** Each test has names of its own: the one before may keep a lock closed. */
    @BeforeEach
    public void fresh() {
        prefix = "test-" + ++test + "/";
        provider = new PalisadeLockProvider(client, Duration.ofSeconds(15), prefix);
    }

    /** With 50 ms, as it stands there, a busy machine fails it. */
    @Override
    @Test
    public void shouldTimeout() throws InterruptedException {
        doTestTimeout(Duration.ofSeconds(1));
    }

    /** With 2 ms, as it stands there, a busy machine loses the lease before it has it. */
    @Override
    @Test
    public void shouldNotBeAbleToExtendExpiredLock() {
        SimpleLock lock = provider.lock(lockConfig(LOCK_NAME1, Duration.ofSeconds(2), Duration.ZERO)).orElseThrow();
        // Real time: the clock of lockAtMostFor.
        sleepFor(Duration.ofSeconds(2));
        assertTrue(lock.extend(Duration.ofSeconds(10), Duration.ZERO).isEmpty());
        assertUnlocked(LOCK_NAME1);
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return provider;
    }

    @Override
    protected void assertUnlocked(String name) {
        assertNull(holder(name), name);
    }

    @Override
    protected void assertLocked(String name) {
        assertNotNull(holder(name), name);
    }

    private Object holder(String name) {
        try {
            return client.show(prefix + name).holder();
        } catch (InterruptedException gone) {
            throw new IllegalStateException(gone);
        }
    }
}
