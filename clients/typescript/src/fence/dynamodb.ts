/**
 * DynamoDB, with your own client of `@aws-sdk/client-dynamodb`: an item that carries its own fence, in the attribute
 * `palisade_fence`.
 *
 * ```ts
 * const seat = new Item(new DynamoDBClient(), "seats", { seat: { S: "12A" } });
 * await seat.claim(lease); // first: raises the fence
 * const booked = await seat.read(lease); // then read, consistently
 * await seat.write(lease, { passenger: { S: "Alice" } }); // Stale: nothing was written
 * ```
 *
 * Each write puts the whole item under the condition that its fence is the one that was read: check and effect are one
 * request. The format is that of the Rust fence: holders in all languages share an item. Reads that feed writes go through
 * `read`: DynamoDB's default, an index, a cache or another region may show a state from before a claim. An emptied item
 * stays, with its fence, and must have no time to live.
 *
 * @packageDocumentation
 */
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { GetItemCommand, PutItemCommand, type AttributeValue, type DynamoDBClient } from "@aws-sdk/client-dynamodb";

import { Invalid, Unavailable, UnknownOutcome } from "../errors.js";
import { checkKind, checkOptions, checkText, isPlain, shapeOf } from "../options.js";
import { FenceLost, Rejected } from "./errors.js";
import { checkSequence, presented, type Holder, type Pass } from "./holder.js";
import { decodeFence, encodeFence, MAX_IDS, tookEffect, type StoredFence } from "./manifest.js";
import { checkRule, EMPTY, judged, type FenceRecord, type Operation, type Rule } from "./rule.js";

const FENCE = "palisade_fence";
const ATTEMPTS = 32;
const SAME_PUT_TRIES = 5;
const REFUSED: ReadonlySet<string> = new Set(["ConditionalCheckFailedException", "TransactionConflictException"]);

/** As the client has them: `{ passenger: { S: "Alice" } }`. */
export type Attributes = Record<string, AttributeValue>;
/** Gets the attributes as they are, and returns those that are to be; undefined: there is nothing to change. */
export type Change = (before: Attributes) => Attributes | undefined;

export interface ItemWriteOptions {
  /** The number of this write among those of the grant, 0 – 2^53 − 1, with which it is safe to repeat. */
  readonly sequence?: number | undefined;
  /** Any 64 bits: a checksum of a numbered write's content. */
  readonly digest?: bigint | undefined;
}

/** An item as it was read; `text` is its fence as it is stored. */
interface Seen extends StoredFence {
  readonly exists: boolean;
  readonly text: string | undefined;
  readonly attributes: Attributes;
}

/**
 * One item. Each method throws `Stale` if a newer holder has claimed it. Reads and writes do not include the attributes of
 * the key.
 */
export class Item {
  readonly name: string;

  constructor(
    private readonly client: DynamoDBClient,
    private readonly table: string,
    private readonly key: Attributes,
    private readonly rule: Rule = {},
  ) {
    const sends = typeof shapeOf(client)["send"] === "function";
    checkKind("the client", client, sends, "a DynamoDBClient of @aws-sdk/client-dynamodb");
    checkText("the table", table);
    checkKind("the key", key, isPlain(key), 'an object of attributes, such as { seat: { S: "12A" } }');
    checkRule(rule);
    const names = Object.keys(key).sort();
    if (names.length < 1 || names.length > 2) {
      throw new Invalid(`the key has ${names.length} attributes; 1 to 2 are allowed`);
    }
    if (names.includes(FENCE)) {
      // A put would write the fence into the key, and so another item than the one that was read.
      throw new Invalid(
        `the table's key is called ${FENCE}, as the attribute of the fence: use a table with another key`,
      );
    }
    this.name = `${table}/${names.map((name) => `${name}=${String(Object.values(key[name] ?? {})[0])}`).join()}`;
  }

  /** Raises the fence, before the first read. */
  async claim(holder: Holder): Promise<void> {
    await this.#carryOut(presented(holder), { kind: "claim" });
  }

  /** Reads in order to write; empty if there is nothing. */
  async read(holder: Holder): Promise<Attributes> {
    return (await this.#carryOut(presented(holder), { kind: "read" })).attributes;
  }

  /**
   * Replaces the attributes by others, or by the result of a function of them. The function may be called again if other
   * writers were faster; if it returns undefined nothing is written, and `Rejected` has the code `missing`. An attribute
   * `palisade_fence`, or one of the key with another value, is `Invalid`. True: this numbered write was carried out
   * before. A holder of null has no token: refused.
   */
  async write(holder: Holder | null, change: Attributes | Change, options: ItemWriteOptions = {}): Promise<boolean> {
    checkOptions("write", options, ["sequence", "digest"]);
    checkSequence(options.sequence);
    const { digest } = options;
    checkKind("the digest", digest, digest === undefined || typeof digest === "bigint", "a bigint");
    const isChange = typeof change === "function" || isPlain(change);
    checkKind("the change", change, isChange, "an object of attributes, or a function of the present ones");
    const pass = holder === null ? undefined : presented(holder);
    const following = typeof change === "function" ? change : () => change;
    return (await this.#carryOut(pass, { kind: "write", ...options }, following)).repeat;
  }

  /** The stored record. @internal */
  async record(): Promise<FenceRecord> {
    return (await this.#load()).record;
  }

  /** Decides on the item that was read and puts it, again if another writer was faster. */
  async #carryOut(
    pass: Pass | undefined,
    operation: Operation,
    change?: Change,
  ): Promise<{ repeat: boolean; attributes: Attributes }> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      if (attempt > 0) {
        await sleep(Math.random() * 2 ** Math.min(attempt, 7));
      }
      const seen = await this.#load();
      const { attributes } = seen;
      if (seen.exists && seen.text === undefined) {
        throw new FenceLost(`${this.name} has data and no fence: an operator must re-arm it with a floor`);
      }
      const { record, repeat } = judged([this.name, operation.kind], seen.record, pass, operation, this.rule);
      const ids = seen.ids;
      if (repeat || (change === undefined && encodeFence({ record, ids }) === encodeFence(seen))) {
        return { repeat, attributes };
      }
      const following = change === undefined ? attributes : change({ ...attributes });
      if (following === undefined) {
        throw new Rejected("missing");
      }
      checkKind("what the change returns", following, isPlain(following), "an object of attributes");
      if (Object.hasOwn(following, FENCE)) {
        throw new Invalid(`${FENCE} is the attribute of the fence: give your attribute another name`);
      }
      const moved = Object.keys(this.key).find(
        (name) => Object.hasOwn(following, name) && !isDeepStrictEqual(following[name], this.key[name]),
      );
      if (moved !== undefined) {
        throw new Invalid(`${moved} belongs to the key of ${this.name}: leave it out, or use the other Item`);
      }
      if (await this.#put(seen, record, following)) {
        return { repeat, attributes };
      }
    }
    throw new Unavailable("unavailable", `${this.name}: other writers were faster ${ATTEMPTS} times`);
  }

  async #load(): Promise<Seen> {
    const get = new GetItemCommand({ TableName: this.table, Key: this.key, ConsistentRead: true });
    const { Item: item } = await this.client.send(get);
    if (item === undefined) {
      return { exists: false, text: undefined, record: EMPTY, ids: [], attributes: {} };
    }
    const attributes = Object.fromEntries(
      Object.entries(item).filter(([name]) => name !== FENCE && !Object.hasOwn(this.key, name)),
    );
    const stored = item[FENCE];
    if (stored === undefined) {
      return { exists: true, text: undefined, record: EMPTY, ids: [], attributes };
    }
    try {
      const text = stored.S ?? "";
      return { exists: true, text, ...decodeFence(text), attributes };
    } catch (error) {
      throw new FenceLost(`${this.name}: its ${FENCE} is damaged: ${String(error)}`);
    }
  }

  /**
   * Whether the put took effect. While the fence that was read is still there the put may still arrive, so only repeating
   * the same put settles it; afterwards the ids tell.
   */
  async #put(seen: Seen, record: FenceRecord, attributes: Attributes): Promise<boolean> {
    const id = randomBytes(16).toString("hex");
    const fence = encodeFence({ record, ids: [...seen.ids, id].slice(-MAX_IDS) });
    const condition =
      seen.text === undefined
        ? {
            ConditionExpression: "attribute_not_exists(#palisade_key)",
            ExpressionAttributeNames: { "#palisade_key": Object.keys(this.key).sort()[0] ?? "" },
          }
        : {
            ConditionExpression: `${FENCE} = :palisade_seen`,
            ExpressionAttributeValues: { ":palisade_seen": { S: seen.text } },
          };
    const item = { ...attributes, ...this.key, [FENCE]: { S: fence } };
    let failed: unknown;
    for (let tries = 0; tries <= SAME_PUT_TRIES; tries += 1) {
      try {
        await this.client.send(new PutItemCommand({ TableName: this.table, Item: item, ...condition }));
        return true;
      } catch (error) {
        failed = error;
      }
      const now = await this.#load();
      if (now.text !== seen.text || now.exists !== seen.exists) {
        return tookEffect(now, id, seen);
      }
      if (!mayPass(failed)) {
        throw failed;
      }
    }
    throw new UnknownOutcome("unknown_outcome", `${this.name}: ${String(failed)}`, { cause: failed });
  }
}

/** A condition that was false, no answer, or one of a server that may have done it. */
function mayPass(error: unknown): boolean {
  const { name, $metadata } = error as { name?: string; $metadata?: { httpStatusCode?: number } };
  return REFUSED.has(name ?? "") || ($metadata?.httpStatusCode ?? 500) >= 500;
}
