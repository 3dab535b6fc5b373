/**
 * Fences check fencing tokens at the resource itself.
 *
 * Claim first, before the first read; then read, think and write. Each step throws `Stale` if a newer holder has claimed
 * the resource: then give up. `rejection` finds that answer in an error of your framework.
 *
 * @packageDocumentation
 */
export { FenceLost, FenceNotInstalled, Rejected, Stale, type RejectionCode, type Told } from "./errors.js";
export { MAX_TOKEN, type Holder, type Pass } from "./holder.js";
export { rejection } from "./rejection.js";
export { MAX_JUMP, type Rule } from "./rule.js";
