package example.palisade.spring;

import jakarta.persistence.Entity;
import jakarta.persistence.EntityManager;
import jakarta.persistence.EntityManagerFactory;
import jakarta.persistence.Id;
import java.util.Map;
import java.util.Properties;
import javax.sql.DataSource;
import org.apache.ibatis.annotations.Select;
import org.apache.ibatis.annotations.Update;
import org.apache.ibatis.mapping.Environment;
import org.apache.ibatis.session.Configuration;
import org.apache.ibatis.session.SqlSessionFactoryBuilder;
import org.jooq.DSLContext;
import org.jooq.SQLDialect;
import org.jooq.impl.DSL;
import org.mybatis.spring.SqlSessionTemplate;
import org.mybatis.spring.transaction.SpringManagedTransactionFactory;
import org.springframework.dao.support.DataAccessUtils;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.TransactionAwareDataSourceProxy;
import org.springframework.orm.jpa.JpaTransactionManager;
import org.springframework.orm.jpa.LocalContainerEntityManagerFactoryBean;
import org.springframework.orm.jpa.SharedEntityManagerCreator;
import org.springframework.orm.jpa.vendor.HibernateJpaVendorAdapter;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Reads a number and writes it, by one of the frameworks on a DataSource. */
interface Orders {
    int total();

    void setTotal(int total);

    /** In a transaction. */
    TransactionTemplate transactions();

    /** Its fault, as Spring passes it on from a bean with {@code @Repository}. */
    default RuntimeException translated(RuntimeException error) {
        return error;
    }

    /** Reads and writes in one transaction. */
    default void add(int more) {
        transactions().executeWithoutResult(status -> setTotal(total() + more));
    }

    interface Factory {
        Orders on(DataSource source);
    }

    Map<String, Factory> ALL = Map.of("JdbcTemplate", Orders::jdbc, "JPA", Jpa::new, "jOOQ", Orders::jooq, "MyBatis", Orders::mybatis);

    static Orders jdbc(DataSource source) {
        JdbcTemplate template = new JdbcTemplate(source);
        return new Plain(template.getDataSource()) {
            @Override
            public int total() {
                return template.queryForObject("SELECT total FROM orders", Integer.class);
            }

            @Override
            public void setTotal(int total) {
                template.update("UPDATE orders SET total = ?", total);
            }
        };
    }

    static Orders jooq(DataSource source) {
        DSLContext dsl = DSL.using(new TransactionAwareDataSourceProxy(source), SQLDialect.POSTGRES);
        return new Plain(source) {
            @Override
            public int total() {
                return dsl.select(DSL.field("total", Integer.class)).from("orders").fetchSingle().value1();
            }

            @Override
            public void setTotal(int total) {
                dsl.update(DSL.table("orders")).set(DSL.field("total", Integer.class), total).execute();
            }
        };
    }

    interface Mapper {
        @Select("SELECT total FROM orders")
        int total();

        @Update("UPDATE orders SET total = #{total}")
        void setTotal(int total);
    }

    static Orders mybatis(DataSource source) {
        Configuration configuration = new Configuration(new Environment("test", new SpringManagedTransactionFactory(), source));
        configuration.addMapper(Mapper.class);
        Mapper mapper = new SqlSessionTemplate(new SqlSessionFactoryBuilder().build(configuration)).getMapper(Mapper.class);
        return new Plain(source) {
            @Override
            public int total() {
                return mapper.total();
            }

            @Override
            public void setTotal(int total) {
                mapper.setTotal(total);
            }
        };
    }

    abstract class Plain implements Orders {
        final PlatformTransactionManager manager;

        Plain(DataSource source) {
            manager = new DataSourceTransactionManager(source);
        }

        @Override
        public TransactionTemplate transactions() {
            return new TransactionTemplate(manager);
        }
    }

    @Entity(name = "orders")
    class Order {
        @Id
        int id;
        int total;
    }

    /** Hibernate. */
    class Jpa implements Orders {
        private final LocalContainerEntityManagerFactoryBean factory = new LocalContainerEntityManagerFactoryBean();
        private final PlatformTransactionManager manager;
        private final EntityManager entities;

        Jpa(DataSource source) {
            factory.setDataSource(source);
            factory.setJpaVendorAdapter(new HibernateJpaVendorAdapter());
            factory.setManagedTypes(org.springframework.orm.jpa.persistenceunit.PersistenceManagedTypes.of(Order.class.getName()));
            Properties properties = new Properties();
            properties.put("hibernate.hbm2ddl.auto", "none");
            factory.setJpaProperties(properties);
            factory.afterPropertiesSet();
            EntityManagerFactory made = factory.getObject();
            manager = new JpaTransactionManager(made);
            entities = SharedEntityManagerCreator.createSharedEntityManager(made);
        }

        @Override
        public int total() {
            return entities.find(Order.class, 1).total;
        }

        @Override
        public void setTotal(int total) {
            entities.find(Order.class, 1).total = total;
        }

        @Override
        public TransactionTemplate transactions() {
            return new TransactionTemplate(manager);
        }

        @Override
        public RuntimeException translated(RuntimeException error) {
            return DataAccessUtils.translateIfNecessary(error, factory);
        }
    }
}
