/**
 * What the listeners of a lease are told: its state, as it changes. A listener is told of the present state, and not of each
 * step to it. So one that is slow, or was registered late, needs no queue: what came and went meanwhile is left out.
 */
import { latest } from "./clock.js";
import type { Hold } from "./hold.js";

/** News about a lease. */
export type Notice =
  /** A renewal failed. The lease is held for so long if no other one is acknowledged: then it is restored, or lost. */
  | { readonly kind: "suspended"; readonly remainingMs: number }
  | { readonly kind: "restored" }
  /** So many requests wait for the lock. */
  | { readonly kind: "wanted"; readonly waiters: number }
  /** None wait any more. */
  | { readonly kind: "unwanted" }
  /** The lease is over: the code of the `LeaseLost`, and the operator's reason. */
  | { readonly kind: "lost"; readonly why: string; readonly reason: string | undefined };

/** The state of one lease. */
export class Notices {
  readonly #listeners: Listener[] = [];
  waiters = 0;
  isSuspended = false;
  isLost = false;

  constructor(readonly hold: Hold) {}

  listen(callback: (notice: Notice) => unknown): void {
    this.#listeners.push(new Listener(this, callback));
    this.#changed();
  }

  /** A renewal failed. */
  suspend(): void {
    this.isSuspended = true;
    this.#changed();
  }

  /** A renewal was acknowledged. */
  restore(): void {
    this.isSuspended = false;
    this.#changed();
  }

  want(waiters: number): void {
    this.waiters = waiters;
    this.#changed();
  }

  lose(): void {
    this.isLost = true;
    this.#changed();
  }

  #changed(): void {
    for (const listener of this.#listeners) {
      listener.changed();
    }
  }
}

/** What one callback was told. At most one call of it runs at a time. */
class Listener {
  #isSuspended = false;
  #waiters = 0;
  #isOver = false;
  #isRunning = false;

  constructor(
    private readonly state: Notices,
    private readonly callback: (notice: Notice) => unknown,
  ) {}

  changed(): void {
    if (!this.#isRunning && this.#news() !== undefined) {
      this.#isRunning = true;
      void this.#tell();
    }
  }

  async #tell(): Promise<void> {
    // Not in the middle of what changed it.
    await Promise.resolve();
    for (let notice = this.#next(); notice !== undefined; notice = this.#next()) {
      try {
        await this.callback(notice);
      } catch (error) {
        const why = error instanceof Error ? (error.stack ?? error.message) : String(error);
        process.emitWarning(`a listener failed at the notice ${notice.kind}: ${why}`, "PalisadeWarning");
      }
    }
    this.#isRunning = false;
  }

  #next(): Notice | undefined {
    // A lease whose time is over is lost before anything else is said.
    this.state.hold.holds();
    const notice = this.#news();
    switch (notice?.kind) {
      case "suspended":
      case "restored":
        this.#isSuspended = notice.kind === "suspended";
        break;
      case "wanted":
      case "unwanted":
        this.#waiters = notice.kind === "wanted" ? notice.waiters : 0;
        break;
      case "lost":
        this.#isOver = true;
        break;
      default:
    }
    return notice;
  }

  #news(): Notice | undefined {
    const { hold, isSuspended, waiters, isLost } = this.state;
    if (this.#isOver || (hold.reason !== undefined && !isLost)) {
      return undefined;
    }
    if (isLost) {
      return { kind: "lost", why: hold.reason ?? "expired", reason: hold.operatorsReason };
    }
    if (isSuspended !== this.#isSuspended) {
      const remainingMs = Math.max(hold.deadline - latest(), 0);
      return isSuspended ? { kind: "suspended", remainingMs } : { kind: "restored" };
    }
    if (waiters !== this.#waiters) {
      return waiters > 0 ? { kind: "wanted", waiters } : { kind: "unwanted" };
    }
    return undefined;
  }
}
