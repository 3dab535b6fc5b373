import { setMaxListeners } from "node:events";
import { inspect } from "node:util";

import { earliest, latest, sleepUntil } from "./clock.js";
import { Invalid, LeaseLost, PalisadeError } from "./errors.js";
import type { Pass } from "./fence/holder.js";
import { about, release, renewal } from "./grant.js";
import { exported } from "./handover.js";
import { HANDED_OVER, Hold, RELEASED } from "./hold.js";
import { Heard, type Listened, type Listening } from "./listen.js";
import { Notices, type Notice } from "./notices.js";
import { checkKind, checkOptions, checkSignal, checkText } from "./options.js";
import { asNumber, asText, readRenewal, Reply, unreadable, type Granted } from "./reply.js";
import { hears } from "./refusals.js";
import type { Reports } from "./reports.js";
import { LONGEST_PAUSE, repeat } from "./retry.js";
import type { Transport } from "./transport.js";
import { DAY, MAX_METADATA_BYTES, type Reader, type UpgradeOptions, type Wish } from "./wish.js";

/** The resource id under which a fence keeps the tokens of one slot of a semaphore. */
export function slotKey(lock: string, slot: number): string {
  checkText("the name of a lock", lock);
  checkKind("a slot", slot, Number.isSafeInteger(slot) && slot > 0, "a whole number from 1 on");
  return `${lock}~${slot}`;
}

const SHORTEST_PAUSE = 20;

/** The state that a release found: a lease that was held, one that was released before, or one that was over. */
export type Released = "released" | "already_released" | "over";
/** Of several locks a release reports the last of these that it found for any. */
const BY_WEIGHT: readonly Released[] = ["already_released", "released", "over"];

/** The client's members that a lease needs. @internal */
export interface Keeper {
  readonly transport: Transport;
  readonly patienceMs: number;
  readonly leases: Set<Lease>;
  readonly reports: Reports;
  readonly listening: Listening;
  deadline(t0: number, validForMs: number): number;
  acquire(wish: Wish): Promise<Lease>;
  inBackground(work: Promise<unknown>): void;
}

/**
 * A lock that is held, and renewed in the background, until it is released or lost.
 *
 * A fence takes it as it is; of several locks, a fence takes the `part` that is its own. While it is held it keeps the process running: release it, or close the client.
 */
export class Lease implements AsyncDisposable {
  readonly #keeper: Keeper;
  readonly #wish: Wish;
  readonly #grant: Granted;
  readonly #hold: Hold;
  readonly #notices: Notices;
  readonly #heard: readonly Heard[];
  readonly #ended = new AbortController();
  readonly #renewals = new AbortController();
  #announce: (loss: LeaseLost) => void = () => undefined;
  /** The locks that are renewed. */
  readonly #held: Set<string>;
  /** The locks of which the server has not acknowledged the release. */
  readonly #unreleased: Set<string>;
  /** The lock that the server said is over. */
  #lostLock: string | undefined;
  /** An upgrade is under way. */
  #upgrading = false;

  /** The name of the lock. Several locks have none, but `locks`: then it is "". */
  readonly lock: string;
  /** The names of all locks that were granted, sorted. */
  readonly locks: readonly string[];
  /** The id under which others see the holder. */
  readonly clientId: string;
  /** Resolves with the reason when the lease is lost, and never for one that was released. It never rejects. */
  readonly lost: Promise<LeaseLost>;

  private constructor(keeper: Keeper, wish: Wish, grant: Granted) {
    this.#keeper = keeper;
    this.#wish = wish;
    this.#grant = grant;
    this.locks = wish.locks;
    this.lock = wish.locks.length === 1 ? wish.lock : "";
    this.#held = new Set(wish.locks);
    this.#unreleased = new Set(wish.locks);
    this.clientId = wish.clientId;
    this.lost = new Promise((resolve) => {
      this.#announce = resolve;
    });
    // One signal may be given to any number of requests.
    setMaxListeners(0, this.#ended.signal);
    // An upgrade comes under the reader's lease, which was renewed while it waited.
    const until = Math.max(keeper.deadline(grant.t0, grant.validForMs), wish.reader?.deadline ?? 0);
    this.#hold = new Hold(until, (code) => {
      this.#over(code);
    });
    this.#notices = new Notices(this.#hold);
    const listened = this.#listened();
    this.#heard = this.locks.map((lock) => new Heard(lock, listened));
    keeper.leases.add(this);
    hears(this, (resource, operation, highest) => {
      // Several locks that were presented as one have no one name.
      const lock = this.locks.includes(resource) ? resource : wish.lock;
      keeper.reports.add({ lock, token: grant.token, resource, operation, highest });
    });
  }

  /** Throws `LeaseLost` if the process was stopped while the grant was on its way: then the grant is given back. @internal */
  static start(keeper: Keeper, wish: Wish, grant: Granted): Lease {
    const lease = new Lease(keeper, wish, grant);
    if (!lease.#hold.holds()) {
      lease.#giveBack();
      lease.check();
    }
    lease.#keep().catch(() => undefined);
    keeper.listening.add(lease.#heard);
    return lease;
  }

  /** The fencing token. It never changes, and stays readable after a loss. */
  get token(): number {
    return this.#grant.token;
  }

  /** The number that names the grant, as in `breakLock`: the token, or a reader's own number. It is not for fences. */
  get grantId(): number {
    return this.#grant.number;
  }

  /** Whether it is a reader's, also in mode update. */
  get shared(): boolean {
    return this.#wish.shared;
  }

  /** Whether it is the reader that may become the writer, by `upgrade`. */
  get update(): boolean {
    return this.#wish.mode === "update";
  }

  /** The slots of a semaphore that it has, rising; none for another kind of lock. */
  get slots(): readonly number[] {
    return this.#grant.slots;
  }

  /**
   * The resource ids of its slots. Claim each at its fence, with the token: a slot's next holder fences this one there, and
   * no other holder of the semaphore.
   */
  get slotKeys(): readonly string[] {
    return this.slots.map((slot) => slotKey(this.#wish.lock, slot));
  }

  /** The server, or the cluster, that granted the lock: tokens of two authorities are never compared. */
  get authority(): string {
    return this.#grant.authority;
  }

  /** How long the request stood in the queue. */
  get waitedMs(): number {
    return this.#grant.waitedMs;
  }

  /** Whether the holder may act, by its own clock, at this moment. */
  get held(): boolean {
    return this.#hold.holds();
  }

  /** How long the holder may still act if no further renewal is acknowledged; 0 after the loss or the release. */
  get remainingMs(): number {
    return this.#hold.remaining();
  }

  /**
   * Aborts when the lease is lost or released; its reason is a `LeaseLost`. A blocked event loop delays it, but not
   * `check`.
   */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /** Throws `LeaseLost` unless the holder may act, by its own clock, at this moment. No round trip, and no waiting. */
  check(): void {
    if (!this.#hold.holds()) {
      throw this.#loss();
    }
  }

  /**
   * Calls `callback` with each notice about this lease: suspended (a renewal failed), restored, wanted (others wait for the lock),
   * unwanted, lost. If the lease is suspended, wanted or lost already, it is told so at once. Nothing follows a loss, a release or
   * `export`.
   *
   * One call at a time: the next one waits for the promise that it returns, if it does, and is told the latest state. What it
   * throws becomes a warning of the process.
   */
  listen(callback: (notice: Notice) => unknown): void {
    checkKind("the callback", callback, typeof (callback as unknown) === "function", "a function that takes a notice");
    this.#notices.listen(callback);
  }

  /** How many requests wait for the lock, as far as this client knows; 0 once it is not held. */
  wanted(): number {
    return this.held ? this.#notices.waiters : 0;
  }

  /**
   * Gives the lock up: from the call on it is not held here, whatever the answer. It is repeated for the client's
   * patience. Releasing again is harmless.
   *
   * Throws `Unavailable` or `UnknownOutcome` if nobody answered: the lock is then free when the lease expires. Throws
   * `LeaseLost` for a lease that was handed over: its release is the adopter's.
   */
  async release(): Promise<Released> {
    this.#checkHere();
    this.#hold.end(RELEASED);
    return this.#release(this.#unreleased, latest() + this.#keeper.patienceMs);
  }

  /**
   * Gives one of several locks up: from the call on it is not held here, whatever the answer, and the others stay. With the
   * last one the lease is released.
   *
   * Throws the errors of `release`; then the lock stays taken until it is released again, at the latest by `release`.
   */
  async releasePart(name: string): Promise<Released> {
    this.#checkName(name);
    this.#checkHere();
    this.#held.delete(name);
    if (this.#held.size === 0) {
      return this.release();
    }
    return this.#release([name], latest() + this.#keeper.patienceMs);
  }

  /**
   * The proof for the fence of one of several locks: the token, with that lock's name. Throws `LeaseLost` for a lock that is no
   * longer held.
   */
  part(name: string): Pass & { check(): void; readonly remainingMs: number } {
    this.#checkName(name);
    const check = (): void => {
      if (!this.#held.has(name)) {
        throw new LeaseLost("not_held", name, this.token);
      }
      this.check();
    };
    check();
    const remaining = (): number => this.remainingMs;
    const { token, authority } = this;
    const part = {
      token,
      authority,
      lock: name,
      check,
      get remainingMs() {
        return remaining();
      },
    };
    const { reports } = this.#keeper;
    hears(part, (resource, operation, highest) => {
      reports.add({ lock: name, token, resource, operation, highest });
    });
    return part;
  }

  /**
   * Makes a writer a reader, in one step: no other writer gets in between. From the call on this lease is not held. The one
   * that is returned has a new token, with which it claims before it reads, and is released by itself. A reader is returned
   * as it is.
   *
   * Throws `LeaseLost` for a lease that is lost, and the errors of `acquire`; then the lock is released in the background.
   */
  async downgrade(options: { readonly signal?: AbortSignal } = {}): Promise<Lease> {
    checkOptions("downgrade", options, ["signal"]);
    checkSignal(options.signal);
    if (this.shared) {
      return this;
    }
    this.check();
    if (this.slots.length > 0 || this.locks.length > 1) {
      throw new Invalid("permits of a semaphore, and several locks, have no shared mode");
    }
    options.signal?.throwIfAborted();
    const reader = this.#wish.asReader(this.#grant, options.signal);
    this.#hold.end(RELEASED);
    try {
      return await this.#keeper.acquire(reader);
    } catch (error) {
      this.#giveBack();
      throw error;
    }
  }

  /**
   * Makes the reader in mode update the writer, in one step: nobody else writes in between. It goes ahead of the queue and
   * waits for the other readers alone. The lease that is returned has a new token, with which it claims before it writes; this
   * one is not held any more then. Until then it is held and renewed as before, also after a `LockHeld`, which names a reader
   * that still held the lock.
   *
   * Throws `LeaseLost` if this lease is lost meanwhile, and the errors of `acquire`. If an upgrade that is given up was granted
   * by then, or can be granted at that moment, the lock is released, and this lease is lost.
   */
  async upgrade(options: UpgradeOptions = {}): Promise<Lease> {
    checkOptions("upgrade", options, ["waitMs", "signal"]);
    checkSignal(options.signal);
    this.check();
    if (!this.update) {
      throw new Invalid("only a reader in mode update can be upgraded: acquire it with update: true");
    }
    if (this.#upgrading) {
      throw new Invalid(`an upgrade of ${this.#quoted()} is under way already`);
    }
    options.signal?.throwIfAborted();
    const lost = new AbortController();
    void this.lost.then((loss) => {
      lost.abort(loss);
    });
    const signal = options.signal === undefined ? lost.signal : AbortSignal.any([options.signal, lost.signal]);
    const writer = this.#wish.asWriter(this.#grant, this.#reader(), { ...options, signal });
    this.#upgrading = true;
    try {
      return await this.#keeper.acquire(writer);
    } finally {
      this.#upgrading = false;
    }
  }

  #listened(): Listened {
    return {
      grant: this.#grant,
      holds: (lock) => this.#hold.holds() && this.#held.has(lock),
      ended: (lock, code, reason) => {
        if (this.#upgrading && code === "superseded") {
          return false; // By its own upgrade, whose answer is on its way.
        }
        this.#lose(lock, code, reason);
        return true;
      },
      wanted: () => {
        const counts = this.#heard.filter(({ lock }) => this.#held.has(lock)).map(({ waiters }) => waiters);
        this.#notices.want(counts.reduce((all, one) => all + one, 0));
      },
    };
  }

  #reader(): Reader {
    const hold = this.#hold;
    return {
      get held() {
        return hold.holds();
      },
      get deadline() {
        return hold.deadline;
      },
      lose: (code) => {
        this.#lose(this.#wish.lock, code);
      },
      makeWay: () => {
        this.check();
        hold.end(RELEASED);
      },
      check: () => {
        this.check();
      },
    };
  }

  /**
   * Changes the value that this leader announces, its metadata: at most 256 bytes; "" takes it back. The token stays, and
   * observers receive the change. Call it again only after it has returned: of two concurrent calls either value may remain.
   *
   * It is repeated for the client's patience. Throws the errors of `release`, `LeaseLost`, and `Invalid` for a reader, permits
   * and several locks.
   */
  async proclaim(value: string): Promise<void> {
    checkText("the value", value);
    const bytes = Buffer.byteLength(value);
    if (bytes > MAX_METADATA_BYTES) {
      throw new Invalid(`the value has ${bytes} bytes; 0 to ${MAX_METADATA_BYTES} are allowed`);
    }
    if (this.shared || this.slots.length > 0 || this.locks.length > 1) {
      throw new Invalid("a leader holds one exclusive lock: readers, permits and several locks have no value");
    }
    this.check();
    const said = about(this.#grant, this.lock, "/proclaim", { fencing_token: this.token }, { value });
    const answer = await repeat(this.#keeper.transport, said, latest() + this.#keeper.patienceMs);
    if (answer.over) {
      this.#lose(this.lock, answer.code);
      throw new LeaseLost(answer.code, this.lock, this.token);
    }
    if (answer.status !== 200) {
      throw answer.error();
    }
  }

  /**
   * Hands the lease over: the text is for `client.adopt`, in another process or on another machine. From the call on the lease
   * is not held here: it is not renewed, `check` throws a `LeaseLost` with the code handed_over, and the end of the scope sends
   * nothing. It is no loss, so `lost` stays pending.
   *
   * The text contains the lease key, which allows to renew and to release: treat it as a secret. Give it to one adopter: two
   * could not tell that both hold the lease, and the fence takes the token from either. An adopter has to be there before the
   * lease expires.
   *
   * Throws `LeaseLost` if the lease is not held, and `Invalid` while an upgrade is under way.
   */
  export(): string {
    if (this.#upgrading) {
      throw new Invalid(`an upgrade of ${this.#quoted()} is under way: hand over the lease that it returns`);
    }
    this.check();
    const held = this.locks.filter((lock) => this.#held.has(lock));
    const text = exported(this.#wish, this.#grant, held);
    this.#hold.end(HANDED_OVER);
    // A part that was given up, and whose release nobody acknowledged, would be renewed with the others.
    this.#giveBack([...this.#unreleased].filter((lock) => !held.includes(lock)));
    return text;
  }

  /**
   * The token as the authority signs it, for resources that check it with `palisade-client/fence/sequencer` or with `--keys`.
   * `name`: which of several locks. It is a secret until the next grant: send it with TLS only, and keep it out of logs.
   *
   * It asks the server for the client's patience. Throws `LeaseLost` if the lease is over, and `Unavailable` or
   * `UnknownOutcome` if nobody answers.
   */
  async sequencer(name: string = this.lock): Promise<string> {
    if (name === "") {
      throw new Invalid(`name the lock: one of ${this.#quoted()}`);
    }
    this.part(name);
    const until = latest() + this.#keeper.patienceMs;
    const answer = await repeat(
      this.#keeper.transport,
      about(this.#grant, name, "/sequencer", { fencing_token: this.token }),
      until,
    );
    if (answer.over) {
      if (this.#held.has(name)) {
        this.#lose(name, answer.code);
      }
      throw new LeaseLost(answer.code, name, this.token);
    }
    if (answer.status !== 200) {
      throw answer.error();
    }
    // The answer has no new deadline, so the old one stays.
    const sequencer = asText(answer.body["sequencer"]);
    if (sequencer === undefined) {
      throw unreadable("sequencer is missing");
    }
    return sequencer;
  }

  /** The end of `await using`. A release that is not acknowledged is no error: the lease expires. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (!(error instanceof PalisadeError)) {
        throw error;
      }
    }
  }

  /** Ends the renewal, and does not keep the process running any more. @internal */
  leave(): void {
    this.#renewals.abort();
    this.#hold.unref();
  }

  /** Never contains the lease key. */
  toString(): string {
    const state = this.#hold.reason ?? `${Math.round(this.remainingMs)} ms`;
    return `lease of ${this.#quoted()}, fencing token ${this.token}: ${state}`;
  }

  [inspect.custom](): string {
    return `Lease { ${this.toString()} }`;
  }

  #quoted(): string {
    return this.locks.map((name) => JSON.stringify(name)).join(", ");
  }

  #checkName(name: string): void {
    checkText("the name of a lock", name);
    if (!this.locks.includes(name)) {
      throw new Invalid(`${JSON.stringify(name)} is not a lock of this lease: it has ${this.#quoted()}`);
    }
  }

  /** The release of a lease that was handed over is the adopter's. */
  #checkHere(): void {
    if (this.#hold.reason === HANDED_OVER) {
      throw this.#loss();
    }
  }

  #giveBack(locks: Iterable<string> = this.#unreleased): void {
    this.#keeper.inBackground(this.#release(locks, latest() + 2 * this.#wish.ttlMs));
  }

  async #release(locks: Iterable<string>, until: number): Promise<Released> {
    let heaviest = 0;
    for (const lock of [...locks]) {
      const answer = await repeat(this.#keeper.transport, release(this.#grant, lock), until);
      if (!answer.over && answer.status !== 200) {
        throw answer.error();
      }
      if (!answer.over) {
        this.#unreleased.delete(lock);
      }
      const found = answer.over ? "over" : answer.body["already_released"] === true ? "already_released" : "released";
      heaviest = Math.max(heaviest, BY_WEIGHT.indexOf(found));
    }
    return BY_WEIGHT[heaviest] ?? "over";
  }

  /** Renews until the hold is over: at a third of the remaining time, or soon after a failure. */
  async #keep(): Promise<void> {
    const deadlines = new Map(this.locks.map((lock) => [lock, this.#hold.deadline]));
    let longest = DAY;
    for (;;) {
      const now = latest();
      const third = Math.max((this.#hold.deadline - now) / 3, SHORTEST_PAUSE);
      await sleepUntil(now + Math.min(third, longest), this.#renewals.signal);
      if (this.#renewals.signal.aborted || !this.#hold.holds()) {
        return;
      }
      longest = (await this.#renew(deadlines)) ? DAY : LONGEST_PAUSE;
    }
  }

  /**
   * Makes one attempt for each lock that is held, because the server looks at the named one only; first for the one that was
   * acknowledged longest ago. The earliest of their deadlines counts. Tells whether all were acknowledged.
   */
  async #renew(deadlines: Map<string, number>): Promise<boolean> {
    const of = (lock: string): number => deadlines.get(lock) ?? 0;
    let waiters: number | undefined;
    for (const lock of [...this.#held].sort((one, other) => of(one) - of(other))) {
      if (!this.#hold.holds()) {
        return false;
      }
      const t0 = earliest();
      const now = latest();
      const until = now + Math.max((this.#hold.deadline - now) / 3, SHORTEST_PAUSE);
      const answer = await this.#keeper.transport.send(renewal(this.#grant, lock), until, this.#renewals.signal);
      if (!(answer instanceof Reply)) {
        return this.#failed();
      }
      if (answer.over && !this.#held.has(lock)) {
        continue; // It was released here meanwhile.
      }
      if (answer.over && this.#upgrading && answer.code === "superseded") {
        return false; // By its own upgrade, whose answer is on its way.
      }
      if (answer.over) {
        this.#lose(lock, answer.code);
        return false;
      }
      const validForMs = answer.status === 200 ? readRenewal(answer) : undefined;
      if (validForMs === undefined) {
        return this.#failed();
      }
      waiters = asNumber(answer.body["waiters"]);
      deadlines.set(lock, this.#keeper.deadline(t0, validForMs));
      this.#hold.renewed(Math.min(of(lock), ...[...this.#held].map(of)));
    }
    this.#renewed(waiters);
    return true;
  }

  #failed(): false {
    if (this.#hold.holds()) {
      this.#notices.suspend();
    }
    return false;
  }

  /** So many requests wait for all of its locks, if the server said it. */
  #renewed(waiters: number | undefined): void {
    this.#notices.restore();
    if (waiters !== undefined) {
      for (const heard of this.#heard) {
        heard.waiters = this.locks.length === 1 || waiters === 0 ? waiters : heard.waiters;
      }
      this.#notices.want(waiters);
    }
    this.#keeper.listening.renewed();
  }

  /** The server ended a lock. If the lease has several locks, the others are released, because they are useless without it. */
  #lose(lock: string, code: string, reason?: string): void {
    if (!this.#hold.holds()) {
      return;
    }
    this.#lostLock = lock;
    this.#hold.end(code, reason);
    if (this.locks.length > 1) {
      this.#giveBack();
    }
  }

  #over(code: string): void {
    this.#keeper.leases.delete(this);
    this.#renewals.abort();
    const loss = this.#loss();
    if (code !== RELEASED && code !== HANDED_OVER) {
      this.#announce(loss);
      this.#notices.lose();
    }
    this.#ended.abort(loss);
  }

  #loss(): LeaseLost {
    const { reason = "not_held", operatorsReason } = this.#hold;
    return new LeaseLost(reason, this.#lostLock ?? this.#wish.lock, this.token, operatorsReason);
  }
}
