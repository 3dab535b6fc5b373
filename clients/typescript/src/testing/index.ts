/**
 * A lock server in memory, for the unit tests of programs that use this package. It needs no binary, no socket and no folder:
 *
 * ```ts
 * const server = new MemoryServer();
 * const client = server.client();
 * // …
 * server.revoke("orders", "the test"); // and see what the program does
 * ```
 *
 * The client is the real one, with its renewals, deadlines and refusals; only the way to the server is another. Tokens rise by
 * one over all locks, as the real server's do, and waiting requests are granted in the order of their arrival.
 *
 * The double does not promise what a test of one program does not need: nothing survives the process, everybody may do
 * everything, and there are no certificates, clusters, quotas, signed tokens or audit files. The tests of the client run against
 * the double and against the program.
 *
 * @packageDocumentation
 */
import { Client, type ClientOptions } from "../client.js";
import { Invalid, type LockHolder } from "../errors.js";
import { THROUGH } from "../exchange.js";
import { checkKind, checkText, isPlain, short } from "../options.js";
import { checkName, DAY } from "../wish.js";
import { Authority, type Grant, type Pending } from "./authority.js";
import { Wire } from "./wire.js";

/** An authority in memory, which has granted nothing yet: its first token is 1. It has nothing to close. */
export class MemoryServer {
  readonly #authority = new Authority();

  /** A client of this server. Options about addresses, bearer tokens and certificates have no effect. */
  client(options: ClientOptions = {}): Client {
    checkKind("what client takes", options, isPlain(options), "an object of options, as for new Client");
    return new Client({ ...options, [THROUGH]: () => new Wire(this.#authority) } as ClientOptions);
  }

  /**
   * Ends every grant of a lock, as if no renewal had come in time. Its holder learns of it by a notice, at once; of a client with
   * `notices: false` from its next renewal, after a third of its `ttlMs`.
   */
  expire(lock: string): void {
    this.#endAll(lock, "expired");
  }

  /** Takes a lock from everybody who holds it, as `client.breakLock` does. A holder learns of it as with `expire`. */
  revoke(lock: string, reason = ""): void {
    checkText("the reason", reason);
    this.#endAll(lock, "revoked", reason);
  }

  #endAll(lock: string, code: string, reason = ""): void {
    checkName(lock);
    for (const grant of this.#authority.lock(lock).grants) {
      this.#authority.end(grant, code, reason);
    }
    this.#authority.settle();
  }

  /**
   * Gives a free lock to another client, which keeps it until the test releases, revokes or expires it. Throws an error that says
   * who has it, if it is not free.
   */
  hold(lock: string, clientId = "other"): Held {
    checkName(lock);
    checkClientId(clientId);
    const authority = this.#authority;
    authority.settle();
    const asking = { client_id: clientId, lease_duration_ms: 1_000 * DAY };
    const times = { attempt: 0, arrived: 0, until: 0, keptUntil: undefined };
    const pending: Pending = { asking, names: [lock], under: undefined, ...times, grants: [], denied: undefined };
    if (!authority.admits(authority.lock(lock), pending)) {
      throw new Error(`palisade: ${JSON.stringify(lock)} is not free: ${authority.denial(pending).message}`);
    }
    authority.grant(pending);
    authority.settle();
    return new Held(authority, pending.grants[0] as Grant);
  }

  /** From now on every request is answered that the server is not available, and nothing happens. */
  down(): void {
    this.#become("down");
  }

  /** From now on nothing is answered. Requests that still wait for their answers get them after `up`. */
  stall(): void {
    this.#become("stalled");
  }

  /** Ends `down` and `stall`. */
  up(): void {
    this.#become("up");
  }

  #become(state: Authority["state"]): void {
    this.#authority.state = state;
    this.#authority.broadcast();
  }

  /** All tokens under which a lock was granted so far, in order. */
  tokens(lock: string): readonly number[] {
    checkName(lock);
    return this.#authority.tokens.get(lock) ?? [];
  }

  /** The client that has a lock now, the oldest of several; undefined if it is free. */
  holder(lock: string): LockHolder | undefined {
    checkName(lock);
    this.#authority.settle();
    const [first] = this.#authority.lock(lock).grants;
    return first === undefined ? undefined : this.#authority.holder(first);
  }
}

function checkClientId(clientId: string): void {
  checkText("the client id", clientId);
  if (!/^[ -~]{1,255}$/.test(clientId)) {
    throw new Invalid(`the client id ${short(clientId)} is not 1 to 255 printable ASCII characters`);
  }
}

/** A lock that another client has: see `hold`. */
export class Held {
  readonly #authority: Authority;
  readonly #grant: Grant;

  /** @internal */
  constructor(authority: Authority, grant: Grant) {
    this.#authority = authority;
    this.#grant = grant;
  }

  /** The fencing token with which it is held. */
  get token(): number {
    return this.#grant.token;
  }

  /** Frees the lock. Releasing again is harmless. */
  release(): void {
    this.#authority.end(this.#grant, "not_held");
    this.#authority.settle();
  }
}
