/**
 * Redis 7 and later: check and effect are one function call, in one round trip on your own connection, of `redis` (node-redis)
 * or of `ioredis`.
 *
 * ```ts
 * const orders = new Resource("orders");
 * await orders.claim(redis, lease); // first: raises the fence
 * const total = Number(await orders.get(redis, lease, "{orders}:total"));
 * await orders.set(redis, lease, "{orders}:total", total + 5);
 * ```
 *
 * `palisade fence install redis` installs the functions. The name of the resource is the hash tag of its keys. Redis cannot
 * stop code that writes with a plain SET, and answers before data is on disk: docs/use/fences.md lists what a crash or a
 * failover can lose.
 *
 * @packageDocumentation
 */
import { Invalid, OperatorNeeded } from "../errors.js";
import { checkKind, checkOptions, checkText, shapeOf, short } from "../options.js";
import { refused } from "../refusals.js";
import { FenceLost, FenceNotInstalled } from "./errors.js";
import { checkSequence, presented, type Holder } from "./holder.js";
import { partsOf, rejectionOf } from "./rejection.js";

const MARKS = "palisade:fence:";

/** What `createClient`, `createClientPool`, `createCluster` or `createSentinel` of `redis` makes. */
export interface NodeRedis {
  fCall(name: string, given: { keys: string[]; arguments: (string | Buffer)[] }): Promise<unknown>;
  withTypeMapping(mapping: Record<number, unknown>): object;
}

/** A `Redis` or a `Cluster` of `ioredis`. */
export interface IoRedis {
  call(command: string, args: Value[]): Promise<unknown>;
  callBuffer(command: string, args: Value[]): Promise<unknown>;
}

export type Connection = NodeRedis | IoRedis;

/** How bulk strings are marked in the protocol of Redis: `RESP_TYPES.BLOB_STRING` of `redis`. */
const BLOB_STRING = "$".charCodeAt(0);

export type Value = string | number | Buffer;

/** Of a write. */
export interface WriteOptions {
  /** The number of this write among those of the grant, 0 – 2^53 − 1, with which it is safe to repeat. */
  readonly sequence?: number;
}

/** Several keys under one fence. Each method throws `Stale` if a newer holder has claimed. */
export class Resource {
  readonly #mark: string;

  constructor(readonly name: string) {
    checkText("the name of a resource", name);
    if (!/^[ -z|~]{1,255}$/.test(name)) {
      throw new Invalid(
        `${JSON.stringify(name)} is not the name of a resource: 1 to 255 printable ASCII characters, no braces`,
      );
    }
    this.#mark = `${MARKS}{${name}}`;
  }

  /** Raises the fence, before the first read. */
  async claim(redis: Connection, holder: Holder): Promise<void> {
    await this.#call(redis, "palisade_claim", holder, [], []);
  }

  /** Reads in order to write; null if there is nothing. */
  async get(redis: Connection, holder: Holder, key: string): Promise<string | null> {
    return (await this.#call(redis, "palisade_get", holder, [key], [])) as string | null;
  }

  /** As `get`, byte by byte. */
  async getBuffer(redis: Connection, holder: Holder, key: string): Promise<Buffer | null> {
    return (await this.#call(redis, "palisade_get", holder, [key], [], {}, true)) as Buffer | null;
  }

  async hget(redis: Connection, holder: Holder, key: string, field: string): Promise<string | null> {
    return (await this.#call(redis, "palisade_hget", holder, [key], [field])) as string | null;
  }

  async set(redis: Connection, holder: Holder, key: string, value: Value, options?: WriteOptions): Promise<void> {
    await this.#call(redis, "palisade_set", holder, [key], [value], options);
  }

  async append(redis: Connection, holder: Holder, key: string, value: Value, options?: WriteOptions): Promise<void> {
    await this.#call(redis, "palisade_append", holder, [key], [value], options);
  }

  async incrby(redis: Connection, holder: Holder, key: string, by: number, options?: WriteOptions): Promise<void> {
    if (!Number.isSafeInteger(by)) {
      throw new Invalid(`${short(by)} cannot be added: a whole number is needed`);
    }
    await this.#call(redis, "palisade_incrby", holder, [key], [by], options);
  }

  async hset(
    redis: Connection,
    holder: Holder,
    key: string,
    field: string,
    value: Value,
    options?: WriteOptions,
  ): Promise<void> {
    await this.#call(redis, "palisade_hset", holder, [key], [field, value], options);
  }

  /** Throws `Rejected` with the code `missing` if there is nothing to delete. */
  async del(redis: Connection, holder: Holder, key: string, options?: WriteOptions): Promise<void> {
    await this.#call(redis, "palisade_del", holder, [key], [], options);
  }

  async #call(
    redis: Connection,
    name: string,
    holder: Holder,
    used: readonly string[],
    values: readonly Value[],
    options: WriteOptions = {},
    bytes = false,
  ): Promise<unknown> {
    checkConnection(redis);
    checkOptions("a write", options, ["sequence"]);
    for (const value of values as readonly unknown[]) {
      const isValue = typeof value === "string" || typeof value === "number" || value instanceof Uint8Array;
      checkKind("a value or field", value, isValue, "a text, a number or a Buffer");
    }
    const { sequence } = options;
    checkSequence(sequence);
    const keys = [this.#mark, ...used.map((key) => this.#checked(key))];
    const pass = presented(holder);
    const { token, authority, lock } = pass;
    const given = [token, ...values, authority ?? "", lock ?? "", sequence ?? ""];
    try {
      return await fcall(redis, name, keys, given, bytes);
    } catch (error) {
      throw refused(pass, this.name, name.replace("palisade_", ""), translated(this.name, error));
    }
  }

  /** In a cluster, a key of another slot could not be changed in one step with the fence. */
  #checked(key: string): string {
    checkText("a key", key);
    const open = key.indexOf("{");
    const close = key.indexOf("}", open + 1);
    const hashed = open >= 0 && close > open + 1 ? key.slice(open + 1, close) : key;
    if (key.startsWith(MARKS) || hashed !== this.name) {
      throw new Invalid(
        `key ${JSON.stringify(key)} does not belong to resource ${this.name}: call it {${this.name}}:NAME`,
      );
    }
    return key;
  }
}

/** A pipeline sends nothing before it is executed: a claim would be reported as done. So would be that of a `multi()`. */
function checkConnection(redis: unknown): void {
  const { call, callBuffer, isPipeline, fCall, withTypeMapping, exec } = shapeOf(redis);
  const ofIoRedis = typeof call === "function" && typeof callBuffer === "function" && isPipeline !== true;
  const ofNodeRedis = typeof fCall === "function" && typeof withTypeMapping === "function" && exec === undefined;
  const wanted = "a client or a cluster of redis, or a Redis or a Cluster of ioredis, no pipeline and no multi()";
  checkKind("the connection", redis, ofIoRedis || ofNodeRedis, wanted);
}

async function fcall(
  redis: Connection,
  name: string,
  keys: string[],
  given: readonly Value[],
  bytes: boolean,
): Promise<unknown> {
  if ("fCall" in redis) {
    const mapped = bytes ? (redis.withTypeMapping({ [BLOB_STRING]: Buffer }) as NodeRedis) : redis;
    const texts = given.map((value) => (typeof value === "number" ? String(value) : value));
    return mapped.fCall(name, { keys, arguments: texts });
  }
  const args = [name, keys.length, ...keys, ...given];
  return bytes ? redis.callBuffer("FCALL", args) : redis.call("FCALL", args);
}

/** Refuses a server that may evict fences, or that is a replica. Once for each server. */
export async function probe(redis: { info(section: string): Promise<string> }): Promise<void> {
  checkKind(
    "the connection",
    redis,
    typeof shapeOf(redis)["info"] === "function",
    "a client of redis, or a Redis of ioredis",
  );
  const policy = /^maxmemory_policy:(.*)$/m.exec(await redis.info("memory"))?.[1]?.trim() ?? "unknown";
  if (policy !== "noeviction" && !policy.startsWith("volatile-")) {
    const why = "it evicts keys that never expire, fences among them; set noeviction";
    throw new OperatorNeeded("refused", `maxmemory-policy is ${policy}: ${why}`);
  }
  if (!/^role:master\s*$/m.test(await redis.info("replication"))) {
    throw new OperatorNeeded("refused", "this server is a replica; a fence needs the primary");
  }
}

function translated(resource: string, error: unknown): unknown {
  const message = error instanceof Error ? error.message : "";
  if (/function not found/i.test(message)) {
    return new FenceNotInstalled(`${message}; run \`palisade fence install redis\``, { cause: error });
  }
  const refused = rejectionOf(error);
  if (refused !== undefined) {
    return refused;
  }
  const [code, , says] = partsOf(message);
  if (code === "lost" || code === "corrupt") {
    return new FenceLost(`${resource}: ${says}; an operator re-arms it with \`palisade fence rearm\``);
  }
  return code === "invalid" ? new Invalid(`${resource}: ${says}`) : error;
}
