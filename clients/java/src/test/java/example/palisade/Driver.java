package example.palisade;

import example.palisade.internal.Json;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Carries out the commands of the holder suite (clients/holder-suite/README.md) with the Java client. */
public final class Driver {
    private final Map<String, Lease> leases = new ConcurrentHashMap<>();
    private final Map<Long, Thread> threads = new ConcurrentHashMap<>();
    private volatile Client client;

    /** Reads commands until the end of the input. */
    public static void main(String[] arguments) throws IOException {
        System.out.println("{\"event\": \"hello\", \"client\": \"java\", \"wire\": \"http\","
                + " \"can\": [\"addresses\", \"cancel\", \"delays\", \"handover\", \"list\", \"notices\", \"permits\", \"sets\","
                + " \"shared\", \"tls\", \"update\", \"watch\"]}");
        System.out.flush();
        Driver driver = new Driver();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            Map<String, Object> command = Json.object(line);
            Thread thread = new Thread(() -> driver.answer(command));
            thread.setDaemon(true);
            driver.threads.put((Long) command.get("id"), thread);
            thread.start();
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void answer(Map<String, Object> command) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.get("id"));
        try {
            answer.put("ok", true);
            carryOut(command, answer);
        } catch (PalisadeException error) {
            answer.put("ok", false);
            answer.put("code", error.code());
            answer.put("message", error.getMessage());
        } catch (InterruptedException gone) {
            answer.put("ok", false);
            answer.put("code", "cancelled");
        }
        Object free = answer.remove("free");
        String line = Json.write(answer);
        say(free == null ? line : line.substring(0, line.length() - 1) + ",\"token\":null}");
    }

    private void carryOut(Map<String, Object> command, Map<String, Object> answer) throws InterruptedException {
        switch (text(command, "do")) {
            case "clock" -> answer.put("now_ms", nowMs());
            case "connect" -> connect(command);
            case "acquire" -> acquire(command, answer);
            case "downgrade" -> taken(command, lease(command).downgrade(), answer);
            case "upgrade" -> taken(
                    command, lease(command).upgrade(Duration.ofMillis(number(command, "wait_ms"))), answer);
            case "export" -> answer.put("text", lease(command).export());
            case "adopt" -> taken(command, client.adopt(text(command, "text")), answer);
            case "check" -> {
                answer.put("before_ms", nowMs());
                lease(command).check();
            }
            case "checks" -> {
                Lease held = lease(command);
                double before = nowMs();
                for (long n = number(command, "count"); n > 0; n--) {
                    held.check();
                }
                answer.put("took_ms", nowMs() - before);
            }
            case "pairs" -> {
                double before = nowMs();
                for (long n = number(command, "count"); n > 0; n--) {
                    client.lock(text(command, "lock")).acquire().release();
                }
                answer.put("took_ms", nowMs() - before);
            }
            case "remaining" -> remaining(lease(command), answer);
            case "wanted" -> answer.put("waiters", lease(command).wanted());
            case "release" -> {
                Lease held = lease(command);
                String part = text(command, "lock");
                answer.put("result", (part == null ? held.release() : held.releasePart(part)).name().toLowerCase());
            }
            case "cancel" -> threads.get(number(command, "target")).interrupt();
            case "show" -> {
                LockInfo shown = client.show(text(command, "lock"));
                answer.put("waiters", shown.waiters());
                answer.put(shown.holder() == null ? "free" : "token", shown.holder() == null ? "yes" : shown.holder().token());
            }
            case "list" -> {
                List<String> names = new ArrayList<>();
                client.list(text(command, "prefix")).forEach(lock -> names.add(lock.name()));
                answer.put("locks", names);
            }
            case "break" -> client.breakLock(text(command, "lock"), number(command, "token"), text(command, "reason"));
            case "watch" -> {
                Thread thread = new Thread(() -> watch(command));
                thread.setDaemon(true);
                thread.start();
            }
            default -> throw new IllegalArgumentException("there is no command " + command);
        }
    }

    private void connect(Map<String, Object> command) {
        List<?> urls = (List<?>) command.get("urls");
        Client.Builder builder = Client.builder()
                .endpoints(urls.toArray(String[]::new))
                .patience(Duration.ofMillis(number(command, "patience_ms")));
        if (command.get("tls") instanceof Map<?, ?> tls) {
            builder.tlsFiles(Path.of((String) tls.get("ca")), Path.of((String) tls.get("cert")), Path.of((String) tls.get("key")));
        }
        builder.notices(Boolean.TRUE.equals(command.get("notices")));
        client = builder.build();
    }

    private void acquire(Map<String, Object> command, Map<String, Object> answer) throws InterruptedException {
        List<String> names = new ArrayList<>(List.of(text(command, "lock")));
        if (command.get("also") instanceof List<?> also) {
            also.forEach(name -> names.add((String) name));
        }
        LockRequest request = client.locks(names.toArray(String[]::new))
                .ttl(Duration.ofMillis(number(command, "ttl_ms")))
                .waitUpTo(Duration.ofMillis(number(command, "wait_ms")));
        if (command.get("client_id") instanceof String id) {
            request.clientId(id);
        }
        if ("shared".equals(command.get("mode"))) {
            request.shared();
        }
        if ("update".equals(command.get("mode"))) {
            request.update();
        }
        if (command.get("lock_delay_ms") instanceof Long delay) {
            request.lockDelay(Duration.ofMillis(delay));
        }
        if (command.get("at_least_for_ms") instanceof Long least) {
            request.atLeastFor(Duration.ofMillis(least));
        }
        if (command.get("permits") instanceof Map<?, ?> permits) {
            request.permits(((Long) permits.get("count")).intValue(), ((Long) permits.get("of")).intValue());
        }
        taken(command, request.acquire(), answer);
    }

    private void taken(Map<String, Object> command, Lease lease, Map<String, Object> answer) {
        String name = text(command, "as");
        leases.put(name, lease);
        lease.lost().thenAccept(loss -> {
            Map<String, Object> event = new LinkedHashMap<>();
            event.put("event", "lost");
            event.put("grant", name);
            event.put("token", loss.token());
            event.put("code", loss.code());
            event.put("at_ms", nowMs());
            say(Json.write(event));
        });
        lease.listen(notice -> say(name, notice));
        remaining(lease, answer);
        answer.put("token", lease.token());
        answer.put("grant_id", lease.grantId());
        answer.put("authority", lease.authority());
        answer.put("slots", lease.slots());
        answer.put("slot_keys", lease.slotKeys());
    }

    private static void say(String grant, Notice notice) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("event", "notice");
        event.put("grant", grant);
        event.put("kind", notice.kind().name().toLowerCase());
        event.put("at_ms", nowMs());
        switch (notice.kind()) {
            case SUSPENDED -> event.put("remaining_ms", notice.remaining().toNanos() / 1e6);
            case WANTED, UNWANTED -> event.put("waiters", notice.waiters());
            case LOST -> {
                event.put("why", notice.loss().code());
                event.put("reason", notice.loss().reason().orElse(""));
            }
            default -> {
                // Nothing more is to be said.
            }
        }
        say(Json.write(event));
    }

    private void watch(Map<String, Object> command) {
        try (Watch watch = client.watch(text(command, "prefix"), 0)) {
            for (Event change = watch.next(); change != null; change = watch.next()) {
                Map<String, Object> event = new LinkedHashMap<>();
                event.put("event", "change");
                event.put("watch", command.get("as"));
                event.put("kind", change.kind());
                event.put("revision", change.revision());
                event.put("token", change.token());
                say(Json.write(event));
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** The clock is read before the client is asked. */
    private static void remaining(Lease lease, Map<String, Object> answer) {
        answer.put("before_ms", nowMs());
        answer.put("remaining_ms", lease.remaining().toNanos() / 1e6);
    }

    private Lease lease(Map<String, Object> command) {
        return leases.get(text(command, "grant"));
    }

    private static String text(Map<String, Object> command, String name) {
        return (String) command.get(name);
    }

    private static long number(Map<String, Object> command, String name) {
        return (Long) command.get(name);
    }

    private static double nowMs() {
        return Clock.earliest() / 1e6;
    }
}
