import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { earliest, latest, sleepUntil } from "./clock.js";
import { Invalid } from "./errors.js";
import { checkKind, checkSignal, checkText, short } from "./options.js";
import { difference, Fault, readGrant, Reply, type Granted } from "./reply.js";
import { attemptTime, Backoff, FIRST_PAUSE } from "./retry.js";
import { LEAST_TIME, type Send, type Transport } from "./transport.js";

export const DAY = 86_400_000;
const DEFAULT_TTL = 15_000;
const DEFAULT_WAIT = 30_000;
const MIN_TTL = 100;
const MAX_LOCK_DELAY = 60_000;
export const MAX_METADATA_BYTES = 256;
const MAX_LOCKS = 64;
const ABANDON_TIME = 2_000;
/** A server that is asked to wait says so after this time: proxies end connections on which nothing comes. */
const POLL_TIME = 10_000;
/** An address that did not answer last is asked to say so soon: it may be dead. */
const FIRST_POLL_TIME = 1_000;

/** Sets up one acquire. */
export interface AcquireOptions {
  /** How long the lease lasts without renewal, 100 – 86,400,000 ms. The default is 15,000. */
  readonly ttlMs?: number;
  /** How long to stay in the queue, 0 – 86,400,000 ms. 0 tries once. The default is 30,000. */
  readonly waitMs?: number;
  /**
   * Shown to others, 1 – 255 bytes of printable ASCII. A lock that a client id holds is granted to the same client id
   * again at once, and its earlier grant is over. By default each acquire has one of its own.
   */
  readonly clientId?: string;
  /**
   * As a reader, beside other readers; a writer keeps all of them out. Readers claim at the resource before they read, and
   * write nothing.
   */
  readonly shared?: boolean;
  /** As the one reader that may become the writer, by `lease.upgrade`, beside plain readers. */
  readonly update?: boolean;
  /** So many permits of a semaphore that has `of`, 1 – 64, all or none. Claim each of `lease.slotKeys`. */
  readonly permits?: Permits;
  /** How long nobody is granted the lock after this grant expires or is revoked, 0 – 60,000 ms. */
  readonly lockDelayMs?: number;
  /** How long nobody else is granted it from this grant on, however early it is released, 0 – 86,400,000 ms. */
  readonly atLeastForMs?: number;
  /** Shown with the holder, at most 256 bytes. */
  readonly metadata?: string;
  /** Ends the acquire, which is then abandoned in the background. It does not end the lease later. */
  readonly signal?: AbortSignal;
}

/** Their names. */
export const ACQUIRE_OPTIONS = [
  "ttlMs",
  "waitMs",
  "clientId",
  "shared",
  "update",
  "permits",
  "lockDelayMs",
  "atLeastForMs",
  "metadata",
  "signal",
] as const satisfies readonly (keyof AcquireOptions)[];

export interface Permits {
  readonly count: number;
  readonly of: number;
}

/** Sets up one upgrade. */
export interface UpgradeOptions {
  /** How long to wait for the other readers, 0 – 86,400,000 ms. 0 tries once. The default is 30,000. */
  readonly waitMs?: number;
  /** Ends the upgrade, which is then given up in the background. */
  readonly signal?: AbortSignal;
}

/** The reader that an upgrade makes the writer. */
export interface Reader {
  /** Whether it holds, at this moment. */
  readonly held: boolean;
  readonly deadline: number;
  /** The server said that its grant is over. */
  lose(code: string): void;
  /** Its upgrade is granted: it does not hold any more. Throws `LeaseLost` if it was lost before. */
  makeWay(): void;
  check(): void;
}

/** Whether a lock is held alone, beside other readers, or as the reader that may become the writer, by an upgrade. */
export type Mode = "exclusive" | "shared" | "update" | "upgrade";

/** The fields of a request under a lease that the client already has. */
interface Under {
  readonly leaseKey: string;
  readonly authority: string;
  /** Of an upgrade. */
  readonly reader?: Reader;
}

/** The caller's request for a lock, or for several at once, with its outcome. */
export class Wish {
  /** Sorted. */
  readonly locks: readonly string[];
  readonly requestId = randomBytes(16).toString("hex");
  readonly clientId: string;
  readonly ttlMs: number;
  readonly waitMs: number;
  readonly mode: Mode;
  readonly permits: Permits | undefined;
  readonly #delays: { readonly lock_delay_ms?: number; readonly at_least_for_ms?: number };
  readonly metadata: string | undefined;
  readonly #under: Under | undefined;
  /** The caller's. */
  readonly signal: AbortSignal | undefined;
  #mayHaveHappened = false;
  #firstSent: number | undefined;
  #lastSent = 0;

  constructor(locks: string | readonly string[], options: AcquireOptions, under?: Under) {
    this.locks = sorted(typeof locks === "string" ? [locks] : locks);
    checkTypes(options);
    this.ttlMs = within("ttlMs", options.ttlMs ?? DEFAULT_TTL, MIN_TTL, DAY);
    this.waitMs = within("waitMs", options.waitMs ?? DEFAULT_WAIT, 0, DAY);
    this.clientId = options.clientId ?? `${hostName()}-${randomBytes(16).toString("hex")}`;
    const bytes = Buffer.byteLength(options.metadata ?? "");
    if (bytes > MAX_METADATA_BYTES) {
      throw new Invalid(`the metadata has ${bytes} bytes; 0 to ${MAX_METADATA_BYTES} are allowed`);
    }
    this.mode = modeOf(options, under);
    this.permits = options.permits;
    this.#delays = {
      ...delay("lock_delay_ms", within("lockDelayMs", options.lockDelayMs ?? 0, 0, MAX_LOCK_DELAY)),
      ...delay("at_least_for_ms", within("atLeastForMs", options.atLeastForMs ?? 0, 0, DAY)),
    };
    if (this.shared && this.permits !== undefined) {
      throw new Invalid("ask for a shared lock or for permits, not both");
    }
    const isPlain = this.mode === "exclusive" && this.permits === undefined && Object.keys(this.#delays).length === 0;
    if (this.locks.length > 1 && !isPlain) {
      throw new Invalid(
        "several locks at once are exclusive: leave out shared, update, permits, lockDelayMs and atLeastForMs",
      );
    }
    this.metadata = options.metadata;
    this.signal = options.signal;
    this.#under = under;
  }

  /** Beside other readers. */
  get shared(): boolean {
    return this.mode === "shared" || this.mode === "update";
  }

  /** Of an upgrade. */
  get reader(): Reader | undefined {
    return this.#under?.reader;
  }

  /** The request that makes the writer a reader. */
  asReader({ leaseKey, authority }: Granted, signal: AbortSignal | undefined): Wish {
    const asked = { ...this.#asked, waitMs: 0, shared: true, ...(signal === undefined ? {} : { signal }) };
    return new Wish(this.locks, asked, { leaseKey, authority });
  }

  /** The request that makes the reader in mode update the writer. */
  asWriter({ leaseKey, authority }: Granted, reader: Reader, options: UpgradeOptions): Wish {
    return new Wish(this.locks, { ...this.#asked, ...options }, { leaseKey, authority, reader });
  }

  /** The options that stay the same when the mode changes. */
  get #asked(): AcquireOptions {
    const { clientId, ttlMs } = this;
    return { clientId, ttlMs, ...(this.metadata === undefined ? {} : { metadata: this.metadata }) };
  }

  /** The first one represents all of them in paths and messages. */
  get lock(): string {
    return this.locks[0] ?? "";
  }

  /** An attempt is under way, or ended without certainty: the wish must be abandoned. */
  get mayHaveHappened(): boolean {
    return this.#mayHaveHappened;
  }

  /** Keeps one request id until the outcome is known. After an error, a wish that may have happened must be abandoned. */
  async acquire(transport: Transport, patienceMs: number, signal: AbortSignal): Promise<Granted> {
    signal.throwIfAborted();
    const waitUntil = latest() + this.waitMs;
    const giveUp = waitUntil + patienceMs;
    const pauses = new Backoff(giveUp);
    for (;;) {
      this.reader?.check();
      const earlier = this.#mayHaveHappened;
      const t0 = earliest();
      this.#firstSent ??= t0;
      this.#mayHaveHappened = true;
      this.#lastSent = latest();
      const address = transport.endpoints.current();
      // The last attempt of a wait waits a moment, too: then the answer says who holds the lock.
      const wait = this.waitMs === 0 ? 0 : Math.max(waitUntil - this.#lastSent, 1);
      const poll = transport.endpoints.isAlive(address) ? POLL_TIME : FIRST_POLL_TIME;
      const time = attemptTime(Math.min(wait, poll), giveUp - this.#lastSent, patienceMs);
      const attempt = await transport.attempt(address, this.#send(wait, poll), this.#lastSent + time, signal);
      if (attempt.follow) {
        this.#mayHaveHappened = earlier;
        continue;
      }
      let outcome: Reply | Granted | Fault = attempt.answer;
      if (outcome instanceof Reply && outcome.waits) {
        if (latest() + LEAST_TIME < giveUp) {
          // It is asked again at once, and not in a loop if it said so at once.
          await sleepUntil(this.#lastSent + FIRST_PAUSE, signal);
          signal.throwIfAborted();
          continue;
        }
        outcome = new Fault("the server said that the request still waits, after its wait was over", true);
      }
      if (outcome instanceof Reply) {
        outcome = outcome.fault ?? (outcome.status === 200 ? readGrant(t0, outcome, this) : outcome);
      }
      if (!(outcome instanceof Fault)) {
        if (outcome instanceof Reply) {
          this.#mayHaveHappened = false;
          if (outcome.over && this.reader !== undefined) {
            this.reader.lose(outcome.code);
            this.reader.check();
          }
          throw outcome.error();
        }
        this.reader?.makeWay();
        this.#mayHaveHappened = false;
        // Earlier attempts waited, too.
        return { ...outcome, waitedMs: outcome.waitedMs + t0 - this.#firstSent };
      }
      this.#mayHaveHappened = earlier || outcome.unknown;
      await pauses.pause(outcome, signal);
    }
  }

  /**
   * Is repeated until the server has acknowledged it, or must have forgotten the grant by itself.
   *
   * An upgrade may have been granted, and abandoning it would free the lock while the reader still believes. So as long as
   * the reader holds, the same request is tried once more: a denial settles it, and the reader goes on.
   */
  async abandon(transport: Transport): Promise<void> {
    const until = this.#lastSent + this.waitMs + 2 * this.ttlMs;
    const pauses = new Backoff(until);
    const send: Send = {
      method: "POST",
      path: `/v1/requests/${this.requestId}/abandon`,
      body: {},
      differs: (answer) => (answer.status === 200 ? difference(answer, { request_id: this.requestId }) : undefined),
    };
    for (;;) {
      const reader = this.reader?.held === true ? this.reader : undefined;
      // It takes the place of an attempt that still waits at the server, and leaves the queue with its connection.
      const sent = reader === undefined ? send : this.#send(0);
      const answer = await transport.send(sent, Math.min(until, latest() + ABANDON_TIME));
      const fault = answer instanceof Reply ? answer.fault : answer;
      if (answer instanceof Reply && fault === undefined) {
        if (answer.over) {
          reader?.lose(answer.code);
        }
        if (reader === undefined || answer.status !== 200) {
          return;
        }
        reader.lose("superseded");
      }
      if (fault !== undefined) {
        await pauses.pause(fault);
      }
    }
  }

  /** Why an answer is not that of this request. */
  #differs(answer: Reply): string | undefined {
    if (answer.waits) {
      return difference(answer, { lock_acquired: false, waiting: true, resource_id: this.lock });
    }
    if (answer.status !== 200) {
      // A denial names its lock, and other refusals do not.
      return answer.body["resource_id"] === undefined ? undefined : difference(answer, { resource_id: this.lock });
    }
    const { leaseKey, authority } = this.#under ?? {};
    const lease = leaseKey === undefined ? {} : { authority, lock_token: leaseKey };
    return difference(answer, { lock_acquired: true, resource_id: this.lock, ...lease });
  }

  #send(waitMs: number, pollMs?: number): Send {
    return {
      method: "POST",
      path: lockPath(this.lock, "/acquire"),
      differs: (answer) => this.#differs(answer),
      mayWait: true,
      body: {
        client_id: this.clientId,
        ...(this.#under === undefined ? { lease_duration_ms: this.ttlMs } : { lock_token: this.#under.leaseKey }),
        ...(this.mode === "exclusive" ? {} : { mode: this.mode }),
        ...(this.permits === undefined ? {} : { permits: this.permits }),
        ...this.#delays,
        ...(this.locks.length > 1 ? { also: this.locks.slice(1) } : {}),
        wait_ms: Math.ceil(waitMs),
        ...(waitMs === 0 || pollMs === undefined ? {} : { poll_ms: pollMs }),
        request_id: this.requestId,
        ...(this.metadata === undefined ? {} : { metadata: this.metadata }),
      },
    };
  }
}

function modeOf({ shared, update }: AcquireOptions, under: Under | undefined): Mode {
  if (under?.reader !== undefined) {
    return "upgrade";
  }
  if (shared === true && update === true) {
    throw new Invalid("ask for shared or for update, not both");
  }
  return update === true ? "update" : shared === true ? "shared" : "exclusive";
}

/** A field that is left out if it is 0. */
function delay(field: string, ms: number): Record<string, number> {
  return ms === 0 ? {} : { [field]: ms };
}

/** A whole number of milliseconds in its range. */
export function within(field: string, value: number, low: number, high: number): number {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new Invalid(`${field} is ${short(value)}: whole milliseconds, ${low} to ${high}, are allowed`);
  }
  return value;
}

function sorted(locks: readonly string[]): readonly string[] {
  if (!isListOfNames(locks)) {
    throw new Invalid("the name of a lock is needed, or a list of names");
  }
  if (locks.length < 1 || locks.length > MAX_LOCKS) {
    throw new Invalid(`${locks.length} locks are named; 1 to ${MAX_LOCKS} are allowed`);
  }
  const names = [...locks].sort();
  for (const [at, name] of names.entries()) {
    checkName(name);
    if (name === names[at - 1]) {
      throw new Invalid(`the lock ${JSON.stringify(name)} is named twice`);
    }
  }
  return names;
}

/** The types of options, because programs in JavaScript pass anything. A number is checked by its range. */
function checkTypes(options: AcquireOptions): void {
  const { clientId, metadata, shared, update, permits, signal } = options as Readonly<Record<string, unknown>>;
  const text = { clientId, metadata };
  for (const [name, value] of Object.entries(text)) {
    check(name, value, value === undefined || typeof value === "string", "a text");
  }
  for (const [name, value] of Object.entries({ shared, update })) {
    check(name, value, value === undefined || typeof value === "boolean", "true or false");
  }
  checkSignal(signal);
  const { count, of } = (permits ?? {}) as { count?: unknown; of?: unknown };
  const isPermits = Number.isInteger(count) && Number.isInteger(of) && Object.keys(permits ?? {}).length === 2;
  check("permits", permits, permits === undefined || isPermits, "{ count, of }, two whole numbers");
}

function check(name: string, value: unknown, isRight: boolean, wanted: string): void {
  checkKind(`the option ${name}`, value, isRight, wanted);
}

/** Programs in JavaScript pass anything. */
function isListOfNames(given: unknown): boolean {
  return Array.isArray(given) && given.every((name) => typeof name === "string");
}

/** Also refuses "." and "..": proxies tidy them away, however they are written. */
export function checkName(name: string): void {
  checkText("the name of a lock", name);
  if (!/^[ -~]{1,255}$/.test(name) || name === "." || name === "..") {
    throw new Invalid(
      `${JSON.stringify(name)} is not the name of a lock: 1 to 255 printable ASCII characters, not . or ..`,
    );
  }
}

/** Percent-encodes a name byte by byte. */
export function lockPath(name: string, verb = ""): string {
  const escaped = encodeURIComponent(name).replace(
    /[!'()*]/g,
    (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `/v1/locks/${escaped}${verb}`;
}

/** The host that a client runs on, for people. Each acquire adds random characters, which make its client id unique. */
function hostName(): string {
  return (
    hostname()
      .replace(/[^!-~]/g, "")
      .slice(0, 64) || "node"
  );
}
