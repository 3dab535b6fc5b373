package example.palisade.page;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import example.palisade.Client;
import example.palisade.Lease;
import example.palisade.PalisadeException;
import example.palisade.fence.PostgresFence;
import example.palisade.shedlock.PalisadeLock;
import example.palisade.shedlock.PalisadeLockProvider;
import example.palisade.spring.Fenced;
import example.palisade.spring.PalisadeDataSourcePostProcessor;
import example.palisade.spring.PalisadeLockRegistry;
import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.DataAccessException;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionException;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;

/** The examples of docs/use/java.md: {@code Examples DATABASE}, with PALISADE_URL. The shop does not scan this package. */
public final class Examples {
    private Examples() {}

    /** Each of four adds one. */
    public static void main(String[] arguments) throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(arguments[0]);
        try (HikariDataSource pool = new HikariDataSource(config);
                AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext()) {
            context.registerBean(DataSource.class, () -> pool);
            context.register(Beans.class, Orders.class, Jobs.class, Work.class);
            context.refresh();
            jdbc(pool);
            context.getBean(Work.class).one(context.getBean(Orders.class));
            refusals(context.getBean(Orders.class));
            context.getBean(Jobs.class).nightly();
        }
    }

    private static void jdbc(DataSource dataSource) throws Exception {
        try (Client client = Client.builder().build(); Lease lease = client.lock("orders").acquire()) {
            PostgresFence.transact(dataSource, "orders", lease, connection ->
                    connection.createStatement().executeUpdate("UPDATE orders SET total = total + 1"));
        }
    }

    /** Spring's. */
    @Configuration
    @EnableTransactionManagement
    @EnableSchedulerLock(defaultLockAtMostFor = "2h")
    static class Beans {
        @Bean
        static PalisadeDataSourcePostProcessor fences() {
            return new PalisadeDataSourcePostProcessor();
        }

        @Bean
        Client client() {
            return Client.builder().build();
        }

        @Bean
        PlatformTransactionManager transactions(DataSource source) {
            return new DataSourceTransactionManager(source);
        }

        @Bean
        LockProvider lockProvider() {
            return new PalisadeLockProvider(Client.builder().build());
        }

        @Bean
        PalisadeLockRegistry lockRegistry(Client client) {
            return new PalisadeLockRegistry(client);
        }

        @Bean
        LockRegistryLeaderInitiator leader(PalisadeLockRegistry registry) {
            return new LockRegistryLeaderInitiator(registry, new DefaultCandidate("shop", "leader"));
        }
    }

    /** A bean with transactions. */
    static class Orders {
        private final JdbcTemplate template;

        Orders(DataSource source) {
            template = new JdbcTemplate(source);
        }

        @Transactional
        public void book() {
            template.update("UPDATE orders SET total = total + 1");
        }
    }

    /** A bean that has the lock. */
    static class Work {
        final Client client = Client.builder().build();

        void one(Orders orders) throws InterruptedException {
            try (Lease lease = client.lock("orders").acquire(); var bound = Fenced.bind("orders", lease)) {
                orders.book(); // @Transactional
            }
        }
    }

    private static void refusals(Orders orders) {
        try {
            orders.book();
        } catch (DataAccessException | TransactionException error) {
            PalisadeException refused = Fenced.rejection(error);
            if (refused == null) {
                throw error;
            }
            System.out.println(refused.code() + ": give up, another node goes on");
        }
    }

    /** ShedLock's. */
    static class Jobs {
        private final DataSource dataSource;

        Jobs(DataSource dataSource) {
            this.dataSource = dataSource;
        }

        @Scheduled(cron = "0 0 3 * * *")
        @SchedulerLock(name = "nightly", lockAtMostFor = "2h")
        public void nightly() throws SQLException {
            PostgresFence.transact(dataSource, "report", PalisadeLock.current(), connection -> report(connection));
        }

        private static int report(Connection connection) throws SQLException {
            return connection.createStatement().executeUpdate("UPDATE orders SET total = total + 1");
        }
    }
}
