package example.palisade.spring;

import example.palisade.PalisadeException;
import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.Presenter;
import example.palisade.fence.RejectedException;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * The leases that are bound to a thread. Every transaction that the thread runs on a {@link PalisadeDataSource} claims them before its
 * first statement.
 *
 * <pre>{@code
 * try (var bound = Fenced.bind("orders", lease)) {
 *     service.bookOrders(); // JdbcTemplate, JPA, jOOQ, MyBatis
 * }
 * }</pre>
 *
 * <p>A thread that the work is handed to has none: bind there, too.
 */
public final class Fenced {
    private static final ThreadLocal<List<Bound>> BOUND = ThreadLocal.withInitial(ArrayList::new);

    private Fenced() {}

    /** Ends the binding. A transaction that has claimed stays claimed to its end. */
    public static final class Bound implements AutoCloseable {
        private final String resource;
        private final Presenter holder;

        private Bound(String resource, Presenter holder) {
            this.resource = Objects.requireNonNull(resource, "the name of a resource is needed, and not null");
            this.holder = Objects.requireNonNull(holder, "a fence needs a holder: the lease, or Presenter.of(token)");
        }

        /** Called in the thread that has bound it. */
        @Override
        public void close() {
            BOUND.get().removeIf(each -> each == this);
            if (BOUND.get().isEmpty()) {
                BOUND.remove();
            }
        }
    }

    /**
     * Binds a lease to this thread, before the first statement of a transaction. Several resources are bound one after another, and
     * claimed in the order of their names. Of two leases for the same resource the one that was bound last counts.
     */
    public static Bound bind(String resource, Presenter holder) {
        Bound bound = new Bound(resource, holder);
        BOUND.get().add(bound);
        return bound;
    }

    /**
     * The refusal in an exception's chain of causes, or null. It is a {@link example.palisade.fence.StaleException} if a newer holder has
     * claimed, and a {@link example.palisade.LeaseLostException} if the lease was known to be lost.
     */
    public static PalisadeException rejection(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof PalisadeException refused) {
                return refused;
            }
            if (each instanceof SQLException sql) {
                for (SQLException next = sql; next != null; next = next.getNextException()) {
                    RejectedException refused = PostgresFence.rejection(next);
                    refused = refused == null ? MySqlFence.rejection(next) : refused;
                    if (refused != null) {
                        return refused;
                    }
                }
            }
        }
        return null;
    }

    /** In the order of the names, so that no two transactions wait for each other. */
    static SortedMap<String, Presenter> holders() {
        SortedMap<String, Presenter> holders = new TreeMap<>();
        List<Bound> all = BOUND.get();
        if (all.isEmpty()) {
            BOUND.remove();
        }
        all.forEach(each -> holders.put(each.resource, each.holder));
        return holders;
    }
}
