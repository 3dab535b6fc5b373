package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.internal.Json;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** The parts without I/O. */
public final class WireTest {
    @Test
    public void jsonIsReadAndWritten() {
        Map<String, Object> found = Json.object(
                " {\"a\": [1, -2.5, 1e2, 9007199254740993, true, false, null, {}], \"b\\u0041\\n\\\"\": \"\\\\\\/\"} ");
        assertEquals(
                Arrays.asList(1L, new BigDecimal("-2.5"), 100L, 9007199254740993L, true, false, null, Map.of()),
                found.get("a"));
        assertEquals("\\/", found.get("bA\n\""));
        Map<String, Object> written = new LinkedHashMap<>();
        written.put("a", "x\"\\\n\u0001ä");
        written.put("b", 7L);
        written.put("c", null);
        assertEquals("{\"a\":\"x\\\"\\\\\\u000a\\u0001ä\",\"b\":7}", Json.write(written));
        assertEquals("x\"\\\n\u0001ä", Json.object(Json.write(written)).get("a"));
        for (String bad : List.of("", "[]", "null", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{} x", "{\"a\":\"\\u00\"}",
                "{\"a\":\"\\u+041\"}", "{\"a\":01x}", "{\"a\":\"\n\"}", "<html>", "{\"a\":" + "[".repeat(100_000))) {
            assertThrows(IllegalArgumentException.class, () -> Json.object(bad), bad);
        }
    }

    @Test
    public void theDeadlineOfTheProtocolsExample() {
        long until = Hold.deadline(100_000 * Clock.MILLISECOND, 10 * Clock.SECOND, 0);
        assertTrue(until >= 109_801 * Clock.MILLISECOND && until <= 109_802 * Clock.MILLISECOND);
        assertEquals(98, Hold.deadline(0, 100, 0) + 98 - Hold.deadline(0, 100, 0), "rounded up");
        assertTrue(Hold.deadline(0, 100, 0) <= 98);
        assertEquals(5, Hold.deadline(5, 100, 1_000));
    }

    @Test
    public void aHold() {
        AtomicInteger losses = new AtomicInteger();
        Hold.End end = lost -> losses.addAndGet(lost ? 1 : 0);
        Hold hold = new Hold(Clock.latest() + 3_600 * Clock.SECOND, end);
        long later = Clock.latest() + 7_200 * Clock.SECOND;
        hold.renewed(later);
        hold.renewed(Clock.latest() + Clock.SECOND);
        assertEquals(later, hold.deadline(), "it moved back");
        hold.end("revoked");
        hold.end("expired");
        hold.renewed(later + 1);
        assertFalse(hold.holds());
        assertEquals("revoked 0 1", hold.reason() + " " + hold.remaining() + " " + losses.get());
        Hold late = new Hold(Clock.latest(), end);
        late.renewed(Clock.latest() + 3_600 * Clock.SECOND);
        assertFalse(late.holds(), "a late renewal revived it");
        Hold given = new Hold(later, end);
        given.end(Hold.RELEASED);
        assertEquals("not_held 2", given.reason() + " " + losses.get());
    }

    @Test
    public void theClockIsThatOfTheMachine() throws Exception {
        double uptime = Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]);
        double between = Clock.latest() / 1e9 - uptime;
        assertTrue(between > 0 && between < 60, "" + between);
        for (long last = 0, turns = 0; turns < 1_000; turns++) {
            long next = Clock.earliest();
            assertTrue(next >= last && Clock.latest() > next);
            last = next;
        }
    }

    private static String does(int status, String code) {
        Reply reply = new Reply(status, Json.object("{\"error\": {\"code\": \"" + code + "\", \"message\": \"m\"}}"));
        try {
            reply.checkFault();
            return reply.error().kind().toString();
        } catch (Reply.Fault fault) {
            return fault.unknown ? "unknown" : "again";
        }
    }

    @Test
    public void theTableOfCodes() {
        Map<String, String> table = new LinkedHashMap<>();
        table.put("503 not_leader", "again");
        table.put("503 unavailable", "again");
        table.put("408 request_timeout", "again");
        table.put("504 unknown_outcome", "unknown");
        table.put("500 internal", "unknown");
        table.put("502 of_a_later_server", "unknown");
        table.put("409 held", "HELD");
        table.put("429 queue_full", "NOT_ACQUIRED");
        table.put("429 too_many_locks", "NOT_ACQUIRED");
        table.put("410 expired", "NOT_ACQUIRED");
        table.put("409 abandoned", "NOT_ACQUIRED");
        table.put("507 tokens_exhausted", "OPERATOR");
        table.put("400 invalid", "INVALID");
        table.put("418 of_a_later_server", "INVALID");
        table.forEach((row, expected) -> {
            String[] words = row.split(" ");
            assertEquals(expected, does(Integer.parseInt(words[0]), words[1]), row);
        });
        for (int status : List.of(204, 307)) {
            assertTrue(assertThrows(Reply.Fault.class, () -> Reply.read(status, "{}")).unknown);
        }
    }

    @Test
    public void aLeaderIsFollowedOnlyWhereItIsSafe() {
        Endpoints endpoints = new Endpoints(List.of("https://a:1", "https://b:1"), false);
        assertFalse(endpoints.answered("https://a:1", notLeader("http://c:1")));
        assertEquals("https://b:1", endpoints.current());
        assertTrue(endpoints.answered("https://b:1", notLeader("https://c:1")));
        assertEquals("https://c:1", endpoints.current());
        endpoints.failed("https://c:1");
        assertEquals("https://a:1", endpoints.current());
    }

    @Test
    public void aLeaderIsFollowedFiveTimesInARow() {
        Endpoints endpoints = new Endpoints(List.of("http://a:1"), false);
        int follows = 0;
        while (endpoints.answered(endpoints.current(),
                notLeader(endpoints.current().equals("http://a:1") ? "http://b:1" : "http://a:1"))) {
            follows++;
            assertTrue(follows <= 5, "without end");
        }
        assertEquals(5, follows);
    }

    @Test
    public void aLeaderWithoutTlsDoesNotGetTheToken() {
        for (boolean secret : new boolean[] {false, true}) {
            Endpoints endpoints = new Endpoints(List.of("http://127.0.0.1:1"), secret);
            assertEquals(!secret, endpoints.answered("http://127.0.0.1:1", notLeader("http://a:1")));
            assertEquals(secret ? "http://127.0.0.1:1" : "http://a:1", endpoints.current());
        }
    }

    private static Reply notLeader(String leader) {
        return new Reply(503, Json.object("{\"error\": {\"code\": \"not_leader\", \"leader\": \"" + leader + "\"}}"));
    }
}
