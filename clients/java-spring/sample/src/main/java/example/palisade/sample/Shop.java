package example.palisade.sample;

import example.palisade.Client;
import example.palisade.shedlock.PalisadeLockProvider;
import example.palisade.spring.PalisadeDataSourcePostProcessor;
import example.palisade.spring.PalisadeLockRegistry;
import java.time.Duration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.scheduling.annotation.EnableScheduling;

/** The whole set-up. {@code spring.datasource.url} names a database with the fence, {@code palisade.url} the lock server. */
@SpringBootApplication
@EnableScheduling
@EnableSchedulerLock(defaultLockAtMostFor = "2h")
public class Shop {
    /** {@code java … example.palisade.sample.Shop --spring.datasource.url=jdbc:postgresql:…}. */
    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    @Bean
    Client palisade(@Value("${palisade.url:http://127.0.0.1:7420}") String url) {
        return Client.builder().endpoints(url).build();
    }

    @Bean
    LockProvider lockProvider(Client client, @Value("${palisade.lease:15s}") Duration lease) {
        return new PalisadeLockProvider(client, lease, "");
    }

    @Bean
    PalisadeLockRegistry lockRegistry(Client client, @Value("${palisade.lease:15s}") Duration lease) {
        return new PalisadeLockRegistry(client, lease, "");
    }

    @Bean
    static PalisadeDataSourcePostProcessor fences() {
        return new PalisadeDataSourcePostProcessor();
    }

    /** Publishes OnGrantedEvent and OnRevokedEvent. */
    @Bean
    LockRegistryLeaderInitiator leader(PalisadeLockRegistry registry) {
        return new LockRegistryLeaderInitiator(registry, new DefaultCandidate("shop", "leader"));
    }
}
