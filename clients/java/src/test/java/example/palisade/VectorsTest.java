package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.palisade.fence.MySqlFence;
import example.palisade.fence.PostgresFence;
import example.palisade.fence.RejectedException;
import example.palisade.fence.StaleException;
import example.palisade.internal.Json;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** The decisions as data (vectors/README.md): the deadline, and the fence in the databases. */
public final class VectorsTest {
    private static final String COLUMNS = "resource, authority, %s, token, written, sequence, digest, result";

    private static List<Map<String, Object>> vectors(String file) throws Exception {
        List<Map<String, Object>> all = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of("../../vectors").resolve(file))) {
            if (line.startsWith("{")) {
                all.add(Json.object(line.replaceFirst(",$", "")));
            }
        }
        assertTrue(all.size() > 50);
        return all;
    }

    /** As from the answer to an acquire. */
    private static long deadline(Map<String, Object> vector, String validFor) throws Reply.Fault {
        long valid = Reply.duration(Reply.number(vector, validFor)).toNanos();
        return Hold.deadline((Long) vector.get("sent_ns"), valid, (Long) vector.get("margin_ms") * Clock.MILLISECOND);
    }

    @Test
    public void everyVectorHasThisDeadline() throws Exception {
        int otherwise = 0;
        for (Map<String, Object> vector : vectors("deadline.json")) {
            assertEquals(10_000L, vector.get("drift_ppm"));
            long exact = (Long) vector.get("deadline_ns");
            // A client may stop earlier by its rounding.
            long early = exact - deadline(vector, "valid_for_ms");
            assertTrue(early >= 0 && early < Clock.MILLISECOND, vector + ": " + early);
            // A client that takes the lease's length for the time that is left.
            otherwise += deadline(vector, "lease_duration_ms") > exact ? 1 : 0;
        }
        assertTrue(otherwise >= 9, "the vectors tell nothing");
    }

    @Test
    public void postgresDecidesAsTheVectorsSay() throws Exception {
        try (Connection connection = Servers.postgres()) {
            decideAll(connection, "lock", Map.of(
                    "claim", "SELECT palisade_claim(?, ?, ?, ?, ?, ?)",
                    "read", "SELECT palisade_check(?, ?, ?, ?, ?, ?)",
                    "write", "SELECT repeated FROM palisade_write(?, ?, authority => ?, lock => ?, strict => ?,"
                            + " max_jump => ?, sequence => ?, digest => ?)"), PostgresFence::rejection);
        }
    }

    @Test
    public void mariadbDecidesAsTheVectorsSay() throws Exception {
        String judge = "{CALL palisade_judge(?, ?, ?, ?, %s, NULL, NULL, ?, ?)}";
        // In the order of the other two: the numbers come last there, and before the rule here.
        String write = "EXECUTE IMMEDIATE 'CALL palisade_judge(?, ?, ?, ?, TRUE, ?, ?, ?, ?)' USING ?, ?, ?, ?, @s, @d, ?, ?";
        try (Connection connection = Servers.mariadb()) {
            decideAll(connection, "`lock`", Map.of(
                    "claim", String.format(judge, "FALSE"), "read", String.format(judge, "FALSE"), "write", write),
                    MySqlFence::rejection);
        }
    }

    private interface Rejection {
        RejectedException of(SQLException error);
    }

    private static void decideAll(Connection connection, String lock, Map<String, String> calls, Rejection rejection)
            throws Exception {
        connection.setAutoCommit(false);
        String base = "vector-" + UUID.randomUUID() + "-";
        String columns = String.format(COLUMNS, lock);
        List<String> wrong = new ArrayList<>();
        int number = 0;
        for (Map<String, Object> vector : vectors("fence.json")) {
            Map<String, Object> operation = Json.asObject(vector.get("operation"));
            Map<String, Object> record = Json.asObject(vector.get("record"));
            if (!operation.containsKey("token")) {
                // Code without a token does not call the fence here: the triggers refuse it.
                continue;
            }
            String name = base + number++;
            update(connection, "INSERT INTO palisade_fence (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row(name, record));
            Savepoint before = connection.setSavepoint();
            String verdict;
            try {
                verdict = decide(connection, calls, name, vector, operation) ? "repeat" : "admit";
            } catch (SQLException error) {
                RejectedException rejected = rejection.of(error);
                if (rejected == null) {
                    throw error;
                }
                connection.rollback(before);
                verdict = (rejected.code() + " " + rejected.detail()).strip();
                Object token = operation.get("token");
                if (rejected instanceof StaleException && !rejected.getMessage().startsWith(
                        "token " + token + " is stale: " + token + " < " + rejected.detail() + "; ")) {
                    wrong.add(vector + " → " + rejected.getMessage());
                }
            }
            Map<String, Object> next = Json.asObject(vector.getOrDefault("next", record));
            List<Object> stored = stored(connection, "SELECT " + columns + " FROM palisade_fence WHERE resource = ?", name);
            if (!verdict.equals(expected(vector)) || !stored.equals(texts(row(name, next)))) {
                wrong.add(vector + " → " + verdict + ", " + stored);
            }
        }
        connection.rollback();
        assertEquals(List.of(), wrong);
        assertTrue(number > 300, number + " cases");
    }

    private static boolean decide(
            Connection connection, Map<String, String> calls, String name, Map<String, Object> vector,
            Map<String, Object> operation) throws SQLException {
        String kind = (String) operation.get("kind");
        List<Object> arguments = new ArrayList<>(Arrays.asList(
                name, operation.get("token"), operation.get("authority"), operation.get("lock"),
                "strict".equals(vector.get("mode")), vector.get("max_jump")));
        Object sequence = operation.get("sequence");
        Object digest = digest(operation);
        String call = calls.get(kind);
        if (call.contains("@s")) {
            update(connection, "SET @s = ?, @d = ?", Arrays.asList(sequence, digest));
        } else if (kind.equals("write")) {
            arguments.add(sequence);
            arguments.add(digest);
        }
        try (PreparedStatement statement = prepared(connection, call, arguments)) {
            if (!statement.execute() || !kind.equals("write")) {
                return false;
            }
            try (ResultSet rows = statement.getResultSet()) {
                rows.next();
                return rows.getBoolean(1);
            }
        }
    }

    private static String expected(Map<String, Object> vector) {
        String verdict = (String) vector.get("verdict");
        Object told = switch (verdict) {
            case "stale", "tokenless" -> vector.get("highest");
            case "sequence_stale", "sequence_reused" -> vector.get("last");
            case "wrong_authority" -> vector.get("authority");
            case "wrong_lock" -> vector.get("lock");
            case "jump" -> vector.getOrDefault("highest", 0L) + " " + vector.get("bound");
            default -> "";
        };
        return (verdict + " " + told).strip();
    }

    private static List<Object> row(String name, Map<String, Object> record) {
        Object result = record.get("result");
        return Arrays.asList(
                name, record.get("authority"), record.get("lock"), record.get("token"), record.containsKey("written"),
                record.get("sequence"), digest(record),
                result == null ? null : result.toString().getBytes(StandardCharsets.UTF_8));
    }

    /** A digest has no sign, a BIGINT has one. */
    private static Long digest(Map<String, Object> from) {
        return from.get("digest") instanceof String text ? Long.parseUnsignedLong(text) : null;
    }

    private static List<Object> stored(Connection connection, String select, String name) throws SQLException {
        try (PreparedStatement statement = prepared(connection, select, List.of(name));
                ResultSet rows = statement.executeQuery()) {
            rows.next();
            List<Object> found = new ArrayList<>();
            for (int column = 1; column <= 8; column++) {
                found.add(switch (column) {
                    case 5 -> rows.getBoolean(column);
                    case 1, 2, 3, 8 -> rows.getBytes(column);
                    default -> rows.getObject(column) == null ? null : rows.getLong(column);
                });
            }
            return texts(found);
        }
    }

    private static List<Object> texts(List<Object> values) {
        List<Object> texts = new ArrayList<>();
        values.forEach(value -> texts.add(value instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : value));
        return texts;
    }

    private static void update(Connection connection, String sql, List<Object> arguments) throws SQLException {
        try (Statement closed = prepared(connection, sql, arguments)) {
            ((PreparedStatement) closed).executeUpdate();
        }
    }

    private static PreparedStatement prepared(Connection connection, String sql, List<Object> arguments)
            throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int at = 0; at < arguments.size(); at++) {
            statement.setObject(at + 1, arguments.get(at));
        }
        return statement;
    }
}
