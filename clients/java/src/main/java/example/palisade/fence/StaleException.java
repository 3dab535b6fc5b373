package example.palisade.fence;

/** A newer holder has claimed the resource: give up. {@link #detail} is the highest token. */
public final class StaleException extends RejectedException {
    private static final long serialVersionUID = 1;
    private static final String NAMED = "stale: token ";

    StaleException(String token, String highest) {
        super("stale", highest, stale(token, highest));
    }

    /** Without the code in front where the message names the token: it then says itself that the token is stale. */
    @Override
    public String getMessage() {
        String said = super.getMessage();
        return said.startsWith(NAMED) ? said.substring(NAMED.indexOf("token ")) : said;
    }

    /** Tells the holder. Some drivers do not say which token is the highest. */
    void tell(Presenter holder, String resource, String operation) {
        if (detail().matches("[0-9]{1,16}")) {
            holder.refused(resource, operation, Long.parseLong(detail()));
        }
    }
}
