package example.palisade.spring;

import javax.sql.DataSource;
import org.springframework.beans.factory.config.BeanPostProcessor;

/**
 * Puts a {@link PalisadeDataSource} around each DataSource of a Spring application, Spring Boot's pool too:
 *
 * <pre>{@code
 * @Bean
 * static PalisadeDataSourcePostProcessor fences() {
 *     return new PalisadeDataSourcePostProcessor();
 * }
 * }</pre>
 */
public final class PalisadeDataSourcePostProcessor implements BeanPostProcessor {
    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        return bean instanceof DataSource source && !(bean instanceof PalisadeDataSource) ? new PalisadeDataSource(source) : bean;
    }
}
