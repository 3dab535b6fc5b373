package example.palisade;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;

/** Tells the authority of late writes that resources refused. Nobody waits for it. */
final class Reports {
    /** More reports than these are dropped. */
    static final int MOST = 64;
    /** The server takes no longer names. */
    static final int MOST_BYTES = 255;
    /** There are at most ten reports a second. */
    static final long PAUSE = 100 * Clock.MILLISECOND;

    private static final long PATIENCE = 2 * Clock.SECOND;
    /** The same report is sent once in this time. */
    private static final long SAME = 10 * Clock.SECOND;
    /** How long a client that is closed waits for reports that are on their way. */
    private static final long LAST = 250 * Clock.MILLISECOND;

    private final Transport transport;
    private final Executor threads;
    private final boolean on;

    private final Queue<Report> queue = new ArrayDeque<>();
    /** When those reports were queued that may not be repeated yet. The bounds of the queue and of the rate bound it, too. */
    private final Map<Key, Long> recent = new HashMap<>();
    /** A thread sends, which is only while something is queued. */
    private boolean sending;
    /** No report is sent earlier. */
    private long next = System.nanoTime();
    private long dropped;
    private boolean closed;

    /** Reports with the same key are the same. */
    private record Key(String lock, long token, String resource) {}

    private record Report(Key key, long highest, String operation) {
        Transport.Request request() {
            Map<String, Object> body = new LinkedHashMap<>();
            body.put("fencing_token", key.token());
            body.put("resource", key.resource());
            body.put("highest", highest);
            body.put("operation", operation);
            return Transport.Request.post(
                    Client.lockPath(key.lock(), "/rejections"), body, Transport.Differs.unless(Map.of()));
        }
    }

    Reports(Transport transport, Executor threads, boolean on) {
        this.transport = transport;
        this.threads = threads;
        this.on = on;
    }

    /** Queues a report, and returns at once. */
    void offer(String lock, long token, String resource, long highest, String operation) {
        if (on) {
            offer(new Report(new Key(lock, token, cut(resource)), highest, cut(operation)));
        }
    }

    private synchronized void offer(Report report) {
        long now = System.nanoTime();
        recent.values().removeIf(at -> now - at >= SAME);
        if (recent.containsKey(report.key())) {
            return;
        }
        if (closed || queue.size() == MOST) {
            dropped++;
            return;
        }
        if (!sending) {
            try {
                threads.execute(this::run);
                sending = true;
            } catch (RejectedExecutionException noThread) {
                dropped++;
                return;
            }
        }
        recent.put(report.key(), now);
        queue.add(report);
    }

    /** As much of a text as the server takes, and never half a character. */
    static String cut(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int end = Math.min(bytes.length, MOST_BYTES);
        while (end < bytes.length && (bytes[end] & 0xc0) == 0x80) {
            end--;
        }
        return new String(bytes, 0, end, StandardCharsets.UTF_8);
    }

    /** Sends what is queued, and ends. A report that is not sent is dropped. */
    private void run() {
        Thread.currentThread().setName("palisade: reports");
        try {
            Report report;
            while ((report = next()) != null) {
                boolean arrived = false;
                try {
                    // One that was not recorded has arrived all the same.
                    arrived = transport.send(report.request(), PATIENCE).status() == 200;
                } catch (Reply.Fault | RuntimeException nobody) {
                    // It is counted.
                } finally {
                    if (!arrived) {
                        drop();
                    }
                }
            }
        } catch (InterruptedException closing) {
            dropAll();
        }
    }

    /** The next report, when it may be sent; or null. */
    private synchronized Report next() throws InterruptedException {
        while (!queue.isEmpty()) {
            long left = next - System.nanoTime();
            if (left <= 0) {
                next = System.nanoTime() + PAUSE;
                return queue.remove();
            }
            TimeUnit.NANOSECONDS.timedWait(this, left);
        }
        // Under the lock in which it was empty: the next report has a thread of its own.
        sending = false;
        notifyAll();
        return null;
    }

    private synchronized void drop() {
        dropped++;
    }

    private synchronized void dropAll() {
        dropped += queue.size();
        queue.clear();
        sending = false;
        notifyAll();
    }

    synchronized long dropped() {
        return dropped;
    }

    /** Takes no more, and waits for those that are queued, for a moment. */
    synchronized void close() throws InterruptedException {
        closed = true;
        long until = System.nanoTime() + LAST;
        long left;
        while (sending && (left = until - System.nanoTime()) > 0) {
            TimeUnit.NANOSECONDS.timedWait(this, left);
        }
    }
}
