import { Invalid } from "../errors.js";
import { checkKind, isPlain, short } from "../options.js";
import { heardAs } from "../refusals.js";

/** The largest fencing token, 2^53 − 1; sequence numbers end there, too. */
export const MAX_TOKEN = Number.MAX_SAFE_INTEGER;

/** A holder's proof: its token and, where they are known, the authority and the lock of that token. */
export interface Pass {
  readonly token: number;
  readonly authority?: string | undefined;
  readonly lock?: string | undefined;
}

/**
 * A fence accepts a `Lease`, a `Pass`, for example from another process, or a bare token. If the holder has a method
 * `check`, as a `Lease` has, it is called first, so a holder that lost its lease sends nothing. A database ends a
 * transaction that is idle for longer than `remainingMs`.
 */
export type Holder = number | (Pass & { check?(): void; readonly remainingMs?: number });

/** Throws `LeaseLost` for a lease that is lost, and `Invalid` for a number that is not a token. @internal */
export function presented(holder: Holder): Pass {
  if (
    typeof holder !== "number" &&
    (typeof holder !== "object" || (holder as unknown) === null || !("token" in holder))
  ) {
    throw new TypeError(
      `palisade: a fence takes a lease, { token, authority, lock }, or a token as a number, and not ${short(holder)}` +
        (holder instanceof Promise ? ": await the lease" : ""),
    );
  }
  const pass = typeof holder === "number" ? { token: holder } : holder;
  if (!Number.isSafeInteger(pass.token) || pass.token < 1) {
    throw new Invalid(`${short(pass.token)} is not a fencing token: 1 to ${MAX_TOKEN} are allowed`);
  }
  // As JSON has them, they may be null.
  const [authority, lock] = [pass.authority ?? undefined, pass.lock ?? undefined];
  checkKind("the authority", authority, authority === undefined || typeof authority === "string", "a text");
  checkKind("the lock", lock, lock === undefined || typeof lock === "string", "a text");
  if (typeof holder !== "number") {
    holder.check?.();
  }
  // A lease of several locks has no one name.
  return heardAs(holder, { token: pass.token, authority, lock: lock === "" ? undefined : lock });
}

/**
 * The remaining time of a lease in milliseconds, in the form that the databases take; undefined if it is unknown. @internal
 */
export function leftMs(holder: Holder): number | undefined {
  const left = typeof holder === "number" ? undefined : holder.remainingMs;
  return typeof left === "number" ? Math.min(Math.max(Math.ceil(left), 1), 999_999_999) : undefined;
}

/** @internal */
export function checkSequence(sequence: number | undefined): void {
  if (sequence !== undefined && !(Number.isSafeInteger(sequence) && sequence >= 0)) {
    throw new Invalid(`the sequence number ${short(sequence)} is out of range: 0 to ${MAX_TOKEN} are allowed`);
  }
}

/** Holders by resource. @internal */
export function checkHolders(holders: unknown): void {
  checkKind("what is claimed", holders, isPlain(holders), "an object { RESOURCE: holder, … }");
}

/** Checks the caller's work in a transaction. @internal */
export function checkWork(work: unknown): void {
  checkKind("the work of transact", work, typeof work === "function", "a function, which gets the connection");
}

/** @internal */
export function checkResource(name: string): void {
  if (typeof (name as unknown) !== "string") {
    throw new TypeError(`palisade: the name of a resource is a text, and not ${short(name)}`);
  }
  if (!/^[ -~]{1,255}$/.test(name)) {
    throw new Invalid(`${JSON.stringify(name)} is not the name of a resource: 1 to 255 printable ASCII characters`);
  }
}
