package example.palisade.testing;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** An answer of the double. Members that are null are left out. */
record Told(int status, Map<String, Object> body) {
    static Told ok(Map<String, Object> body) {
        return new Told(200, body);
    }

    static Told refused(String code, String message) {
        return refused(code, message, new LinkedHashMap<>());
    }

    /** {@code more}: what stands beside the code. */
    static Told refused(String code, String message, Map<String, Object> more) {
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("code", code);
        error.put("message", message);
        error.putAll(more);
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("error", error);
        return new Told(statusOf(code), body);
    }

    private static int statusOf(String code) {
        return switch (code) {
            case "expired", "revoked", "superseded" -> 410;
            case "stale" -> 412;
            case "unavailable" -> 503;
            case "unknown_outcome" -> 504;
            default -> List.of("held", "delayed", "not_held", "abandoned", "refused").contains(code) ? 409 : 400;
        };
    }
}
