/**
 * Tells the authority that a fence refused a token as stale, for its history. Best effort: no caller waits for it or sees an
 * error of it, it changes nothing about a lease, and it does not keep the process running.
 */
import { latest, sleepUntil } from "./clock.js";
import { Reply } from "./reply.js";
import type { Transport } from "./transport.js";
import { lockPath } from "./wish.js";

const MAX_WAITING = 64;
/** The server takes as many bytes of a resource and of an operation. */
const MAX_BYTES = 255;
const BETWEEN_MS = 100;
const EQUAL_MS = 10_000;
const ATTEMPT_MS = 2_000;
/** How long the end of a client waits for what is queued. */
const CLOSE_MS = 250;

/** One refused operation. */
export interface Report {
  readonly lock: string;
  readonly token: number;
  readonly resource: string;
  readonly operation: string;
  readonly highest: number;
}

/** The queue of one client. */
export class Reports {
  readonly #waiting: Report[] = [];
  /** When the latest report of a lock, token and resource came, the oldest first. */
  readonly #latest = new Map<string, number>();
  #dropped = 0;
  #nextAt = 0;
  #closed = false;
  #running: Promise<void> | undefined;

  constructor(
    private readonly isOn: boolean,
    private readonly transport: Transport,
  ) {}

  get dropped(): number {
    return this.#dropped;
  }

  /** Sends nothing yet, and never throws. */
  add(report: Report): void {
    if (!this.isOn) {
      return;
    }
    const now = latest();
    for (const [known, at] of this.#latest) {
      if (now - at < EQUAL_MS) {
        break;
      }
      this.#latest.delete(known);
    }
    const key = JSON.stringify([report.lock, report.token, report.resource]);
    if (this.#latest.has(key)) {
      return;
    }
    if (this.#closed || this.#waiting.length >= MAX_WAITING) {
      this.#dropped += 1;
      return;
    }
    this.#latest.set(key, now);
    this.#waiting.push(report);
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    while (this.#waiting.length > 0) {
      await pause(this.#nextAt - latest());
      const report = this.#waiting.shift();
      this.#nextAt = latest() + BETWEEN_MS;
      if (report !== undefined && !(await this.#arrives(report))) {
        this.#dropped += 1;
      }
    }
    this.#running = undefined;
  }

  async #arrives({ lock, token, resource, operation, highest }: Report): Promise<boolean> {
    const body = { fencing_token: token, resource: cut(resource), highest, operation: cut(operation) };
    const send = { method: "POST", path: lockPath(lock, "/rejections"), body, isBackground: true } as const;
    try {
      const answer = await this.transport.send(send, latest() + ATTEMPT_MS);
      return answer instanceof Reply && answer.status === 200;
    } catch {
      // Such as a token's file that cannot be read. The next request of the client throws it.
      return false;
    }
  }

  /** Waits a short time for what is queued, and drops the rest. */
  async close(): Promise<void> {
    if (this.#running !== undefined) {
      const over = new AbortController();
      await Promise.race([this.#running, sleepUntil(latest() + CLOSE_MS, over.signal)]);
      over.abort();
    }
    this.#closed = true;
    this.#dropped += this.#waiting.length;
    this.#waiting.length = 0;
  }
}

/** At least until the caller has its error. */
async function pause(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    setTimeout(resolve, Math.max(ms, 0)).unref();
  });
}

/** A cut within a character drops it. */
function cut(text: string): string {
  return Buffer.from(text)
    .subarray(0, MAX_BYTES)
    .toString("utf8")
    .replace(/\uFFFD+$/, "");
}
