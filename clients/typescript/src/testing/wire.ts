import type { Answer, Asked, Exchange, Opened } from "../exchange.js";
import type { Json } from "../reply.js";
import {
  invalid,
  over,
  reads,
  type Asking,
  type Authority,
  type Grant,
  type Lock,
  type Pending,
  type Refusal,
} from "./authority.js";

const COMMENT_TIME = 15_000;
const MAX_PERMITS = 64;
const MAX_LISTENED = 100;
const MAX_LISTEN_WAIT = 60_000;

type Told = readonly [status: number, body: Json];

/** The way from one client to the server in memory: the paths of docs/reference/protocol.md. */
export class Wire implements Exchange {
  /** What is under way. */
  readonly #open = new Set<AbortController>();

  constructor(private readonly authority: Authority) {}

  open(_address: string, { path, body }: Asked): Opened {
    const end = new AbortController();
    // Another process would not see later changes of it either.
    const text = JSON.stringify(body ?? {});
    const answer = this.#carryOut(path, JSON.parse(text) as Json, end.signal);
    const isOver = (): void => {
      this.#open.delete(end);
    };
    this.#open.add(end);
    answer.then(path.startsWith("/v1/watch") ? () => undefined : isOver, isOver);
    const destroy = (why: Error): void => {
      isOver();
      end.abort(why);
    };
    return { answer, sent: () => true, destroy };
  }

  reset(): void {
    // There are no connections.
  }

  hint(): string {
    return "";
  }

  close(): void {
    for (const end of this.#open) {
      end.abort(new Error("the client is closed"));
    }
    this.#open.clear();
  }

  async #carryOut(path: string, body: Json, signal: AbortSignal): Promise<Answer> {
    await this.#untilAnswering(signal);
    const url = new URL(path, "http://memory");
    if (url.pathname === "/v1/watch") {
      return this.#watch(url.searchParams, signal);
    }
    const told = await this.#told(url, body, signal);
    // The server may have been stalled while the request was carried out.
    await this.#untilAnswering(signal);
    return asAnswer(told);
  }

  async #untilAnswering(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    while (this.authority.state === "stalled") {
      await this.authority.change(signal);
    }
  }

  async #told(url: URL, body: Json, signal: AbortSignal): Promise<Told> {
    const { authority } = this;
    if (authority.state === "down") {
      return this.#down();
    }
    authority.settle();
    const [what = "", escaped = "", verb = ""] = url.pathname.replace("/v1/", "").split("/");
    const name = decodeURIComponent(escaped);
    try {
      if (what === "locks" && verb === "acquire") {
        return await this.#acquire(name, body as unknown as Asking, signal);
      }
      return what === "listen"
        ? await this.#listen(body, signal)
        : this.#answer(`${what} ${verb}`, name, body, url.searchParams);
    } finally {
      authority.settle();
    }
  }

  #down(): Told {
    return this.#refused({ status: 503, code: "unavailable", message: "the double is down" });
  }

  #answer(what: string, name: string, body: Json, query: URLSearchParams): Told {
    const { authority } = this;
    switch (what) {
      case "status ": {
        const held = [...authority.locks.values()].filter(({ grants }) => grants.length > 0);
        const leases = new Set(held.flatMap(({ grants }) => grants.map(({ term }) => term))).size;
        const counts = { locks: held.length, leases, waiters: authority.queue.length };
        const { id, token } = authority;
        return [200, { authority: id, incarnation: id, next_token: token + 1, ...counts, version: "memory" }];
      }
      case "requests abandon":
        return this.#abandon(name);
      case "locks ":
        return name === "" ? this.#list(query) : [200, this.#show(authority.lock(name), true)];
      case "locks renew":
        return this.#renew(name, body);
      case "locks release":
        return this.#release(name, body);
      case "locks proclaim":
        return this.#proclaim(name, body);
      case "locks break":
        return this.#break(name, body);
      case "locks permits": {
        const lock = authority.lock(name);
        const of = Number(body["of"]);
        if (of < 1 || of > MAX_PERMITS) {
          return this.#refused(invalid(`of: 1 to ${MAX_PERMITS} are allowed`));
        }
        if (lock.of === 0) {
          return this.#refused(over("not_held", 0));
        }
        lock.of = of;
        return [200, { resource_id: name, permits: lock.of }];
      }
      case "locks rejections": {
        const token = Number(body["fencing_token"]);
        const isKnown = authority.tokens.get(name)?.includes(token) === true;
        return [200, { recorded: isKnown && token < Number(body["highest"]) }];
      }
      case "locks sequencer":
        return this.#refused({ status: 409, code: "refused", message: "the double has no keys: it signs no tokens" });
      default:
        return this.#refused({ status: 404, code: "not_found", message: `the double has no ${what}` });
    }
  }

  #refused({ status, code, message, waitMs, highest, token, holder }: Refusal, more: Json = {}): Told {
    const error = { code, message, retry_after_ms: waitMs, highest, fencing_token: token };
    const shown = holder === undefined ? {} : { holder: this.#holder(holder, false) };
    return [status, { error, ...shown, ...more }];
  }

  #holder(grant: Grant, all: boolean): Json {
    const { clientId, token, remainingMs, acquiredAt, metadata, grantId, slots } = this.authority.holder(grant);
    const more = { acquired_at: acquiredAt, metadata, grant_id: grantId, slots: slots.length > 0 ? slots : undefined };
    return { client_id: clientId, fencing_token: token, remaining_ms: remainingMs, ...(all ? more : {}) };
  }

  #show(lock: Lock, all: boolean): Json {
    const { authority } = this;
    const [first] = lock.grants;
    const delayed = lock.closedUntil - authority.now();
    const isMany = lock.of > 0 || (first !== undefined && reads(first));
    const readers = lock.grants.map((grant) => this.#holder(grant, true));
    return {
      resource_id: lock.name,
      holder: first === undefined ? null : this.#holder(first, true),
      waiters: authority.waiting(lock.name),
      ...(all ? { revision: authority.revision } : {}),
      ...(delayed > 0 ? { delayed_ms: delayed } : {}),
      ...(lock.of > 0 ? { permits: lock.of } : {}),
      ...(isMany && readers.length > 0 ? { reader_count: readers.length, ...(all ? { readers } : {}) } : {}),
    };
  }

  #list(query: URLSearchParams): Told {
    const { authority } = this;
    const [prefix, cursor] = [query.get("prefix") ?? "", query.get("cursor") ?? ""];
    const limit = Number(query.get("limit") ?? 100);
    const isShown = ({ name, grants, closedUntil }: Lock): boolean =>
      (grants.length > 0 || authority.now() < closedUntil) && name.startsWith(prefix) && name > cursor;
    const found = [...authority.locks.values()].filter(isShown).sort((one, other) => (one.name < other.name ? -1 : 1));
    const page = found.slice(0, limit);
    const next = found.length > limit ? page.at(-1)?.name : null;
    return [200, { locks: page.map((lock) => this.#show(lock, false)), next_cursor: next }];
  }

  async #acquire(name: string, asking: Asking, signal: AbortSignal): Promise<Told> {
    const { authority } = this;
    const pending = this.#begin(name, asking);
    if ("code" in pending) {
      return this.#denied(name, pending);
    }
    pending.attempt += 1;
    const mine = pending.attempt;
    if (mine > 1) {
      authority.broadcast();
    }
    pending.arrived = authority.now();
    pending.until = pending.arrived + (asking.wait_ms ?? 0);
    pending.keptUntil = undefined;
    // A sign of life is for proxies, whose time is the real one.
    const poll = asking.poll_ms === undefined ? Infinity : performance.now() + asking.poll_ms;
    for (;;) {
      authority.settle();
      if (pending.attempt !== mine) {
        return this.#refused({ status: 504, code: "unknown_outcome", message: "the same request was sent again" });
      }
      if (pending.denied !== undefined) {
        return this.#denied(name, pending.denied);
      }
      if (pending.grants.length > 0) {
        return this.#granted(name, pending);
      }
      if (authority.state === "down") {
        authority.keep(pending);
        return this.#down();
      }
      if (authority.now() >= pending.until) {
        pending.denied = authority.denial(pending);
        authority.leave(pending);
        continue;
      }
      if (performance.now() >= poll) {
        authority.keep(pending);
        return [202, { resource_id: name, lock_acquired: false, waiting: true }];
      }
      try {
        await authority.change(signal);
      } catch (error) {
        if (pending.attempt === mine && !isDecided(pending)) {
          authority.keep(pending);
        }
        throw error;
      }
    }
  }

  /** The request, which may have been sent before. */
  #begin(name: string, asking: Asking): Pending | Refusal {
    const { authority } = this;
    const { permits, mode, also = [], request_id: id = "" } = asking;
    const names = [name, ...also];
    const before = authority.requests.get(id);
    if (before !== undefined) {
      if (before.denied?.code === "abandoned") {
        return before.denied;
      }
      const isSame = before.names[0] === name && before.asking.client_id === asking.client_id;
      return isSame ? before : invalid("one request id belongs to one lock and one client id");
    }
    const lock = authority.lock(name);
    const isPlain = mode === undefined && permits === undefined && !asking.lock_delay_ms && !asking.at_least_for_ms;
    if (names.length > 1 && !isPlain) {
      return invalid("several locks are exclusive, and have no time after the grant");
    }
    if (permits !== undefined && (permits.count < 1 || permits.count > permits.of || permits.of > MAX_PERMITS)) {
      return invalid("permits: 1 to 64, and not more than there are");
    }
    if (permits !== undefined && (lock.of === 0 ? lock.grants.length > 0 : lock.of !== permits.of)) {
      return invalid(`the lock is in use, and is not a semaphore of ${permits.of} permits`);
    }
    if (permits === undefined && lock.of > 0) {
      return invalid(`the lock is a semaphore of ${lock.of} permits, and is in use`);
    }
    const under = asking.lock_token === undefined ? undefined : authority.under(lock, asking);
    if (under !== undefined && "code" in under) {
      return under;
    }
    lock.of = permits?.of ?? lock.of;
    const pending = newPending(asking, names, under);
    if (id !== "") {
      authority.requests.set(id, pending);
    }
    authority.enter(pending);
    return pending;
  }

  #denied(name: string, why: Refusal): Told {
    return this.#refused(why, why.code === "invalid" ? {} : { resource_id: name, lock_acquired: false });
  }

  #granted(name: string, { grants: [grant], arrived }: Pending): Told {
    const { term, token, number, slots, at, acquiredAt } = grant as Grant;
    const { authority } = this;
    const code = authority.ending(term.key, name, number);
    if (code !== undefined) {
      return this.#denied(name, over(code, number));
    }
    return [
      200,
      {
        ...{ resource_id: name, lock_acquired: true, lock_token: term.key, fencing_token: token },
        ...{ lease_duration_ms: term.ttlMs, acquired_at: acquiredAt, authority: authority.id },
        // From when this attempt came.
        valid_for_ms: term.until - arrived,
        waited_ms: Math.max(at - arrived, 0),
        remaining_ms: term.until - authority.now(),
        ...(reads(grant as Grant) ? { grant_id: number } : {}),
        ...(slots.length > 0 ? { slots } : {}),
      },
    ];
  }

  #renew(name: string, body: Json): Told {
    const { authority } = this;
    const found = authority.find(name, body["lock_token"], body["fencing_token"]);
    if ("code" in found) {
      return this.#refused(found);
    }
    const { term, token } = found;
    term.until = Math.max(term.until, authority.now() + term.ttlMs);
    const left = term.until - authority.now();
    const times = { lease_duration_ms: term.ttlMs, valid_for_ms: left, remaining_ms: left };
    const own = [...authority.locks.values()].filter(({ grants }) => grants.some((grant) => grant.term === term));
    const waiters = own.reduce((all, lock) => all + authority.waiting(lock.name), 0);
    return [200, { resource_id: name, fencing_token: token, authority: authority.id, ...times, waiters }];
  }

  /** Answers when it has something to say. */
  async #listen(body: Json, signal: AbortSignal): Promise<Told> {
    const { authority } = this;
    const { grants, wait_ms: wait = 20_000 } = body;
    const named = Array.isArray(grants) ? (grants as Json[]) : [];
    const keys = new Set(named.map((grant) => JSON.stringify([grant["resource_id"], grant["fencing_token"]])));
    if (named.length < 1 || named.length > MAX_LISTENED || keys.size < named.length) {
      return this.#refused(invalid(`grants: 1 to ${MAX_LISTENED}, each once`));
    }
    if (!Number.isInteger(wait) || Number(wait) < 0 || Number(wait) > MAX_LISTEN_WAIT) {
      return this.#refused(invalid(`wait_ms: 0 to ${MAX_LISTEN_WAIT}`));
    }
    // As of a poll, its time is the real one.
    const until = performance.now() + Number(wait);
    for (;;) {
      authority.settle();
      if (authority.state === "down") {
        return this.#down();
      }
      const notices = named.map((grant) => this.#news(grant)).filter((notice) => notice !== undefined);
      if (notices.length > 0 || performance.now() >= until) {
        return [200, { notices }];
      }
      await authority.change(signal);
    }
  }

  #news({ resource_id, lock_token, fencing_token, waiters: known = 0 }: Json): Json | undefined {
    const { authority } = this;
    const name = String(resource_id);
    const about = { resource_id, fencing_token };
    if ("code" in authority.find(name, lock_token, fencing_token)) {
      const code = authority.ending(lock_token, name, fencing_token) ?? "unknown";
      const reason = authority.reason(lock_token, name, fencing_token);
      return { ...about, event: "ended", how: code === "not_held" ? "released" : code, reason };
    }
    const waiters = authority.waiting(name);
    return waiters > Number(known) || (waiters === 0 && Number(known) > 0)
      ? { ...about, event: "wanted", waiters }
      : undefined;
  }

  #release(name: string, body: Json): Told {
    const { authority } = this;
    const [key, number] = [body["lock_token"], body["fencing_token"]];
    const found = authority.find(name, key, number);
    const again = authority.ending(key, name, number) === "not_held";
    if ("code" in found && !again) {
      return this.#refused(found);
    }
    if (!("code" in found)) {
      authority.end(found, "not_held");
    }
    const answer = { resource_id: name, released: true, already_released: again };
    return [200, { ...answer, fencing_token: "code" in found ? number : found.number, authority: authority.id }];
  }

  #proclaim(name: string, body: Json): Told {
    const { authority } = this;
    const found = authority.find(name, body["lock_token"], body["fencing_token"]);
    if ("code" in found) {
      return this.#refused(found);
    }
    if (reads(found) || found.slots.length > 0) {
      return this.#refused(invalid("a reader, and a holder of permits, has no value"));
    }
    found.metadata = String(body["value"]);
    authority.tell("proclaimed", found, {});
    return [200, { resource_id: name, fencing_token: found.token, revision: authority.revision }];
  }

  #break(name: string, body: Json): Told {
    const { authority } = this;
    const { grants } = authority.lock(name);
    const number = body["fencing_token"];
    const found = grants.find((grant) => grant.number === number);
    if (found !== undefined) {
      authority.end(found, "revoked", (body["reason"] as string | undefined) ?? "");
      return [200, { resource_id: name, revoked: true, fencing_token: number }];
    }
    const [first] = grants;
    return this.#refused(
      first === undefined
        ? { status: 409, code: "not_held", message: "nobody holds this lock" }
        : { status: 412, code: "stale", message: "the lock is held with another token", highest: first.number },
    );
  }

  #abandon(id: string): Told {
    const { authority } = this;
    const pending = authority.requests.get(id) ?? newPending({ client_id: "", lease_duration_ms: 0 }, [""], undefined);
    authority.requests.set(id, pending);
    authority.leave(pending);
    for (const grant of pending.grants) {
      authority.end(grant, "not_held");
    }
    pending.grants = [];
    const message = "this request_id was abandoned: choose a new one";
    pending.denied = { status: 409, code: "abandoned", message };
    authority.broadcast();
    return [200, { request_id: id, abandoned: true }];
  }

  /** Answers with the changes, without end. */
  #watch(query: URLSearchParams, signal: AbortSignal): Answer {
    const { authority } = this;
    authority.settle();
    if (authority.state === "down") {
      return asAnswer(this.#down());
    }
    const given = query.get("after_revision");
    const after = given === null ? authority.revision : Number(given);
    if (!(after <= authority.revision)) {
      return asAnswer(this.#refused(invalid("after_revision is not one of this authority")));
    }
    const body = this.#stream(query.get("prefix") ?? "", after, signal);
    return { status: 200, body, disown: () => undefined };
  }

  /** Events, until the signal ends or the server is down. */
  async *#stream(prefix: string, from: number, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    const { authority } = this;
    let after = from;
    let written = authority.now();
    for (;;) {
      signal.throwIfAborted();
      authority.settle();
      if (authority.state === "down") {
        return;
      }
      let text = "";
      if (authority.state === "up") {
        const [first] = authority.events;
        if (first !== undefined && first.revision > after + 1) {
          const missed = first.revision - 1 - after;
          after = first.revision - 1;
          text += `event: missed\nid: ${after}\ndata: {"missed": ${missed}}\n\n`;
        }
        for (const { revision, kind, lock, data } of authority.events) {
          if (revision > after && lock.startsWith(prefix)) {
            text += `event: ${kind}\nid: ${revision}\ndata: ${JSON.stringify(data)}\n\n`;
          }
        }
        after = Math.max(after, authority.revision);
        if (text === "" && authority.now() > written + COMMENT_TIME) {
          text = ":\n\n";
        }
      }
      if (text !== "") {
        written = authority.now();
        yield Buffer.from(text);
        continue;
      }
      await authority.change(signal);
    }
  }
}

function isDecided({ grants, denied }: Pending): boolean {
  return grants.length > 0 || denied !== undefined;
}

function newPending(asking: Asking, names: readonly string[], under: Grant | undefined): Pending {
  const times = { attempt: 0, arrived: 0, until: 0, keptUntil: undefined };
  return { asking, names, under, ...times, grants: [], denied: undefined };
}

function asAnswer([status, body]: Told): Answer {
  const text = Buffer.from(JSON.stringify(body));
  const parts = (async function* () {
    yield await Promise.resolve(text);
  })();
  return { status, body: parts, disown: () => undefined };
}
