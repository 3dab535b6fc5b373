package example.palisade;

/**
 * What the server knows about a lock.
 *
 * @param name its name
 * @param holder null while it is free
 * @param waiters how many requests wait for it
 */
public record LockInfo(String name, Holder holder, int waiters) {}
