package example.palisade.fence;

import java.util.Arrays;
import java.util.Objects;

/**
 * The decision of a fence, without I/O, for databases that cannot decide by themselves: the stored record and an operation make the
 * next record or a rejection. vectors/fence.json has the same decision as data.
 *
 * @param token the highest token, or null before the first
 * @param written whether something was written under that token
 * @param sequence the highest number of such a write, or null
 * @param digest of the write with that number, or null
 * @param result what that write answered, or null
 */
record Mark(String authority, String lock, Long token, boolean written, Long sequence, Long digest, byte[] result) {
    static final Mark NONE = new Mark(null, null, null, false, null, null, null);

    /** How far one token is believed: the most by which a restore raises the counter until 2032. */
    private static final long MAX_JUMP = 1L << 46;

    /** What a holder wants. */
    record Operation(boolean writes, Long sequence, Long digest) {
        static final Operation CLAIM = new Operation(false, null, null);
    }

    /** One rule for the whole life of a resource. {@code strict}: one write for each grant. */
    record Rule(boolean strict, Long maxJump) {
        static final Rule CLAIM = new Rule(false, MAX_JUMP);
    }

    /** {@code repeat}: the write was carried out before, and nothing changes. */
    record Admitted(Mark next, boolean repeat) {}

    Admitted decide(Presenter holder, Operation operation, Rule rule) {
        // Tokens of another authority or lock are no numbers to compare.
        if (authority != null && !authority.equals(holder.authority())) {
            throw new RejectedException("wrong_authority", authority);
        }
        if (lock != null && !lock.equals(holder.name())) {
            throw new RejectedException("wrong_lock", lock);
        }
        long highest = token == null ? 0 : token;
        if (holder.token() < highest) {
            throw new StaleException(Long.toString(holder.token()), Long.toString(highest));
        }
        if (holder.token() == highest) {
            if (operation.writes() && written && isRepeat(operation, rule)) {
                return new Admitted(this, true);
            }
            return new Admitted(of(holder, written, sequence, digest, result).after(operation), false);
        }
        if (rule.maxJump() != null && holder.token() - highest > rule.maxJump()) {
            throw new RejectedException("jump", highest + " " + rule.maxJump());
        }
        return new Admitted(of(holder, false, null, null, null).after(operation), false);
    }

    /** The same holder writes again: only its own earlier writes count. */
    private boolean isRepeat(Operation operation, Rule rule) {
        Long number = operation.sequence();
        if (number != null && number.equals(sequence)) {
            if (!Objects.equals(operation.digest(), digest)) {
                throw new RejectedException("sequence_reused", sequence.toString());
            }
            return true;
        }
        if (rule.strict()) {
            throw new RejectedException("already_written", "");
        }
        if (number != null && sequence != null && number < sequence) {
            throw new RejectedException("sequence_stale", sequence.toString());
        }
        return false;
    }

    /** Bound to the holder's authority and lock, if it is to none yet. */
    private Mark of(Presenter holder, boolean wrote, Long number, Long sum, byte[] answer) {
        return new Mark(authority == null ? holder.authority() : authority, lock == null ? holder.name() : lock,
                holder.token(), wrote, number, sum, answer);
    }

    private Mark after(Operation operation) {
        if (!operation.writes()) {
            return this;
        }
        boolean numbered = operation.sequence() != null;
        return new Mark(authority, lock, token, true, numbered ? operation.sequence() : sequence,
                numbered ? operation.digest() : digest, numbered ? null : result);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Mark mark && Objects.equals(authority, mark.authority) && Objects.equals(lock, mark.lock)
                && Objects.equals(token, mark.token) && written == mark.written && Objects.equals(sequence, mark.sequence)
                && Objects.equals(digest, mark.digest) && Arrays.equals(result, mark.result);
    }

    @Override
    public int hashCode() {
        return Objects.hash(authority, lock, token, written, sequence, digest);
    }
}
