package example.palisade.sample;

import example.palisade.spring.PalisadeLockRegistry;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.beans.factory.support.BeanDefinitionRegistry;
import org.springframework.boot.SpringApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.event.EventListener;
import org.springframework.integration.leader.event.OnGrantedEvent;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/**
 * A node of the shop that tells what it does, one line each. Its first job adds {@code --node.adds}, and waits for a line in the middle
 * ({@code --node.waits=read}) or before its commit ({@code commit}). With {@code --node.bare=true} it has no fence.
 */
public final class Node {
    private Node() {}

    /** The shop with what the test sees of it. */
    public static void main(String[] arguments) {
        SpringApplication shop = new SpringApplication(Shop.class, Seen.class);
        shop.addInitializers(context -> {
            if (context.getEnvironment().getProperty("node.bare", Boolean.class, false)) {
                context.addBeanFactoryPostProcessor(factory -> ((BeanDefinitionRegistry) factory).removeBeanDefinition("fences"));
            }
        });
        shop.run(arguments);
    }

    /** Its lines. */
    @Configuration
    public static class Seen {
        private final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        private final AtomicBoolean first = new AtomicBoolean(true);

        private void await() {
            try {
                lines.readLine();
            } catch (IOException broken) {
                throw new UncheckedIOException(broken);
            }
        }

        @Bean
        Report report(@Value("${node.adds}") int adds, @Value("${node.waits:}") String waits) {
            return total -> {
                if (!first.getAndSet(false)) {
                    return total;
                }
                TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                    @Override
                    public void beforeCommit(boolean readOnly) {
                        if (waits.equals("commit")) {
                            System.out.println("waits");
                            Seen.this.await();
                        }
                    }

                    @Override
                    public void afterCommit() {
                        System.out.println("written");
                    }
                });
                if (waits.equals("read")) {
                    System.out.println("waits");
                    await();
                }
                return total + adds;
            };
        }

        @Bean
        ThreadPoolTaskScheduler taskScheduler() {
            ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
            scheduler.setErrorHandler(error -> {
                if (first.get()) {
                    // The test does not wait for it.
                    error.printStackTrace();
                } else {
                    System.out.println("failed " + error.getClass().getName());
                }
            });
            return scheduler;
        }

        @EventListener
        void granted(OnGrantedEvent event) {
            System.out.println("leads");
        }
    }
}
