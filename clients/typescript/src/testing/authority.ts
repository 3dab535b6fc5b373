import { randomBytes } from "node:crypto";

import type { LockHolder } from "../errors.js";
import type { Json } from "../reply.js";

/** The place of a request whose connection broke is kept for so long. */
const KEPT_FOR = 2_000;
const KEPT_EVENTS = 4_096;
/** A waiting request looks again after so long. */
const LONGEST_WAIT = 1_000;

/** What is renewed: all its grants live and end together. */
interface Term {
  readonly key: string;
  ttlMs: number;
  until: number;
}

/** A lock of one holder. */
export interface Grant {
  readonly term: Term;
  readonly lock: Lock;
  /** A reader's is that of its phase. */
  readonly token: number;
  /** Names the grant. */
  readonly number: number;
  readonly clientId: string;
  metadata: string;
  readonly mode: string;
  readonly slots: readonly number[];
  readonly at: number;
  readonly acquiredAt: string;
  readonly lockDelayMs: number;
  readonly atLeastForMs: number;
}

export interface Lock {
  readonly name: string;
  /** In the order of their grants: one, or readers, or holders of permits. */
  grants: Grant[];
  /** How many permits it has while it is a semaphore that is in use; else 0. */
  of: number;
  closedUntil: number;
  last: number;
}

/** The body of an acquire. */
export interface Asking {
  readonly client_id: string;
  readonly lease_duration_ms: number;
  readonly wait_ms?: number;
  readonly poll_ms?: number;
  readonly request_id?: string;
  readonly metadata?: string;
  readonly mode?: string;
  readonly lock_token?: string;
  readonly permits?: { readonly count: number; readonly of: number };
  readonly lock_delay_ms?: number;
  readonly at_least_for_ms?: number;
  readonly also?: readonly string[];
}

/** A request for locks, and its outcome. */
export interface Pending {
  readonly asking: Asking;
  /** The first one is that of the path. */
  readonly names: readonly string[];
  /** Under this grant's lease: the grant that it takes the place of. */
  readonly under: Grant | undefined;
  /** The number of the latest attempt, when it came, and until when it waits. */
  attempt: number;
  arrived: number;
  until: number;
  /** Nobody is connected: until when its place is kept. */
  keptUntil: number | undefined;
  grants: Grant[];
  denied: Refusal | undefined;
}

/** An answer that is no 200. */
export interface Refusal {
  readonly status: number;
  readonly code: string;
  readonly message: string;
  readonly holder?: Grant;
  readonly waitMs?: number;
  readonly highest?: number;
  readonly token?: number;
}

export interface Event {
  readonly revision: number;
  readonly kind: string;
  readonly lock: string;
  readonly data: Json;
}

export function invalid(message: string): Refusal {
  return { status: 400, code: "invalid", message };
}

/** The answer about a grant that has ended. */
export function over(code: string, number: number): Refusal {
  const how: Readonly<Record<string, string>> = {
    not_held: "was released",
    expired: "has expired",
    revoked: "was revoked by an operator",
  };
  const message = `the grant with fencing token ${number} ${how[code] ?? "was superseded"}`;
  return { status: code === "not_held" ? 409 : 410, code, message, token: number };
}

export function reads({ mode }: Grant): boolean {
  return mode !== "";
}

/** An authority in memory: who has which lock, who waits, and why grants are over. */
export class Authority {
  readonly id = randomText();
  state: "up" | "down" | "stalled" = "up";
  readonly locks = new Map<string, Lock>();
  readonly requests = new Map<string, Pending>();
  /** Those that wait, in the order of their arrival. */
  queue: Pending[] = [];
  /** The latest changes; the last one has the number `revision`. */
  events: Event[] = [];
  revision = 0;
  token = 0;
  readonly tokens = new Map<string, number[]>();
  readonly #ended = new Map<string, string>();
  /** Why operators revoked some of them. */
  readonly #reasons = new Map<string, string>();
  readonly #waiters = new Set<() => void>();
  /** How often a queue changed. */
  #queued = 0;
  /** Those who wait know of so many changes of both kinds. */
  #announced = 0;

  /** Whole milliseconds. */
  now(): number {
    return Math.floor(performance.now());
  }

  lock(name: string): Lock {
    const found = this.locks.get(name) ?? { name, grants: [], of: 0, closedUntil: 0, last: 0 };
    this.locks.set(name, found);
    return found;
  }

  /**
   * Does what is due: leases expire, places end, and whoever can be granted is granted. It wakes those who wait if anything has
   * changed since the last time, and only then: else two of them would wake each other for ever.
   */
  settle(): void {
    const now = this.now();
    for (const lock of this.locks.values()) {
      for (const grant of [...lock.grants]) {
        if (now >= grant.term.until) {
          this.end(grant, "expired");
        }
      }
    }
    for (const pending of [...this.queue]) {
      if (pending.keptUntil !== undefined && now >= pending.keptUntil) {
        this.leave(pending);
        this.requests.delete(pending.asking.request_id ?? "");
      }
    }
    while (this.#grantOne()) {
      // A grant that is superseded may free other locks.
    }
    for (const lock of this.locks.values()) {
      const isWanted = this.queue.some(({ asking, names }) => asking.permits !== undefined && names[0] === lock.name);
      if (lock.of > 0 && lock.grants.length === 0 && !isWanted) {
        lock.of = 0;
      }
    }
    const changes = this.revision + this.#queued;
    if (this.#announced !== changes) {
      this.#announced = changes;
      this.broadcast();
    }
  }

  /** Those who wait look again. */
  broadcast(): void {
    for (const wake of [...this.#waiters]) {
      wake();
    }
  }

  /** Waits until something may have changed. Throws the signal's reason. */
  async change(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", wake);
        this.#waiters.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, this.#next());
      signal.addEventListener("abort", wake);
      this.#waiters.add(wake);
    });
    signal.throwIfAborted();
  }

  /** How long nothing happens by itself, at most a second. */
  #next(): number {
    const now = this.now();
    const holders = [...this.locks.values()].flatMap(({ grants }) => grants.map(({ term }) => term.until));
    const closed = [...this.locks.values()].map(({ closedUntil }) => closedUntil).filter((until) => until > now);
    const waits = this.queue.map(({ keptUntil, until }) => keptUntil ?? until);
    const soonest = Math.min(now + LONGEST_WAIT, ...holders, ...closed, ...waits);
    return Math.max(soonest - now, 0) + 1;
  }

  /**
   * Grants the first request that can be granted. Upgrades go ahead of the queue; whoever waits behind another one for one of
   * its locks is not granted before it.
   */
  #grantOne(): boolean {
    const isAhead = ({ asking }: Pending): boolean => asking.mode === "upgrade";
    const awaited = new Set<string>();
    for (const pending of [...this.queue.filter(isAhead), ...this.queue.filter((one) => !isAhead(one))]) {
      const isFree = pending.names.every((name) => {
        const lock = this.lock(name);
        const behind = awaited.has(name) && pending.under === undefined && !isHeldBy(lock, pending);
        return !behind && this.admits(lock, pending);
      });
      if (isFree && pending.keptUntil === undefined) {
        this.leave(pending);
        this.grant(pending);
        return true;
      }
      for (const name of pending.names) {
        awaited.add(name);
      }
    }
    return false;
  }

  /** Whether the holders, and a time after a grant, leave room for the request. */
  admits(lock: Lock, pending: Pending): boolean {
    const { asking, under } = pending;
    const { permits } = asking;
    if (asking.mode === "upgrade") {
      return lock.grants.length === 1;
    }
    if (under !== undefined || isHeldBy(lock, pending)) {
      return true;
    }
    if (this.now() < lock.closedUntil) {
      return false;
    }
    if (permits !== undefined) {
      return freeSlots(lock, permits.of).length >= permits.count;
    }
    const [first] = lock.grants;
    if (first === undefined) {
      return true;
    }
    if (asking.mode === undefined || lock.of > 0 || !reads(first)) {
      return false;
    }
    return asking.mode !== "update" || lock.grants.every(({ mode }) => mode !== "update");
  }

  /** Gives all locks of a request in one step, under one lease and one token. */
  grant(pending: Pending): void {
    const { asking, names, under } = pending;
    const now = this.now();
    this.token += 1;
    const number = this.token;
    const term: Term = under?.term ?? { key: randomText(), ttlMs: asking.lease_duration_ms, until: 0 };
    term.until = Math.max(term.until, now + term.ttlMs);
    const mode = asking.mode === "upgrade" ? "" : (asking.mode ?? "");
    for (const name of names) {
      const lock = this.lock(name);
      const [first] = lock.grants;
      const token = mode !== "" && under === undefined ? (first?.token ?? number) : number;
      if (first !== undefined && isHeldBy(lock, pending)) {
        this.end(first, "superseded");
      }
      if (under !== undefined) {
        this.end(under, "superseded");
      }
      const { permits } = asking;
      const slots = permits === undefined ? [] : freeSlots(lock, permits.of).slice(0, permits.count);
      if (permits !== undefined && lock.of === 0) {
        lock.of = permits.of;
      }
      const grant: Grant = {
        ...{ term, lock, token, number, mode, slots },
        clientId: asking.client_id,
        metadata: asking.metadata ?? "",
        at: now,
        acquiredAt: new Date().toISOString(),
        lockDelayMs: asking.lock_delay_ms ?? 0,
        atLeastForMs: asking.at_least_for_ms ?? 0,
      };
      lock.grants.push(grant);
      lock.last = token;
      pending.grants.push(grant);
      this.tokens.set(name, [...(this.tokens.get(name) ?? []), token]);
      this.tell("granted", grant, { lease_duration_ms: term.ttlMs });
    }
  }

  /** Records why a grant is over: not_held is a release. */
  end(grant: Grant, code: string, reason = ""): void {
    const { lock, term } = grant;
    if (!lock.grants.includes(grant)) {
      return;
    }
    lock.grants = lock.grants.filter((other) => other !== grant);
    this.#ended.set(ending(term.key, lock.name, grant.number), code);
    if (reason !== "") {
      this.#reasons.set(ending(term.key, lock.name, grant.number), reason);
    }
    if (code !== "superseded" && (grant.lockDelayMs > 0 || grant.atLeastForMs > 0)) {
      const delayed = code === "expired" || code === "revoked" ? this.now() + grant.lockDelayMs : 0;
      lock.closedUntil = Math.max(lock.closedUntil, grant.at + grant.atLeastForMs, delayed);
    }
    this.tell(code === "not_held" ? "released" : code, grant, reason === "" ? {} : { reason });
    // A reader that waited to become the writer has this answer.
    for (const pending of [...this.queue]) {
      if (pending.under === grant && code !== "superseded") {
        pending.denied = over(code, grant.number);
        this.leave(pending);
      }
    }
  }

  enter(pending: Pending): void {
    this.queue.push(pending);
    this.#queued += 1;
  }

  leave(pending: Pending): void {
    const before = this.queue.length;
    this.queue = this.queue.filter((other) => other !== pending);
    this.#queued += before - this.queue.length;
  }

  /** How many requests wait for a lock. */
  waiting(name: string): number {
    return this.queue.filter(({ names }) => names.includes(name)).length;
  }

  /** Keeps the place of a request that nobody is connected for. */
  keep(pending: Pending): void {
    pending.keptUntil = this.now() + KEPT_FOR;
  }

  tell(kind: string, grant: Grant, more: Json): void {
    this.revision += 1;
    const { lock, clientId, token, number } = grant;
    const named = { resource_id: lock.name, client_id: clientId, fencing_token: token };
    const time = new Date().toISOString();
    const data = { revision: this.revision, time, ...named, ...(reads(grant) ? { grant_id: number } : {}), ...more };
    this.events = [...this.events.slice(1 - KEPT_EVENTS), { revision: this.revision, kind, lock: lock.name, data }];
  }

  /** Why a request is not granted now. */
  denial({ names, under }: Pending): Refusal {
    for (const lock of names.map((name) => this.lock(name))) {
      const holder = lock.grants.find((grant) => grant !== under);
      if (holder !== undefined) {
        const waitMs = holder.term.until - this.now();
        const { clientId, token } = holder;
        const left = `${Math.round(waitMs / 1_000)} s unless renewed`;
        const message = `held by ${JSON.stringify(clientId)} with fencing token ${token} for another ${left}`;
        return { status: 409, code: "held", message, holder, waitMs };
      }
      const waitMs = lock.closedUntil - this.now();
      if (waitMs > 0) {
        const message = `closed for another ${Math.round(waitMs / 1_000)} s by its last grant`;
        return { status: 409, code: "delayed", message, waitMs, highest: lock.last };
      }
    }
    return { status: 409, code: "held", message: "another request waits, and comes first" };
  }

  /** The grant that a request names by both of its names. */
  find(name: string, key: unknown, number: unknown): Grant | Refusal {
    const own = this.lock(name).grants.filter(({ term }) => term.key === key);
    const found = own.find((grant) => number === undefined || grant.number === number);
    if (found !== undefined) {
      return found;
    }
    const code = this.ending(key, name, number);
    if (code !== undefined) {
      return over(code, Number(number));
    }
    const [held] = own;
    return held === undefined
      ? { status: 409, code: "not_held", message: "there is no such grant of this lock" }
      : { status: 412, code: "stale", message: "the lock is held with another token", highest: held.number };
  }

  /** Why a grant is over; undefined if it is not known. */
  ending(key: unknown, lock: string, number: unknown): string | undefined {
    return this.#ended.get(ending(String(key), lock, Number(number)));
  }

  /** The operator's reason of a grant that was revoked. */
  reason(key: unknown, lock: string, number: unknown): string | undefined {
    return this.#reasons.get(ending(String(key), lock, Number(number)));
  }

  /** The grant that a change of mode is about: a writer's that becomes a reader, or the other way round. */
  under(lock: Lock, { lock_token, mode }: Asking): Grant | Refusal {
    const own = lock.grants.find(({ term }) => term.key === lock_token);
    if (own !== undefined) {
      const down = mode === "shared" && !reads(own) && own.slots.length === 0;
      if (!down && !(mode === "upgrade" && own.mode === "update")) {
        return invalid("a writer becomes a reader, and a reader in mode update the writer");
      }
      const waits = this.queue.some(({ under }) => under === own);
      return waits ? invalid("an upgrade of this reader waits already") : own;
    }
    const beginning = ending(String(lock_token), lock.name, NaN).replace("NaN", "");
    for (const [was, code] of this.#ended) {
      if (was.startsWith(beginning)) {
        return over(code, Number(was.slice(beginning.length)));
      }
    }
    return over("not_held", 0);
  }

  /** A holder as the client shows it. */
  holder(grant: Grant): LockHolder {
    return {
      clientId: grant.clientId,
      token: grant.token,
      remainingMs: Math.max(grant.term.until - this.now(), 0),
      metadata: grant.metadata === "" ? undefined : grant.metadata,
      acquiredAt: grant.acquiredAt,
      grantId: reads(grant) ? grant.number : undefined,
      slots: grant.slots,
    };
  }
}

/** Whether the request comes from the client that has the lock alone, and takes its own grant over. */
function isHeldBy({ grants }: Lock, { asking }: Pending): boolean {
  const [first] = grants;
  const isPlain = asking.permits === undefined && asking.mode === undefined;
  return (
    first !== undefined && isPlain && !reads(first) && first.slots.length === 0 && first.clientId === asking.client_id
  );
}

/** The slots of a semaphore that nobody has. */
function freeSlots(lock: Lock, of: number): number[] {
  const taken = new Set(lock.grants.flatMap(({ slots }) => slots));
  const all = Array.from({ length: lock.of > 0 ? lock.of : of }, (_, at) => at + 1);
  return all.filter((slot) => !taken.has(slot));
}

function ending(key: string, lock: string, number: number): string {
  return `${key} ${lock}\n${number}`;
}

function randomText(): string {
  return randomBytes(16).toString("hex");
}
