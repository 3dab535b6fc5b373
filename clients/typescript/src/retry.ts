import { latest, sleepUntil } from "./clock.js";
import { Unavailable, UnknownOutcome } from "./errors.js";
import { type Fault, Reply } from "./reply.js";
import { LEAST_TIME, type Send, type Transport } from "./transport.js";

export const FIRST_PAUSE = 10;
export const LONGEST_PAUSE = 500;

/** Counts pauses between attempts, doubling from 10 ms to half a second. */
export class Backoff {
  #next = FIRST_PAUSE;
  #worst: Fault | undefined;

  /** `until`: when the caller gives up, by the holder's clock. */
  constructor(private readonly until: number = Infinity) {}

  /**
   * Waits after a failed attempt. When no time is left it throws the worst fault so far: unknown if any of the attempts
   * may have happened, and of those the last one that was more than silence. It throws the signal's reason if the signal
   * has ended.
   */
  async pause(fault: Fault, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    const worst = this.#worst;
    if (
      worst === undefined ||
      (fault.unknown && !worst.unknown) ||
      (fault.unknown === worst.unknown && !fault.silent)
    ) {
      this.#worst = fault;
    }
    const end = latest() + this.#next;
    if (end + LEAST_TIME >= this.until) {
      const { unknown, message } = this.#worst ?? fault;
      throw unknown ? new UnknownOutcome("unknown_outcome", message) : new Unavailable("unavailable", message);
    }
    this.#next = Math.min(2 * this.#next, LONGEST_PAUSE);
    await sleepUntil(end, signal);
    signal?.throwIfAborted();
  }

  /** The next pause is a short one again. */
  reset(): void {
    this.#next = FIRST_PAUSE;
  }
}

/**
 * How long one attempt may take: the time that the server is asked to wait, and half of the rest, at most half of the
 * patience. The other half is for the next address, or another connection.
 */
export function attemptTime(asked: number, left: number, patience: number): number {
  return Math.max(asked + Math.min(patience, left - asked) / 2, LEAST_TIME);
}

/** Sends a request that may be sent again as it is, until there is an answer that repeating does not change. */
export async function repeat(transport: Transport, send: Send, until: number, signal?: AbortSignal): Promise<Reply> {
  const pauses = new Backoff(until);
  for (;;) {
    const now = latest();
    const answer = await transport.send(send, now + attemptTime(0, until - now, until - now), signal);
    const fault = answer instanceof Reply ? answer.fault : answer;
    if (answer instanceof Reply && fault === undefined) {
      return answer;
    }
    await pauses.pause(fault as Fault, signal);
  }
}
