import { Alarm, latest } from "./clock.js";

/**
 * Counts from t0, which was read before the request that was answered was sent. Either clock may run 1 % wrong:
 * (1 − ε) / (1 + ε) of the time is sure. Rounded down to whole milliseconds.
 */
export function deadline(t0: number, validForMs: number, marginMs: number): number {
  return t0 + Math.max(Math.floor((validForMs * 99) / 101 - marginMs), 0);
}

/** The deadline of one grant. No I/O here. */
export class Hold {
  #until: number;
  /** Why it is over: a code, or "released". */
  #over: string | undefined;
  /** The operator's, of a lease that was revoked, if the server told it. */
  operatorsReason: string | undefined;
  readonly #alarm: Alarm;

  /** `ended` is called once, when it is over for any reason. */
  constructor(
    until: number,
    private readonly ended: (code: string) => void,
  ) {
    this.#until = until;
    // Announces a loss at the deadline, also when nobody checks.
    this.#alarm = new Alarm(
      () => this.#until,
      () => this.holds(),
    );
  }

  get deadline(): number {
    return this.#until;
  }

  /** Whether the holder may act now. Once the clock has passed the deadline, it stays false. */
  holds(): boolean {
    if (this.#over === undefined && latest() >= this.#until) {
      this.end("expired");
    }
    return this.#over === undefined;
  }

  remaining(): number {
    return this.holds() ? Math.max(this.#until - latest(), 0) : 0;
  }

  /** Takes an acknowledged renewal: forward only, and no revival. */
  renewed(until: number): void {
    if (this.holds()) {
      this.#until = Math.max(this.#until, until);
    }
  }

  /** Not held from now on. The first reason stays. */
  end(code: string, operatorsReason?: string): void {
    if (this.#over !== undefined) {
      return;
    }
    this.#over = code;
    this.operatorsReason = operatorsReason;
    this.#alarm.stop();
    this.ended(code);
  }

  /** The code of a hold that is over; after a release it is not held. */
  get reason(): string | undefined {
    return this.#over === RELEASED ? "not_held" : this.#over;
  }

  /** Does not keep the process running any more. */
  unref(): void {
    this.#alarm.unref();
  }
}

export const RELEASED = "released";
/** A lease that was handed over is not held here, and is not released here either. */
export const HANDED_OVER = "handed_over";
