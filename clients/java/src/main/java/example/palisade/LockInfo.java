package example.palisade;

import java.util.List;

/**
 * What the server knows about a lock.
 *
 * @param name its name
 * @param holder null while it is free; the oldest reader of several
 * @param waiters how many requests wait for it
 * @param readerCount how many readers have it; 0 if it is not held in shared mode
 * @param readers the oldest readers, at most 64; only where one lock is shown
 */
public record LockInfo(String name, Holder holder, int waiters, int readerCount, List<Holder> readers) {}
