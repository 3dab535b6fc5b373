package example.palisade.fence;

/** A newer holder has claimed the resource: give up. {@link #detail} is the highest token. */
public final class StaleException extends RejectedException {
    private static final long serialVersionUID = 1;

    StaleException(String token, String highest) {
        super("stale", highest, stale(token, highest));
    }

    /** Tells the holder. Some drivers do not say which token is the highest. */
    void tell(Presenter holder, String resource, String operation) {
        if (detail().matches("[0-9]{1,16}")) {
            holder.refused(resource, operation, Long.parseLong(detail()));
        }
    }
}
