package example.palisade.fence;

import example.palisade.PalisadeException;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The fence refuses the operation, and nothing changed: roll back, and write nothing more. */
public class RejectedException extends PalisadeException {
    private static final long serialVersionUID = 1;
    private static final Map<String, String> SAYS = Map.of(
            "stale", "a newer holder has claimed this resource: give up, and write nothing more",
            "wrong_authority", "the resource belongs to another authority: tokens of two authorities are never compared",
            "wrong_lock", "the resource belongs to another lock",
            "jump", "the token is too far above the highest that this resource has seen",
            "sequence_stale", "a later write of this grant was already carried out: this is a late duplicate",
            "sequence_reused", "this sequence number was used for another write of this grant",
            "already_written", "there was already a write under this token",
            "tokenless", "the resource is fenced, and this write has no fencing token",
            "missing", "there is nothing to change");

    private static final Pattern STALE = Pattern.compile("token (\\d+) is stale: ");

    private final String detail;

    RejectedException(String code, String detail) {
        this(code, detail, SAYS.get(code) + (detail.isEmpty() ? "" : " (" + detail + ")"));
    }

    RejectedException(String code, String detail, String message) {
        super(Kind.REJECTED, code, message);
        this.detail = detail;
    }

    /** The message for a stale token; {@code token} is "" if the server did not report it. */
    static String stale(String token, String highest) {
        String both = token.isEmpty() ? "" : "token " + token + " is stale: " + token + " < " + highest + "; ";
        return both + SAYS.get("stale");
    }

    /**
     * The detail beside the fence's code: the highest token, the last sequence number, or the name of the owner; or "".
     */
    public String detail() {
        return detail;
    }

    static boolean isCode(String code) {
        return SAYS.containsKey(code);
    }

    /** {@code said} are a server's words, in which a stale token is named. */
    static RejectedException of(String code, String detail, String said) {
        if (!code.equals("stale")) {
            return new RejectedException(code, detail);
        }
        Matcher token = STALE.matcher(said);
        return new StaleException(token.find() ? token.group(1) : "", detail);
    }
}
