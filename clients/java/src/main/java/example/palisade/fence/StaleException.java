package example.palisade.fence;

/** A newer holder has claimed the resource: give up. {@link #detail} is the highest token. */
public final class StaleException extends RejectedException {
    private static final long serialVersionUID = 1;

    StaleException(String token, String highest) {
        super("stale", highest, stale(token, highest));
    }
}
