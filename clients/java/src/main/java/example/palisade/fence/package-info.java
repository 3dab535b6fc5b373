/**
 * Fences check fencing tokens at the resource itself. Claim first, before the first read; then read, think and write.
 * Each step is refused with {@link example.palisade.fence.StaleException} if a newer holder has claimed the resource:
 * then give up.
 */
package example.palisade.fence;
