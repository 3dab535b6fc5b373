package example.palisade;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;

/**
 * The leaders of an election, in order: the present one first, then each change. It may skip leaders that were soon replaced,
 * never goes back, and always ends with the latest. After a broken connection it goes on. It is for one thread; {@link #close} may
 * be called by others.
 *
 * <pre>{@code
 * try (Observer leaders = client.observe("primary")) {
 *     while (true) {
 *         leaders.next().ifPresentOrElse(leader -> connect(leader.value()), () -> disconnect());
 *     }
 * }
 * }</pre>
 */
public final class Observer implements AutoCloseable {
    private final Client client;
    private final String name;
    /** The state shown last includes all changes up to this revision. */
    private long revision;
    /** Whether a later change arrived. */
    private boolean changed = true;
    /** What was returned last; null: nothing yet. */
    private Optional<Leader> last;
    /** Null until the first answer. */
    private volatile Watch watch;
    private volatile boolean closed;

    Observer(Client client, String name) {
        this.client = client;
        this.name = name;
    }

    /**
     * The leader: at once the first time, then whenever it or its value changes. Empty: nobody leads.
     *
     * @throws PalisadeException if a server refuses it, and connecting again does not cure that
     * @throws CancellationException after {@link #close}
     */
    public Optional<Leader> next() throws InterruptedException {
        while (true) {
            if (changed) {
                Map<String, Object> shown = show();
                Optional<Leader> leader = Client.read(() -> Leader.of(shown));
                long shownAt = shown.get("revision") instanceof Long number ? number : revision;
                changed = false;
                boolean older = shownAt < revision;
                revision = Math.max(revision, shownAt);
                if (watch == null) {
                    // It begins behind what was shown, so no change falls between them.
                    watch = client.watch(name, revision);
                }
                if (!older && !leader.equals(last)) {
                    last = leader;
                    return leader;
                }
            }
            // Before the watch was there, `close` found none.
            Event event = closed ? null : watch.next();
            if (event == null) {
                throw new CancellationException("the observer was closed");
            }
            boolean missed = event.kind().equals("missed");
            if (missed && event.revision() == null) {
                // Revisions of another authority begin anew.
                revision = 0;
                changed = true;
            } else {
                changed = (missed || name.equals(event.name())) && event.revision() > revision;
            }
        }
    }

    /** Asks for as long as it takes. */
    private Map<String, Object> show() throws InterruptedException {
        while (!closed) {
            try {
                return client.shown(name);
            } catch (PalisadeException error) {
                boolean passes = error.kind() == PalisadeException.Kind.UNAVAILABLE
                        || error.kind() == PalisadeException.Kind.UNKNOWN_OUTCOME;
                if (!passes) {
                    throw error;
                }
            }
        }
        throw new CancellationException("the observer was closed");
    }

    /** Ends it: a call of {@link #next} that waits ends, too. */
    @Override
    public void close() {
        closed = true;
        Watch open = watch;
        if (open != null) {
            open.close();
        }
    }
}
