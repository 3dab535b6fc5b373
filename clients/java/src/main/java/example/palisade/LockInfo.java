package example.palisade;

import java.util.List;

/**
 * The server's information about a lock.
 *
 * @param name its name
 * @param holder null while it is free; the oldest reader of several
 * @param waiters how many requests wait for it
 * @param readerCount how many readers, or holders of permits, have it; 0 if it is held alone
 * @param readers the oldest of them, at most 64; only where one lock is shown
 * @param permits how many permits a semaphore has; 0 for another lock
 */
public record LockInfo(String name, Holder holder, int waiters, int readerCount, List<Holder> readers, int permits) {}
