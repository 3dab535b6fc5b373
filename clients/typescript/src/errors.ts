/** The caller's next step: try again later, stop, call again, find out, fix the call, or call an operator. */
export type ErrorKind =
  "held" | "not_acquired" | "lost" | "unavailable" | "unknown_outcome" | "invalid" | "operator" | "rejected";

/** Every error of this package. `code` is the name in the server's table of codes (docs/reference/errors.md). */
export abstract class PalisadeError extends Error {
  abstract readonly kind: ErrorKind;

  constructor(
    readonly code: string,
    message: string,
    options?: ErrorOptions,
  ) {
    super(`palisade: ${message}`, options);
    this.name = new.target.name;
  }
}

/** The lock was not granted and nothing is held. Trying again later is safe. */
export class NotAcquired extends PalisadeError {
  readonly kind: "held" | "not_acquired" = "not_acquired";
}

/** The client that has a lock. */
export interface LockHolder {
  readonly clientId: string;
  readonly token: number;
  /** Until its lease is over unless it is renewed. */
  readonly remainingMs: number;
  readonly metadata: string | undefined;
  /** The server's wall clock at the grant, for people. */
  readonly acquiredAt: string | undefined;
  /** The number that names a reader's grant, for `breakLock`. Only where one lock is shown. */
  readonly grantId: number | undefined;
  /** The slots of a semaphore that it has. */
  readonly slots: readonly number[];
}

/**
 * Another client has the lock, and kept it for as long as the caller was willing to wait. Or nobody has it, and its last
 * grant keeps it closed: `code` is delayed.
 */
export class LockHeld extends NotAcquired {
  override readonly kind = "held";

  constructor(
    code: string,
    message: string,
    /** Undefined: the lock was released in the meantime, or it is closed. */
    readonly holder: LockHolder | undefined,
    /** When the holder's lease is over unless it is renewed, or when the lock opens. */
    readonly retryAfterMs: number | undefined,
  ) {
    super(code, message);
  }
}

/** The lease is over: stop the work. `code` is expired, revoked, superseded, not_held or stale; handed_over after `export`. */
export class LeaseLost extends PalisadeError {
  readonly kind = "lost";

  constructor(
    code: string,
    readonly lock: string,
    readonly token: number,
    /** The operator's, if a notice had it. */
    readonly reason?: string,
  ) {
    const why = `${REASONS[code] ?? code}${reason === undefined ? "" : ` (${reason})`}`;
    super(code, `the lease of ${JSON.stringify(lock)} (fencing token ${token}) is lost: ${why}`);
  }
}

/** No server could answer, and nothing happened. The same call may be made again. */
export class Unavailable extends PalisadeError {
  readonly kind = "unavailable";
}

/** No answer came, and the call may have taken effect. An acquire is being abandoned in the background. */
export class UnknownOutcome extends PalisadeError {
  readonly kind = "unknown_outcome";
}

/** The call is wrong, and repeating it does not help. The message names the field and its range. */
export class Invalid extends PalisadeError {
  readonly kind = "invalid";

  constructor(message: string, code = "invalid") {
    super(code, message);
  }
}

/** Only an operator can help. */
export class OperatorNeeded extends PalisadeError {
  readonly kind = "operator";
}

const REASONS: Readonly<Record<string, string>> = {
  expired: "no renewal was acknowledged in time",
  not_held: "it was released",
  revoked: "an operator revoked it",
  superseded: "the same client id acquired the lock again",
  stale: "the lock is held with another token",
  handed_over: "it was handed over",
};
