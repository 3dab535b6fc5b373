package example.palisade;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;

/**
 * The holder's clock: the time since the machine was started, suspension included, in nanoseconds.
 *
 * <p>Java cannot read CLOCK_BOOTTIME. On Linux the first number in /proc/uptime is the same clock, cut off to a hundredth
 * of a second, so a reading is between {@link #earliest} and {@link #latest}. On other systems the clock adds up, from
 * reading to reading, the longer one of the times that {@code System.nanoTime}, which may stop in suspension, and the wall
 * clock say have passed.
 */
final class Clock {
    static final long MILLISECOND = 1_000_000;
    static final long SECOND = 1_000 * MILLISECOND;

    private static final long GRAIN = 10 * MILLISECOND;
    private static final RandomAccessFile UPTIME = uptime();

    private static long lastMonotonic = System.nanoTime();
    private static long lastWall = System.currentTimeMillis();
    private static long sum;

    private Clock() {}

    /** For the time before a request is sent. */
    static long earliest() {
        return UPTIME == null ? summed() : read();
    }

    /** For everything that is compared with a deadline. */
    static long latest() {
        return earliest() + GRAIN;
    }

    private static RandomAccessFile uptime() {
        if (!System.getProperty("os.name").equals("Linux")) {
            return null;
        }
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException error) {
            throw new IllegalStateException("there is no clock that counts suspension: " + error, error);
        }
    }

    /** Not through a channel: an interrupt would close it for all threads. */
    private static synchronized long read() {
        byte[] text = new byte[64];
        try {
            UPTIME.seek(0);
            int length = UPTIME.read(text);
            String line = new String(text, 0, Math.max(length, 0), StandardCharsets.US_ASCII);
            int point = line.indexOf('.');
            long seconds = Long.parseLong(line.substring(0, point));
            return seconds * SECOND + Long.parseLong(line.substring(point + 1, point + 3)) * GRAIN;
        } catch (IOException | RuntimeException error) {
            throw new IllegalStateException("/proc/uptime cannot be read: " + error, error);
        }
    }

    private static synchronized long summed() {
        long monotonic = System.nanoTime();
        long wall = System.currentTimeMillis();
        sum += Math.max(Math.max(monotonic - lastMonotonic, (wall - lastWall) * MILLISECOND), 0);
        lastMonotonic = monotonic;
        lastWall = wall;
        return sum;
    }
}
