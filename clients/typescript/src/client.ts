import { setMaxListeners } from "node:events";

import { Bearer } from "./bearer.js";
import type { TlsOptions } from "./certificates.js";
import { latest, sleepUntil } from "./clock.js";
import { Endpoints } from "./endpoints.js";
import { Invalid, LeaseLost, LockHeld, type LockHolder } from "./errors.js";
import { release } from "./grant.js";
import { adopt, readExported, type Exported } from "./handover.js";
import { observe, type Leader, type Looked, type ObserveOptions } from "./election.js";
import { THROUGH, type Through } from "./exchange.js";
import { deadline } from "./hold.js";
import { Lease, type Keeper } from "./lease.js";
import { Listening } from "./listen.js";
import { checkKind, checkOptions, checkSignal, checkText, short } from "./options.js";
import { asNumber, asObject, asText, difference, readHolder, unreadable, type Json, type Reply } from "./reply.js";
import { Reports } from "./reports.js";
import { repeat } from "./retry.js";
import { Transport } from "./transport.js";
import { changes, watch, type WatchEvent, type WatchOptions } from "./watch.js";
import { Web } from "./web.js";
import { ACQUIRE_OPTIONS, checkName, DAY, lockPath, Wish, within, type AcquireOptions } from "./wish.js";

const DEFAULT_PATIENCE = 5_000;

export interface ClientOptions {
  /**
   * The addresses of the servers, http://HOST:PORT or https://HOST:PORT, of which one leads; in one text they are
   * separated by commas. Without them they are those of PALISADE_URL, or else http://127.0.0.1:7420.
   */
  readonly urls?: string | readonly string[];
  /**
   * A bearer token, sent with every request, with TLS or within this machine only. Without it and `tokenFile` it is that of
   * PALISADE_TOKEN.
   */
  readonly token?: string;
  /** A file with the bearer token. It is read again for each request, so a token may be replaced while the client runs. */
  readonly tokenFile?: string;
  readonly tls?: TlsOptions;
  /** How long a call is repeated while there is no answer, 1 – 86,400,000 ms; an acquire for that long after its wait. */
  readonly patienceMs?: number;
  /**
   * Subtracted from each deadline: the time to leave between a check and the effect of the next operation, 0 – 86,400,000
   * ms. The default is 0.
   */
  readonly marginMs?: number;
  /**
   * Whether a fence that refuses a token of this client as stale is reported to the server, in the background, for `palisade
   * history`. The default is true.
   */
  readonly reportRefusals?: boolean;
  /**
   * Whether a long request for each hundred leases that are held asks the server for news, so that a lease that an operator
   * revokes is lost within a second, and not at its next renewal. The default is true.
   */
  readonly notices?: boolean;
}

/** The server's information about a lock. */
export interface LockInfo {
  readonly lock: string;
  /** Undefined while the lock is free; of several the oldest. */
  readonly holder: LockHolder | undefined;
  readonly waiters: number;
  /** How many readers, or holders of permits, have it; 0 if it is held alone. */
  readonly readerCount: number;
  /** The oldest of them, at most 64. Only where one lock is shown. */
  readonly readers: readonly LockHolder[];
  /** How many permits a semaphore has; undefined for another lock. */
  readonly permits: number | undefined;
}

/** The server's description of itself. */
export interface Status {
  readonly authority: string;
  readonly incarnation: string;
  /** Undefined if no token is left. */
  readonly nextToken: number | undefined;
  readonly locks: number;
  readonly leases: number;
  readonly waiters: number;
  readonly version: string;
}

/**
 * Asks a Palisade server, or the servers of a cluster, for locks. Share one: it keeps connections. Connections that are
 * idle do not keep the process running; leases that are held do.
 */
export class Client implements AsyncDisposable {
  readonly #transport: Transport;
  readonly #patienceMs: number;
  readonly #marginMs: number;
  readonly #background = new Set<Promise<unknown>>();
  readonly #leases = new Set<Lease>();
  readonly #closing = new AbortController();
  readonly #reports: Reports;
  readonly #listening: Listening;

  /** Sends nothing yet. Throws `Invalid`. */
  constructor(options: ClientOptions = {}) {
    checkOptions("new Client", options, [
      "urls",
      "token",
      "tokenFile",
      "tls",
      "patienceMs",
      "marginMs",
      "reportRefusals",
      "notices",
    ]);
    const reports = isOn("reportRefusals", options.reportRefusals);
    const notices = isOn("notices", options.notices);
    this.#patienceMs = within("patienceMs", options.patienceMs ?? DEFAULT_PATIENCE, 1, DAY);
    this.#marginMs = within("marginMs", options.marginMs ?? 0, 0, DAY);
    const transport = transports(options);
    this.#transport = transport();
    this.#reports = new Reports(reports, this.#transport);
    this.#listening = new Listening(notices, this.#transport.endpoints, transport);
    setMaxListeners(0, this.#closing.signal);
  }

  /**
   * Waits in the queue for as long as `waitMs` says, and returns a lease that is renewed in the background until it is
   * released or lost.
   *
   * However an acquire fails, no lock stays behind: a request that may have been granted is abandoned in the background.
   *
   * Several locks, 1 – 64, each named once in any order, are granted at once, all or none, with one token; nothing is held
   * while it waits. Claim every resource before the first read of any, each with `lease.part(name)`. They are exclusive:
   * without `shared`, `permits` and delays.
   *
   * Throws `LockHeld` if another client keeps the lock, `Unavailable` or `UnknownOutcome` if nobody answers, or the
   * signal's reason.
   */
  async acquire(lock: string | readonly string[], options: AcquireOptions = {}): Promise<Lease> {
    checkOptions("acquire", options, ACQUIRE_OPTIONS);
    return this.#grant(new Wish(lock, options));
  }

  /** Before it ends, `close` waits for it: it may leave something to give up. */
  async #grant(wish: Wish): Promise<Lease> {
    this.#checkOpen();
    const acquire = this.#acquire(wish);
    this.#inBackground(acquire);
    return acquire;
  }

  async #acquire(wish: Wish): Promise<Lease> {
    const closing = this.#closing.signal;
    const signal = wish.signal === undefined ? closing : AbortSignal.any([wish.signal, closing]);
    try {
      const grant = await wish.acquire(this.#transport, this.#patienceMs, signal);
      const lease = Lease.start(this.#keeper, wish, grant);
      if (signal.aborted) {
        // The grant and the abort met: nobody may be waiting for the lease any more.
        this.#inBackground(lease.release());
        signal.throwIfAborted();
      }
      return lease;
    } finally {
      if (wish.mayHaveHappened) {
        this.#inBackground(wish.abandon(this.#transport));
      }
    }
  }

  /**
   * Takes over a lease that `lease.export()` handed over: it is renewed at once, and held from the first renewal that is
   * acknowledged, by this machine's clock. Its token is the same. It is released or lost as any other lease. The signal ends
   * the call, and not the lease later.
   *
   * Throws `LeaseLost` if the lease is over, `Unavailable` if nobody answers, and `Invalid` if the text is not one of an
   * exported lease. Then nothing is held here. If one of several locks is over, the others are released.
   */
  async adopt(text: string, options: { readonly signal?: AbortSignal } = {}): Promise<Lease> {
    checkOptions("adopt", options, ["signal"]);
    checkSignal(options.signal);
    this.#checkOpen();
    const adopted = this.#adopt(readExported(text), options.signal);
    this.#inBackground(adopted);
    return adopted;
  }

  async #adopt(found: Exported, given: AbortSignal | undefined): Promise<Lease> {
    const closing = this.#closing.signal;
    const signal = given === undefined ? closing : AbortSignal.any([given, closing]);
    const keeper = this.#keeper;
    try {
      const grant = await adopt(
        this.#transport,
        found,
        this.#patienceMs,
        (t0, validForMs) => keeper.deadline(t0, validForMs),
        signal,
      );
      // It was not announced to anybody yet, so the text may be adopted again.
      signal.throwIfAborted();
      return Lease.start(keeper, found.wish, grant);
    } catch (error) {
      if (error instanceof LeaseLost && found.wish.locks.length > 1) {
        this.#inBackground(this.#giveUp(found));
      }
      throw error;
    }
  }

  /** Several locks are useless without the one that is over. */
  async #giveUp({ wish, grant }: Exported): Promise<void> {
    for (const lock of wish.locks) {
      await repeat(this.#transport, release(grant, lock), latest() + 2 * wish.ttlMs);
    }
  }

  /** As `acquire`, and undefined instead of `LockHeld`. It asks once, without waiting, unless `waitMs` is given. */
  async tryAcquire(lock: string | readonly string[], options: AcquireOptions = {}): Promise<Lease | undefined> {
    checkOptions("tryAcquire", options, ACQUIRE_OPTIONS);
    try {
      return await this.acquire(lock, { ...options, waitMs: options.waitMs ?? 0 });
    } catch (error) {
      if (error instanceof LockHeld) {
        return undefined;
      }
      throw error;
    }
  }

  /**
   * Holds a lock while `work` runs, and releases it when `work` ends. Pass `lease.signal` to the functions that `work`
   * calls. If `work` fails because that signal aborted at a loss, the error is the `LeaseLost`.
   */
  async withLock<Result>(
    lock: string | readonly string[],
    options: AcquireOptions,
    work: (lease: Lease) => Result | PromiseLike<Result>,
  ): Promise<Result> {
    if (typeof (work as unknown) !== "function") {
      throw new TypeError(
        `palisade: withLock(lock, options, work) calls work with the lease, and work is ${short(work)}`,
      );
    }
    const lease = await this.acquire(lock, options);
    try {
      return await work(lease);
    } catch (error) {
      if (isAbort(error)) {
        lease.check();
      }
      throw error;
    } finally {
      await lease[Symbol.asyncDispose]();
    }
  }

  /** The holder of a lock and the number of waiters. */
  async show(lock: string): Promise<LockInfo> {
    return lockInfo(await this.#shown(lock));
  }

  async #shown(lock: string): Promise<Json> {
    checkName(lock);
    return this.#ask("GET", lockPath(lock), undefined, lock);
  }

  /**
   * The leader of an election: the holder of the lock, and its value; undefined if nobody leads. Campaigning is `acquire` with
   * `metadata`, which is the value, and resigning is a release.
   */
  async leader(name: string): Promise<Leader | undefined> {
    return (await this.#look(name)).leader;
  }

  async #look(name: string): Promise<Looked> {
    const told = await this.#shown(name);
    const { holder, readerCount } = lockInfo(told);
    // A shared lock has no leader.
    const leads = readerCount === 0 ? holder : undefined;
    const leader = leads && { clientId: leads.clientId, token: leads.token, value: leads.metadata };
    return { leader, revision: asNumber(told["revision"]) ?? 0 };
  }

  /**
   * Follows an election without end, across broken connections: first the present leader, then each change; undefined while
   * nobody leads. Leave the loop, or abort the signal, to end it.
   *
   * It may skip a leader or a value that another one soon followed, never goes back, and always comes to the latest one.
   */
  observe(name: string, options: ObserveOptions = {}): AsyncGenerator<Leader | undefined, void, void> {
    checkName(name);
    checkOptions("observe", options, ["signal"]);
    checkSignal(options.signal);
    const events = changes(this.#transport, name, options, this.#patienceMs, () => {
      this.#checkOpen();
    });
    return observe(events, name, () => this.#look(name), options.signal);
  }

  /** The locks that are held and whose names start with `prefix`, page by page. */
  async *list(prefix = ""): AsyncGenerator<LockInfo, void, void> {
    checkText("the prefix", prefix);
    let cursor: string | undefined;
    do {
      const query = new URLSearchParams({ prefix, limit: "1000", ...(cursor === undefined ? {} : { cursor }) });
      const page = await this.#ask("GET", `/v1/locks?${query.toString()}`);
      if (!Array.isArray(page["locks"])) {
        throw unreadable("locks is missing");
      }
      for (const lock of page["locks"] as unknown[]) {
        yield lockInfo(asObject(lock) ?? {});
      }
      cursor = asText(page["next_cursor"]);
    } while (cursor !== undefined);
  }

  /**
   * Changes of the locks whose names start with `prefix`, without end, across broken connections. Leave the loop, or
   * abort the signal, to end it.
   */
  watch(prefix = "", options: WatchOptions = {}): AsyncGenerator<WatchEvent, void, void> {
    checkText("the prefix", prefix);
    checkOptions("watch", options, ["after", "signal"]);
    checkSignal(options.signal);
    if (options.after !== undefined && asNumber(options.after) === undefined) {
      throw new TypeError(
        `palisade: watch begins after a revision, a whole number, and after is ${short(options.after)}`,
      );
    }
    return watch(this.#transport, prefix, options, this.#patienceMs, () => {
      this.#checkOpen();
    });
  }

  /** Takes a lock from its holder. The token is that of the current grant, or a reader's grant id: proof that the operator has looked. */
  async breakLock(lock: string, token: number, reason = ""): Promise<void> {
    checkName(lock);
    checkKind("the token", token, asNumber(token) !== undefined, "a whole number");
    checkText("the reason", reason);
    await this.#ask("POST", lockPath(lock, "/break"), { fencing_token: token, reason }, lock);
  }

  /**
   * Gives a semaphore that is in use another number of permits. Holders keep their slots; a lower number takes effect as
   * they come free.
   */
  async resize(lock: string, permits: number): Promise<void> {
    checkName(lock);
    checkKind("the number of permits", permits, asNumber(permits) !== undefined, "a whole number");
    await this.#ask("POST", lockPath(lock, "/permits"), { of: permits }, lock);
  }

  async status(): Promise<Status> {
    const told = await this.#ask("GET", "/v1/status");
    return {
      authority: asText(told["authority"]) ?? "",
      incarnation: asText(told["incarnation"]) ?? "",
      nextToken: asNumber(told["next_token"]),
      locks: asNumber(told["locks"]) ?? 0,
      leases: asNumber(told["leases"]) ?? 0,
      waiters: asNumber(told["waiters"]) ?? 0,
      version: asText(told["version"]) ?? "",
    };
  }

  /** How many refusals of a fence could not be reported: nobody answered, or too many came at once. */
  get reportsDropped(): number {
    return this.#reports.dropped;
  }

  /**
   * Ends the connections. Acquires under way reject with `Invalid`. First gives up everything that they and others left to
   * give up, at most for the client's patience, and waits at most 250 ms for reports of refusals. Leases that are still held are no longer renewed: release them first.
   */
  async close(): Promise<void> {
    if (this.#closing.signal.aborted) {
      return;
    }
    this.#closing.abort(new Invalid("the client is closed"));
    for (const lease of this.#leases) {
      lease.leave();
    }
    this.#leases.clear();
    const patience = new AbortController();
    const patient = sleepUntil(latest() + this.#patienceMs, patience.signal);
    await Promise.all([this.#listening.close(), this.#reports.close(), Promise.race([this.#settled(), patient])]);
    patience.abort();
    this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Background work may start more background work. */
  async #settled(): Promise<void> {
    while (this.#background.size > 0) {
      await Promise.all(this.#background);
    }
  }

  get #keeper(): Keeper {
    return {
      transport: this.#transport,
      patienceMs: this.#patienceMs,
      leases: this.#leases,
      reports: this.#reports,
      listening: this.#listening,
      deadline: (t0, validForMs) => deadline(t0, validForMs, this.#marginMs),
      acquire: (wish) => this.#grant(wish),
      inBackground: (work) => {
        this.#inBackground(work);
      },
    };
  }

  /** Sends a request whose only good answer is 200, for the client's patience; `lock`: the lock that it names. */
  async #ask(method: "GET" | "POST", path: string, body?: object, lock?: string): Promise<Json> {
    this.#checkOpen();
    const differs = (answer: Reply): string | undefined =>
      answer.status === 200 && lock !== undefined ? difference(answer, { resource_id: lock }) : undefined;
    const send = { method, path, differs, ...(body === undefined ? {} : { body }) };
    const answer = await repeat(this.#transport, send, latest() + this.#patienceMs);
    if (answer.status !== 200) {
      throw answer.error();
    }
    return answer.body;
  }

  /** Nobody waits for this work, and its failure is ignored: a grant that could not be given up expires. */
  #inBackground(work: Promise<unknown>): void {
    const settled = work
      .catch(() => undefined)
      .finally(() => {
        this.#background.delete(settled);
      });
    this.#background.add(settled);
  }

  #checkOpen(): void {
    this.#closing.signal.throwIfAborted();
  }
}

function isOn(option: string, given: unknown): boolean {
  const value = given ?? true;
  checkKind(`the option ${option}`, value, typeof value === "boolean", "true or false");
  return value === true;
}

/** Makes transports with connections of their own: HTTP, or the double's way. */
function transports(options: ClientOptions): (endpoints?: Endpoints) => Transport {
  const way = (options as Through)[THROUGH];
  if (way !== undefined) {
    return (endpoints = new Endpoints("http://memory")) => new Transport(endpoints, way());
  }
  const bearer = new Bearer(options);
  return (endpoints = new Endpoints(options.urls, bearer.isSet)) =>
    new Transport(endpoints, new Web(bearer, options.tls));
}

function lockInfo(told: Json): LockInfo {
  const lock = asText(told["resource_id"]);
  if (lock === undefined) {
    throw unreadable("resource_id is missing");
  }
  const readers = Array.isArray(told["readers"]) ? (told["readers"] as unknown[]) : [];
  return {
    lock,
    holder: readHolder(told["holder"]),
    waiters: asNumber(told["waiters"]) ?? 0,
    readerCount: asNumber(told["reader_count"]) ?? 0,
    readers: readers.map(readHolder).filter((reader) => reader !== undefined),
    permits: asNumber(told["permits"]),
  };
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
