package example.palisade;

import example.palisade.internal.Exchange;
import example.palisade.internal.Json;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;

/**
 * Goes through the changes of locks, across broken connections, after the last event that it saw. It is for one thread;
 * {@link #close} may be called by others.
 *
 * <pre>{@code
 * try (Watch watch = client.watch("orders/")) {
 *     for (Event event = watch.next(); event != null; event = watch.next()) {
 *         System.out.println(event);
 *     }
 * }
 * }</pre>
 */
public final class Watch implements AutoCloseable {
    private static final long SILENCE = 45 * Clock.SECOND;
    private static final long FIRST_PAUSE = 10 * Clock.MILLISECOND;
    private static final long LONGEST_PAUSE = 500 * Clock.MILLISECOND;
    private static final Set<String> KINDS = Set.of(
            "granted", "proclaimed", "opened", "released", "expired", "revoked", "superseded");

    private final Client client;
    private final String prefix;
    private Long after;
    private boolean opened;
    private long pause = FIRST_PAUSE;
    private String address;
    private BufferedReader lines;
    private volatile InputStream stream;
    private volatile long heard;
    private volatile boolean closed;

    Watch(Client client, String prefix, Long after) {
        this.client = client;
        this.prefix = prefix;
        this.after = after;
    }

    /**
     * Waits for the next event; null after {@link #close}.
     *
     * @throws PalisadeException if the server refuses the watch, and connecting again does not cure that
     */
    public Event next() throws InterruptedException {
        while (!closed) {
            if (lines == null) {
                if (connect()) {
                    return new Event("missed", null, null, null, 0, null, 0, null, null);
                }
                continue;
            }
            Event event = read();
            if (event != null) {
                return event;
            }
        }
        return null;
    }

    /** Ends the watch. */
    @Override
    public void close() {
        closed = true;
        disconnect();
    }

    /** Opens the stream. True: something may have been missed. */
    private boolean connect() throws InterruptedException {
        client.checkOpen();
        address = client.transport().endpoints.current();
        String from = after == null ? "" : "&after_revision=" + after;
        Transport.Request request = Transport.Request.get("/v1/watch?prefix=" + Client.query(prefix) + from, stream -> null);
        try {
            Exchange.Answer<InputStream> answer = client.transport()
                    .open(address, request, Transport.attemptTime(0, client.patience(), client.patience()));
            stream = answer.body();
            if (answer.status() != 200) {
                String body = new String(stream.readNBytes(1 << 16), StandardCharsets.UTF_8);
                disconnect();
                refused(Reply.read(answer.status(), body));
                return false;
            }
        } catch (Reply.Fault | IOException error) {
            broken();
            return false;
        }
        if (closed) {
            disconnect();
            return false;
        }
        lines = new BufferedReader(new InputStreamReader(stream, StandardCharsets.UTF_8));
        heard = Clock.earliest();
        client.start("watch", () -> listen(stream));
        boolean missed = opened && after == null;
        opened = true;
        return missed;
    }

    private void refused(Reply reply) throws Reply.Fault, InterruptedException {
        if (client.transport().endpoints.answered(address, reply)) {
            return;
        }
        reply.checkFault();
        if (after == null || !reply.code().equals("invalid")) {
            throw reply.error();
        }
        // The revision is of another authority: begin anew, and say that something was missed.
        after = null;
        opened = true;
    }

    /** Closes a stream on which nothing has come for 45 s. */
    private void listen(InputStream mine) throws InterruptedException {
        while (stream == mine && Clock.earliest() < heard + SILENCE) {
            Client.sleepUntil(Math.min(heard + SILENCE, Clock.earliest() + Clock.SECOND));
        }
        closeQuietly(mine);
    }

    private void broken() throws InterruptedException {
        disconnect();
        client.transport().endpoints.failed(address);
        if (!closed) {
            Client.sleepUntil(Clock.earliest() + pause);
        }
        pause = Math.min(2 * pause, LONGEST_PAUSE);
    }

    private void disconnect() {
        InputStream old = stream;
        stream = null;
        lines = null;
        closeQuietly(old);
    }

    private static void closeQuietly(InputStream old) {
        try {
            if (old != null) {
                old.close();
            }
        } catch (IOException alreadyBroken) {
            // It is closed all the same.
        }
    }

    /** Takes lines up to the end of an event that the caller is to see; null if the connection broke. */
    private Event read() throws InterruptedException {
        BufferedReader from = lines;
        String kind = "";
        String id = "";
        StringBuilder data = new StringBuilder();
        try {
            String line;
            while (from != null && (line = from.readLine()) != null) {
                heard = Clock.earliest();
                pause = FIRST_PAUSE;
                if (line.isEmpty()) {
                    if (id.matches("[0-9]{1,18}")) {
                        after = Long.valueOf(id);
                    }
                    Event event = event(kind, data.toString());
                    if (event != null) {
                        return event;
                    }
                    kind = "";
                    id = "";
                    data.setLength(0);
                    continue;
                }
                int colon = line.indexOf(':');
                String value = colon < 0 ? "" : line.substring(colon + 1).replaceFirst("^ ", "");
                switch (colon < 0 ? line : line.substring(0, colon)) {
                    case "event" -> kind = value;
                    case "id" -> id = value;
                    case "data" -> data.append(value);
                    default -> {
                        // A comment, or a field of a later server.
                    }
                }
            }
        } catch (IOException error) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
        }
        broken();
        return null;
    }

    /** Null for events that the caller must not see, such as the kinds of later servers. */
    private Event event(String kind, String data) {
        try {
            if (kind.equals("missed")) {
                long missed = Reply.number(Json.object(data), "missed");
                return new Event(kind, after, null, null, 0, null, missed, null, null);
            }
            if (!KINDS.contains(kind)) {
                return null;
            }
            Map<String, Object> told = Json.object(data);
            return new Event(
                    kind, after, Reply.text(told, "resource_id"),
                    kind.equals("opened") ? null : Reply.text(told, "client_id"), Reply.token(told),
                    told.get("reason") instanceof String reason ? reason : null, 0,
                    told.get("grant_id") instanceof Long id ? id : null,
                    told.get("time") instanceof String time ? time : null);
        } catch (IllegalArgumentException | Reply.Fault unreadable) {
            return null;
        }
    }
}
