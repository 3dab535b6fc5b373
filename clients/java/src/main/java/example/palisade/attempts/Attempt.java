package example.palisade.attempts;

import example.palisade.fence.Presenter;
import java.util.Map;

/**
 * One attempt at a job. Its number is a fencing token under the authority of its table, so every fence takes it as a holder: claim
 * {@link #resource}. The fence is then bound to this job, because attempts at two jobs cannot be compared.
 */
public final class Attempt implements Presenter {
    private final Object jobId;
    private final long number;
    private final Map<String, Object> row;
    private final String worker;
    private final String authority;
    /** It was finished, or has failed, in the transaction that is open. */
    boolean ended;

    Attempt(Object jobId, long number, Map<String, Object> row, String worker, String authority) {
        this.jobId = jobId;
        this.number = number;
        this.row = row;
        this.worker = worker;
        this.authority = authority;
    }

    /** The job's id, as the driver gives it. */
    public Object jobId() {
        return jobId;
    }

    /** The number of this attempt at the job, from 1. */
    public long attempt() {
        return number;
    }

    /** All columns of the job when it was taken, as the driver gives them. */
    public Map<String, Object> row() {
        return row;
    }

    /** Names the process that took it, for people. */
    public String worker() {
        return worker;
    }

    /** The resource that its fences guard. */
    public String resource() {
        return "job:" + jobId;
    }

    /** The number of this attempt. */
    @Override
    public long token() {
        return number;
    }

    @Override
    public String authority() {
        return authority;
    }

    /** As {@link #resource}: the fence is bound to this job. */
    @Override
    public String name() {
        return resource();
    }

    @Override
    public String toString() {
        return "attempt " + number + " of " + resource() + " (" + authority + ")";
    }
}
