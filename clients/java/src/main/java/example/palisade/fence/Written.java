package example.palisade.fence;

/**
 * The answer to a numbered write.
 *
 * @param repeat this write was carried out before: change nothing
 * @param result what was recorded then, or null
 */
@SuppressWarnings("ArrayRecordComponent")
public record Written(boolean repeat, byte[] result) {}
