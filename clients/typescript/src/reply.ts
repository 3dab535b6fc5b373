import {
  Invalid,
  LockHeld,
  NotAcquired,
  OperatorNeeded,
  UnknownOutcome,
  type LockHolder,
  type PalisadeError,
} from "./errors.js";

/** No wait and no lease is longer than a day; a bound keeps the results of computations in range. */
const LONGEST_MS = 4 * 86_400_000;

export type Json = Readonly<Record<string, unknown>>;

/** Why an attempt is to be repeated. `unknown`: the request may have happened. */
export class Fault {
  constructor(
    readonly message: string,
    readonly unknown: boolean,
    /** The time of the attempt ended. A shorter one after it has less to say. */
    readonly silent = false,
  ) {}
}

/** An answer whose body is a JSON object. */
export class Reply {
  readonly #problem: Json;

  constructor(
    readonly status: number,
    readonly body: Json,
  ) {
    this.#problem = asObject(body["error"]) ?? {};
  }

  /** Accepts only answers of a Palisade server. Anything else leaves the outcome unknown. */
  static read(status: number, text: string): Reply | Fault {
    const expected = status === 200 || status === 202 || (status >= 400 && status < 600);
    const body = expected ? parsed(text) : undefined;
    return body === undefined
      ? new Fault(`the answer (status ${status}) is not one of a Palisade server`, true)
      : new Reply(status, body);
  }

  /** The server says that the request waits: it is to be asked again. */
  get waits(): boolean {
    return this.status === 202;
  }

  /** Which grant the answer says is over; undefined if it does not say. */
  get endedGrant(): unknown {
    return this.over ? (this.#problem["fencing_token"] ?? undefined) : undefined;
  }

  get code(): string {
    return asText(this.#problem["code"]) ?? (this.status >= 500 ? "internal" : "invalid");
  }

  get message(): string {
    return asText(this.#problem["message"]) ?? `status ${this.status}`;
  }

  get leader(): string | undefined {
    return asText(this.#problem["leader"]);
  }

  /** Whether the request is to be repeated: the rows of the table of codes (docs/reference/protocol.md) that say so. */
  get fault(): Fault | undefined {
    if (this.status === 200) {
      return undefined;
    }
    switch (this.code) {
      case "unavailable":
      case "request_timeout":
      case "not_leader":
        return new Fault(this.message, false);
      case "unknown_outcome":
      case "internal":
        return new Fault(this.message, true);
      case "tokens_exhausted":
      case "storage_full":
        return undefined;
      default:
        return this.status >= 500 ? new Fault(this.message, true) : undefined;
    }
  }

  /** Whether the answer says that a grant is over. */
  get over(): boolean {
    return this.status !== 200 && OVER.has(this.code);
  }

  /** The error for an answer that is not repeated. */
  error(): PalisadeError {
    const { code, message } = this;
    if (code === "held" || code === "delayed") {
      return new LockHeld(
        code,
        message,
        holderOrUndefined(this.body["holder"]),
        asNumber(this.#problem["retry_after_ms"]),
      );
    }
    if (NOT_ACQUIRED.has(code) || this.over) {
      return new NotAcquired(code, message);
    }
    if (code === "tokens_exhausted" || code === "storage_full") {
      return new OperatorNeeded(code, message);
    }
    return new Invalid(message, code);
  }
}

/**
 * Tells which of these fields a good answer has with another value. `undefined` is the value of one that it must not have.
 * The lease key is not printed.
 */
export function difference({ body }: Reply, wanted: Json): string | undefined {
  for (const [name, value] of Object.entries(wanted)) {
    const found = body[name] ?? undefined;
    if (found !== value) {
      return name === "lock_token" ? "lock_token is another" : `${name} is ${text(found)}, and not ${text(value)}`;
    }
  }
  return undefined;
}

function text(value: unknown): string {
  return value === undefined ? "missing" : JSON.stringify(value);
}

const OVER: ReadonlySet<string> = new Set(["expired", "revoked", "superseded", "not_held", "stale"]);
const NOT_ACQUIRED: ReadonlySet<string> = new Set(["queue_full", "too_many_locks", "over_quota", "abandoned"]);

/** A grant, with the clock's reading from before the request that it answers. */
export interface Granted {
  readonly t0: number;
  readonly token: number;
  /** Names the grant: the token, or a reader's grant id. */
  readonly number: number;
  readonly leaseKey: string;
  readonly authority: string;
  readonly validForMs: number;
  readonly waitedMs: number;
  readonly slots: readonly number[];
}

const MAX_PERMITS = 64;

/** The grant that was asked for: a reader's, or one with so many slots. */
interface Wanted {
  readonly shared: boolean;
  readonly permits: { readonly count: number } | undefined;
}

export function readGrant(t0: number, { body }: Reply, { shared, permits }: Wanted): Granted | Fault {
  const token = asToken(body["fencing_token"]);
  const number = shared ? asToken(body["grant_id"]) : token;
  const leaseKey = asText(body["lock_token"]);
  const authority = asText(body["authority"]);
  const validForMs = asDuration(body["valid_for_ms"]);
  const waitedMs = asDuration(body["waited_ms"]);
  if (token === undefined || number === undefined) {
    return broken("fencing_token, or a reader's grant_id, is missing or out of range");
  }
  if (leaseKey === undefined || authority === undefined) {
    return broken("lock_token or authority is missing");
  }
  if (validForMs === undefined || waitedMs === undefined) {
    return broken("valid_for_ms or waited_ms is missing or out of range");
  }
  const slots = asSlots(body["slots"]);
  if (slots?.length !== (permits?.count ?? 0)) {
    return broken("slots are missing, or not those that were asked for");
  }
  return { t0, token, number, leaseKey, authority, validForMs, waitedMs, slots };
}

/** Rising numbers from 1; none where they are missing. */
export function asSlots(value: unknown): readonly number[] | undefined {
  const slots: unknown = value === undefined ? [] : value;
  const isRising = (slot: unknown, at: number, all: unknown[]): slot is number =>
    Number.isInteger(slot) && Number(slot) <= MAX_PERMITS && Number(slot) > (at === 0 ? 0 : Number(all[at - 1]));
  return Array.isArray(slots) && slots.every(isRising) ? slots : undefined;
}

export function readRenewal({ body }: Reply): number | undefined {
  return asDuration(body["valid_for_ms"]);
}

/** The holder that a server shows; undefined for null. */
export function readHolder(value: unknown): LockHolder | undefined {
  if (value === null || value === undefined) {
    return undefined;
  }
  const told = asObject(value) ?? {};
  const [clientId, token, remainingMs] = [told["client_id"], asToken(told["fencing_token"]), told["remaining_ms"]];
  if (typeof clientId !== "string" || token === undefined || asNumber(remainingMs) === undefined) {
    throw unreadable("the holder's client_id, fencing_token or remaining_ms is missing or out of range");
  }
  return {
    clientId,
    token,
    remainingMs: remainingMs as number,
    metadata: asText(told["metadata"]),
    acquiredAt: asText(told["acquired_at"]),
    grantId: asToken(told["grant_id"]),
    slots: asSlots(told["slots"]) ?? [],
  };
}

/** The holder in a denial is for people: an acquire is denied whether it can be read or not. */
function holderOrUndefined(value: unknown): LockHolder | undefined {
  try {
    return readHolder(value);
  } catch {
    return undefined;
  }
}

export function unreadable(why: string): UnknownOutcome {
  return new UnknownOutcome("internal", `a broken answer: ${why}`);
}

function broken(why: string): Fault {
  return new Fault(`a broken answer: ${why}`, true);
}

/** The object in a text; undefined for everything else. */
export function parsed(text: string): Json | undefined {
  try {
    return asObject(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export function asObject(value: unknown): Json | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

/** A text that is not empty. */
export function asText(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

/** A whole number, 0 – 2^53 − 1. */
export function asNumber(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

/** A fencing token, 1 – 2^53 − 1. */
export function asToken(value: unknown): number | undefined {
  return value === 0 ? undefined : asNumber(value);
}

function asDuration(value: unknown): number | undefined {
  const found = asNumber(value);
  return found === undefined ? undefined : Math.min(found, LONGEST_MS);
}
