package example.palisade.fence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.internal.Json;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The decision of a fence, as vectors/fence.json tells it. */
public final class MarkTest {
    private static Mark mark(Map<String, Object> record) {
        byte[] result = record.get("result") instanceof String text ? text.getBytes(StandardCharsets.UTF_8) : null;
        return new Mark((String) record.get("authority"), (String) record.get("lock"), (Long) record.get("token"),
                Boolean.TRUE.equals(record.get("written")), (Long) record.get("sequence"), digest(record), result);
    }

    private static Long digest(Map<String, Object> from) {
        return from.get("digest") instanceof String text ? Long.parseUnsignedLong(text) : null;
    }

    private static String expected(Map<String, Object> vector) {
        String verdict = (String) vector.get("verdict");
        Object told = switch (verdict) {
            case "stale" -> vector.get("highest");
            case "sequence_stale", "sequence_reused" -> vector.get("last");
            case "wrong_authority" -> vector.get("authority");
            case "wrong_lock" -> vector.get("lock");
            case "jump" -> vector.getOrDefault("highest", 0L) + " " + vector.get("bound");
            default -> "";
        };
        return (verdict + " " + told).strip();
    }

    @Test
    public void everyVectorIsDecidedSo() throws Exception {
        List<String> wrong = new ArrayList<>();
        int cases = 0;
        for (String line : Files.readAllLines(Path.of("../../vectors/fence.json"))) {
            if (!line.startsWith("{")) {
                continue;
            }
            Map<String, Object> vector = Json.object(line.replaceFirst(",$", ""));
            Map<String, Object> operation = Json.asObject(vector.get("operation"));
            if (!(operation.get("token") instanceof Long token)) {
                // Code without a token does not call the fence.
                continue;
            }
            cases++;
            Presenter holder = Presenter.of(token, (String) operation.get("authority"), (String) operation.get("lock"));
            Mark mark = mark(Json.asObject(vector.get("record")));
            Mark.Operation wanted = operation.get("kind").equals("write")
                    ? new Mark.Operation(true, (Long) operation.get("sequence"), digest(operation)) : Mark.Operation.CLAIM;
            Long jump = (Long) vector.getOrDefault("max_jump", Mark.Rule.CLAIM.maxJump());
            String verdict;
            Mark next = mark;
            try {
                Mark.Admitted admitted =
                        mark.decide(holder, wanted, new Mark.Rule("strict".equals(vector.get("mode")), jump));
                verdict = admitted.repeat() ? "repeat" : "admit";
                next = admitted.next();
            } catch (RejectedException rejected) {
                verdict = (rejected.code() + " " + rejected.detail()).strip();
            }
            Mark stored = vector.containsKey("next") ? mark(Json.asObject(vector.get("next"))) : mark;
            if (!verdict.equals(expected(vector)) || !next.equals(stored)) {
                wrong.add(vector + " → " + verdict + ", " + next);
            }
        }
        assertEquals(List.of(), wrong);
        assertTrue(cases > 300, cases + " cases");
    }
}
