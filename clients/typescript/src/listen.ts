/**
 * Asks the server for news about leases that are held: one request for up to a hundred of them, which the server answers when
 * it has something to say.
 *
 *     grants ──► fresh ── 100 ms ──► groups of a hundred ──► POST /v1/listen, again and again
 *                                          ▲ a new grant ends the request under way, so that the next one names it
 *
 * It renews nothing, and whatever becomes of it, no lease is suspended: renewals decide that. Its connections and its address
 * are its own, so a listen that fails changes nothing for renewals. It does not keep the process running.
 */
import { setMaxListeners } from "node:events";

import { latest, sleepUntil } from "./clock.js";
import type { Endpoints } from "./endpoints.js";
import { asNumber, asObject, asText, Reply, type Fault, type Granted, type Json } from "./reply.js";
import type { Transport } from "./transport.js";

const MAX_GRANTS = 100;
/** A lease that is shorter than this is never named. */
const AFTER_MS = 100;
const WAIT_MS = 20_000;
const LEAST_WAIT_MS = 2_000;
/** For the answer, beyond the wait. */
const SLACK_MS = 5_000;
/** An answer that comes earlier, and says nothing, is not one that waited. */
const SOON_MS = 1_000;
const FIRST_BACKOFF_MS = 500;
const LONGEST_BACKOFF_MS = 10_000;
/** How a grant ended, where a renewal would be refused with the same code; else it is not_held. */
const CODES: ReadonlySet<string> = new Set(["expired", "revoked", "superseded"]);

/** The state of a lease that a listen needs. */
export interface Listened {
  readonly grant: Granted;
  /** Whether it believes in that lock. */
  holds(lock: string): boolean;
  /** The server ended the lock. False: that is no news, because an upgrade of the lease is under way. */
  ended(lock: string, code: string, reason: string | undefined): boolean;
  /** The number of requests that wait for one of its locks has changed. */
  wanted(): void;
}

/** One lock of a lease. */
export class Heard {
  waiters = 0;

  constructor(
    readonly lock: string,
    private readonly lease: Listened,
  ) {}

  get key(): string {
    return keyOf(this.lock, this.lease.grant.number);
  }

  get isHeld(): boolean {
    return this.lease.holds(this.lock);
  }

  get named(): Json {
    const { leaseKey, number } = this.lease.grant;
    return { resource_id: this.lock, lock_token: leaseKey, fencing_token: number, waiters: this.waiters };
  }

  /** Returns whether the next request says something else because of it. */
  takes(notice: Json): boolean {
    if (!this.isHeld) {
      return true;
    }
    if (notice["event"] === "ended") {
      const how = asText(notice["how"]) ?? "";
      return this.lease.ended(this.lock, CODES.has(how) ? how : "not_held", asText(notice["reason"]));
    }
    const waiters = notice["event"] === "wanted" ? Number(notice["waiters"]) : this.waiters;
    if (waiters === this.waiters) {
      return false;
    }
    this.waiters = waiters;
    this.lease.wanted();
    return true;
  }
}

/** Locks that one request names. */
interface Group {
  readonly heard: Map<string, Heard>;
  /** Those of the latest request. */
  named: ReadonlyMap<string, Heard>;
  isRunning: boolean;
  /** Ends the request under way: it lacks a lock, or the client is closed. */
  stale: AbortController;
}

/** That of one client. */
export class Listening {
  readonly #groups: Group[] = [];
  #fresh: Heard[] = [];
  #timer: NodeJS.Timeout | undefined;
  /** The server does not know the request, until something is known to have changed there. */
  #unknownAt: number | undefined;
  readonly #closing = new AbortController();
  readonly #running = new Set<Promise<void>>();

  constructor(
    private readonly isOn: boolean,
    /** That of all other requests. */
    private readonly main: Endpoints,
    /** One with these endpoints, and with connections of its own. */
    private readonly transport: (endpoints: Endpoints) => Transport,
  ) {
    setMaxListeners(0, this.#closing.signal);
  }

  add(heard: readonly Heard[]): void {
    if (!this.isOn || this.#closing.signal.aborted) {
      return;
    }
    this.#fresh.push(...heard);
    this.#timer ??= setTimeout(() => {
      this.#due();
    }, AFTER_MS).unref();
  }

  /** A server that did not know the request may be another one by now. */
  renewed(): void {
    if (this.#unknownAt !== undefined && !this.#isUnknown()) {
      this.add([]);
    }
  }

  #isUnknown(): boolean {
    return this.#unknownAt === this.main.breaks;
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#closing.abort();
    for (const { stale } of this.#groups) {
      stale.abort();
    }
    await Promise.all(this.#running);
  }

  /** Enters what is new, ends requests that lack it, and begins others. */
  #due(): void {
    this.#timer = undefined;
    const fresh = this.#fresh.filter(({ isHeld }) => isHeld);
    this.#fresh = [];
    for (const group of this.#groups.filter(({ isRunning }) => !isRunning)) {
      forgetEnded(group);
    }
    for (const heard of fresh) {
      this.#roomy().heard.set(heard.key, heard);
    }
    if (this.#isUnknown()) {
      return;
    }
    this.#unknownAt = undefined;
    for (const group of this.#groups) {
      if (group.isRunning && [...group.heard.keys()].some((key) => !group.named.has(key))) {
        group.stale.abort();
      } else if (!group.isRunning && group.heard.size > 0) {
        group.isRunning = true;
        const running = this.#listen(group).finally(() => this.#running.delete(running));
        this.#running.add(running);
      }
    }
  }

  #roomy(): Group {
    const found = this.#groups.find(({ heard }) => heard.size < MAX_GRANTS);
    if (found !== undefined) {
      return found;
    }
    const group = { heard: new Map(), named: new Map(), isRunning: false, stale: new AbortController() };
    this.#groups.push(group);
    return group;
  }

  async #listen(group: Group): Promise<void> {
    const transport = this.transport(this.main.apart());
    try {
      await this.#ask(transport, group);
    } catch (error) {
      // Such as a token's file that cannot be read: renewals say so, too.
      const why = error instanceof Error ? error.message : String(error);
      process.emitWarning(`losses are noticed at renewals only: ${why}`, "PalisadeWarning");
    } finally {
      group.isRunning = false;
      transport.close();
    }
  }

  /** Asks until there is nothing to ask for. */
  async #ask(transport: Transport, group: Group): Promise<void> {
    const pace = new Pace();
    while (this.#chooses(group)) {
      const { named } = group;
      const ended = group.stale.signal;
      const began = latest();
      const body = { grants: [...named.values()].map((heard) => heard.named), wait_ms: pace.waitMs };
      const differs = (answer: Reply): string | undefined => wrong(answer, named);
      const send = { method: "POST", path: "/v1/listen", body, differs, isBackground: true } as const;
      const answer = await transport.send(send, began + pace.waitMs + SLACK_MS, ended);
      if (answer instanceof Reply && answer.status === 404) {
        this.#unknownAt = this.main.breaks;
        return;
      }
      const pause = pace.after(answer, taken(answer, named), latest() - began, ended.aborted);
      if (pause > 0) {
        await sleepUntil(latest() + pause, this.#closing.signal, true);
      }
    }
  }

  /** Chooses the locks of the next request. False: there is nothing to ask. */
  #chooses(group: Group): boolean {
    forgetEnded(group);
    group.stale = new AbortController();
    group.named = new Map(group.heard);
    return group.named.size > 0 && !this.#closing.signal.aborted;
  }
}

function forgetEnded({ heard }: Group): void {
  for (const [key, one] of heard) {
    if (!one.isHeld) {
      heard.delete(key);
    }
  }
}

/** Why an answer is not that of a request about these. */
function wrong({ status, body }: Reply, named: ReadonlyMap<string, Heard>): string | undefined {
  if (status !== 200) {
    return undefined;
  }
  const notices: unknown = body["notices"];
  if (!Array.isArray(notices)) {
    return "notices are missing";
  }
  for (const one of notices as unknown[]) {
    const notice = asObject(one) ?? {};
    if (!named.has(keyOf(asText(notice["resource_id"]) ?? "", asNumber(notice["fencing_token"]) ?? 0))) {
      return "a notice is about another grant";
    }
    if (notice["event"] === "wanted" && asNumber(notice["waiters"]) === undefined) {
      return "waiters is missing or out of range";
    }
  }
  return undefined;
}

/** Whether the answer had news; undefined if it had no notices at all, or is none. */
function taken(answer: Reply | Fault, named: ReadonlyMap<string, Heard>): boolean | undefined {
  const notices = isGood(answer) ? (answer.body["notices"] as readonly Json[]) : [];
  if (notices.length === 0) {
    return undefined;
  }
  const heard = (notice: Json): Heard | undefined =>
    named.get(keyOf(String(notice["resource_id"]), Number(notice["fencing_token"])));
  return notices.map((notice) => heard(notice)?.takes(notice) === true).includes(true);
}

function isGood(answer: Reply | Fault): answer is Reply {
  return answer instanceof Reply && answer.status === 200;
}

function keyOf(lock: string, number: number): string {
  return `${number} ${lock}`;
}

/**
 * How soon it asks again, and how long the server may wait. A server, or a proxy, that answers at once whatever is asked gets
 * few requests, and one that ends long requests gets shorter ones.
 */
class Pace {
  waitMs = WAIT_MS;
  #backoff = FIRST_BACKOFF_MS;

  after(answer: Reply | Fault, news: boolean | undefined, took: number, wasEnded: boolean): number {
    if (wasEnded && (news === true || !isGood(answer))) {
      return 0;
    }
    if (news === true) {
      this.#backoff = FIRST_BACKOFF_MS;
      return 50 + Math.random() * 100;
    }
    if (isGood(answer) && news === undefined && took >= SOON_MS) {
      this.#backoff = FIRST_BACKOFF_MS;
      this.waitMs = Math.min(this.waitMs + 1_000, WAIT_MS);
      return 0;
    }
    if (!isGood(answer) && took >= SOON_MS) {
      this.waitMs = Math.max(Math.floor(this.waitMs / 2), LEAST_WAIT_MS);
    }
    const pause = this.#backoff * (0.5 + Math.random() / 2);
    this.#backoff = Math.min(2 * this.#backoff, LONGEST_BACKOFF_MS);
    return pause;
  }
}
