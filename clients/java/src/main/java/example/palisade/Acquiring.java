package example.palisade;

import java.util.concurrent.CompletableFuture;

/** An acquire in a thread of the client, which ends with its future. */
final class Acquiring {
    private final CompletableFuture<Lease> future = new CompletableFuture<>();
    private final LockRequest.Wish wish;
    /** The thread that waits, or null. */
    private Thread waits;

    Acquiring(Client client, LockRequest.Wish wish) {
        this.wish = wish;
        future.whenComplete((lease, error) -> giveUp());
        client.start("acquire of " + wish.name(), this::run);
    }

    CompletableFuture<Lease> lease() {
        return future;
    }

    private void run() {
        if (!begin()) {
            return;
        }
        Lease lease = null;
        Throwable failed = null;
        try {
            lease = wish.lease();
        } catch (InterruptedException gone) {
            // If nobody ended the future, the client was closed.
            failed = PalisadeException.invalid("the client is closed");
        } catch (RuntimeException | Error error) {
            failed = error;
        }
        end();
        if (failed != null) {
            future.completeExceptionally(failed);
        } else if (!future.complete(lease)) {
            lease.close();
        }
    }

    private synchronized boolean begin() {
        waits = Thread.currentThread();
        return !future.isDone();
    }

    /** From here on the end of the future interrupts nothing. */
    private synchronized void end() {
        waits = null;
        // The thread is the client's, and goes on with other work.
        Thread.interrupted();
    }

    private synchronized void giveUp() {
        if (waits != null) {
            waits.interrupt();
        }
    }
}
