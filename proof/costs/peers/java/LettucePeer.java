import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.UUID;

/** The usual lock over Lettuce, commanded as the drivers of the holder suite are: LettucePeer PORT. */
final class LettucePeer {
    private static final String RELEASE =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + arguments[0]);
        RedisCommands<String, String> redis = client.connect().sync();
        String release = redis.scriptLoad(RELEASE);
        SetArgs ifFree = SetArgs.Builder.nx().px(15_000);
        System.out.println(json.writeValueAsString(Map.of("event", "hello", "client", "Lettuce")));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = json.readTree(line);
            if (!asked.get("do").asText().equals("pairs")) {
                throw new IllegalArgumentException("no command " + asked.get("do"));
            }
            String lock = asked.get("lock").asText();
            long before = System.nanoTime();
            for (int pair = 0; pair < asked.get("count").asInt(); pair++) {
                String value = UUID.randomUUID().toString();
                if (!"OK".equals(redis.set(lock, value, ifFree))) {
                    throw new IllegalStateException("not free");
                }
                Long freed = redis.evalsha(release, ScriptOutputType.INTEGER, new String[] {lock}, value);
                if (freed != 1) {
                    throw new IllegalStateException("not held");
                }
            }
            double took = (System.nanoTime() - before) / 1e6;
            System.out.println(json.writeValueAsString(Map.of("id", asked.get("id"), "ok", true, "took_ms", took)));
        }
        client.shutdown();
    }
}
