/**
 * SQLite: the fence on your own connection, in your own transaction, with `node:sqlite` or `better-sqlite3`.
 *
 * ```ts
 * transact(db, "orders", lease, () => {                        // claims first: no older holder can write
 *   db.exec("UPDATE orders SET total = total + 1");
 * });
 * ```
 *
 * `palisade fence install sqlite` creates the table of the fence, in the file that has the data: holders in other languages may
 * share it. SQLite ≥ 3.37 is needed. Everything here is synchronous, as these libraries are.
 *
 * SQLite locks the file. A claim takes its one write lock; it waits for as long as `busy_timeout` says: set one. After that the
 * library's error SQLITE_BUSY comes through: begin the same transaction again. A process that is stopped inside its transaction
 * holds the file until it goes on or ends; `palisade fence unblock` ends it.
 *
 * A claim registers the function `palisade_token`, which the triggers of `palisade fence install sqlite TABLE` ask. So a
 * table that has them is written by connections that have claimed; `why` tells what they refused.
 *
 * An acknowledged commit is durable with PRAGMA synchronous = FULL, SQLite's default. Do not use a network file system that fakes
 * locks.
 *
 * @packageDocumentation
 */
import { Invalid } from "../errors.js";
import { shapeOf, short } from "../options.js";
import { FenceNotInstalled, Rejected, Stale } from "./errors.js";
import { checkHolders, checkResource, checkWork, presented, type Holder } from "./holder.js";
import { checkNumber, checkResult, checkWrite, type WriteNumber, type Written } from "./numbered.js";
import { checkRule, judged, type Admitted, type FenceRecord, type Operation, type Rule } from "./rule.js";

export { MAX_RESULT_BYTES, type WriteNumber, type Written } from "./numbered.js";

type Value = null | number | bigint | string | Uint8Array;

/** The members of a connection that the fence uses: `DatabaseSync` of `node:sqlite`, and `Database` of `better-sqlite3`. */
export interface Database {
  exec(sql: string): unknown;
  prepare(sql: string): unknown;
}

/** What `prepare` makes: the types of the libraries differ. */
interface Statement {
  get(...values: Value[]): unknown;
  run(...values: Value[]): unknown;
}

function prepared(db: Database, sql: string): Statement {
  return db.prepare(sql) as Statement;
}

// The statements of crates/palisade-fence/src/sqlite/guard.rs. The file itself is named, because a temporary table or an attached
// file of that name would have another mark.
const COLUMNS = "authority, lock, token, written, sequence, CAST(digest AS TEXT) AS digest, result";
const NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";
/** It takes the write lock, whether the row exists or not; only then is the row read. */
const TAKE = `UPDATE main.palisade_fence SET updated_at = ${NOW} WHERE resource = ? RETURNING ${COLUMNS}`;
const SHOW = "SELECT token FROM main.palisade_fence WHERE resource = ?";
const CREATE = "INSERT INTO main.palisade_fence (resource) VALUES (?)";
const STORE =
  "UPDATE main.palisade_fence SET authority = ?, lock = ?, token = ?, written = ?, sequence = ?, digest = ?, result = ? " +
  "WHERE resource = ?";
const RECORD = `UPDATE main.palisade_fence SET result = ?, updated_at = ${NOW} WHERE resource = ? AND token = ? AND sequence = ? RETURNING token`;

/**
 * Runs a transaction of its own: takes the write lock, claims, carries out `work`, and commits. `work` is synchronous: what an
 * async function does after its first `await` would be outside of the transaction.
 *
 * Throws `Stale` if a newer holder has claimed, and passes on the errors of `work`; in both cases nothing was written.
 */
export function transact<Connection extends Database, Result>(
  db: Connection,
  resource: string,
  holder: Holder,
  work: (db: Connection) => Result,
  rule: Rule = {},
): Result {
  checkResource(resource);
  return transactAll(db, { [resource]: holder }, work, rule);
}

/** As `transact`, for several resources: it claims all of them or none. */
export function transactAll<Connection extends Database, Result>(
  db: Connection,
  holders: Readonly<Record<string, Holder>>,
  work: (db: Connection) => Result,
  rule: Rule = {},
): Result {
  checkDatabase(db);
  checkHolders(holders);
  checkWork(work);
  if (work.constructor.name === "AsyncFunction") {
    throw new TypeError("palisade: the work of a transaction in SQLite is synchronous, and not an async function");
  }
  db.exec("BEGIN IMMEDIATE");
  try {
    claimAll(db, holders, rule);
    const result = work(db);
    if (typeof shapeOf(result)["then"] === "function") {
      throw new TypeError(
        `palisade: the work of a transaction in SQLite is synchronous, and it returned ${short(result)}`,
      );
    }
    db.exec("COMMIT");
    return result;
  } catch (error) {
    try {
      db.exec("ROLLBACK");
    } catch {
      // SQLite has already rolled it back, as after a full disk.
    }
    throw error;
  }
}

/** Raises the fence: from the commit on, no older token is admitted at the resource. */
export function claim(db: Database, resource: string, holder: Holder, rule: Rule = {}): void {
  checkResource(resource);
  claimAll(db, { [resource]: holder }, rule);
}

/** Claims several resources at once: all of them or none. */
export function claimAll(db: Database, holders: Readonly<Record<string, Holder>>, rule: Rule = {}): void {
  judge(db, holders, { kind: "claim" }, rule);
}

/** Before a read that feeds a write, in a transaction that did not begin with a claim. */
export function check(db: Database, resource: string, holder: Holder, rule: Rule = {}): void {
  checkResource(resource);
  judge(db, { [resource]: holder }, { kind: "read" }, rule);
}

/** Before a write. With a number it is safe to repeat. */
export function write(db: Database, resource: string, holder: Holder, number?: WriteNumber, rule: Rule = {}): Written {
  checkResource(resource);
  checkWrite(number);
  const operation: Operation = { kind: "write", sequence: number?.sequence, digest: number?.digest };
  const [admitted] = judge(db, { [resource]: holder }, operation, rule);
  return { repeat: admitted?.repeat === true, result: admitted?.repeat === true ? admitted.record.result : undefined };
}

/** Records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out. */
export function record(db: Database, resource: string, holder: Holder, sequence: number, result: Uint8Array): void {
  checkDatabase(db);
  checkResource(resource);
  checkNumber(sequence);
  checkResult(result);
  const { token } = presented(holder);
  checkTransaction(db);
  const found = translated(() => prepared(db, RECORD).get(result, resource, BigInt(token), BigInt(sequence)));
  if (found === undefined) {
    throw new Invalid(`${resource}: the last write there is not number ${sequence} of token ${token}`);
  }
}

/**
 * The refusal by a trigger of `palisade fence install sqlite TABLE`; the error itself if no trigger did. A trigger's message
 * cannot name a token, so call it in the same transaction, before the rollback.
 *
 * ```ts
 * try {
 *   db.exec("UPDATE orders SET total = 5");
 * } catch (error) {
 *   throw why(db, "orders", error);
 * }
 * ```
 */
export function why(db: Database, resource: string, error: unknown): unknown {
  checkDatabase(db);
  checkResource(resource);
  const said = String(shapeOf(error)["message"]);
  const { token: highest } = (prepared(db, SHOW).get(resource) ?? {}) as { token?: number | bigint | null };
  if (highest === undefined || highest === null) {
    return error;
  }
  const token = tokensOf(db).get(resource);
  if (said.includes("palisade stale:")) {
    return new Stale(token, Number(highest));
  }
  const isTokenless = said.includes("palisade tokenless:") || said.includes("no such function: palisade_token");
  return isTokenless ? new Rejected("tokenless", { highest: Number(highest) }) : error;
}

/** Stores nothing unless every holder is admitted. */
function judge(
  db: Database,
  holders: Readonly<Record<string, Holder>>,
  operation: Operation,
  rule: Rule,
): readonly Admitted[] {
  checkDatabase(db);
  checkRule(rule);
  checkHolders(holders);
  // In the order of the names, as everywhere.
  const claims = Object.entries(holders)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([resource, holder]) => {
      checkResource(resource);
      return { resource, pass: presented(holder) };
    });
  if (claims.length === 0) {
    throw new Invalid("there is nothing to claim: name a resource");
  }
  checkTransaction(db);
  const shown = tokensOf(db);
  try {
    const admitted = claims.map(({ resource, pass }) =>
      judged([resource, operation.kind], take(db, resource), pass, operation, rule),
    );
    for (const [at, { record: next, repeat }] of admitted.entries()) {
      if (!repeat) {
        translated(() => prepared(db, STORE).run(...valuesOf(next), claims[at]?.resource ?? ""));
      }
    }
    for (const { resource, pass } of claims) {
      shown.set(resource, pass.token);
    }
    return admitted;
  } catch (error) {
    // A rejected holder's connection no longer presents its tokens to the triggers.
    for (const { resource } of claims) {
      shown.delete(resource);
    }
    throw error;
  }
}

/** The guard row of a resource, which is locked with the file until the transaction ends. It is created if it is missing. */
function take(db: Database, resource: string): FenceRecord {
  const found = translated(() => prepared(db, TAKE).get(resource)) as Readonly<Record<string, unknown>> | undefined;
  if (found === undefined) {
    translated(() => prepared(db, CREATE).run(resource));
  }
  const row = found ?? {};
  const text = (name: string): string | undefined => (row[name] ?? undefined) as string | undefined;
  // A connection may be set to return a bigint for each whole number.
  const number = (name: string): number | undefined =>
    row[name] === undefined || row[name] === null ? undefined : Number(row[name]);
  const digest = text("digest");
  return {
    authority: text("authority"),
    lock: text("lock"),
    token: number("token"),
    written: number("written") === 1,
    sequence: number("sequence"),
    // A digest has no sign, and INTEGER has one.
    digest: digest === undefined ? undefined : BigInt.asUintN(64, BigInt(digest)),
    result: (row["result"] ?? undefined) as Uint8Array | undefined,
  };
}

/** In the order of `STORE`. A number would be stored as one with fractions, which STRICT tables convert, and others do not. */
function valuesOf({ authority, lock, token, written, sequence, digest, result }: FenceRecord): Value[] {
  const whole = (number: number | undefined): bigint | null => (number === undefined ? null : BigInt(number));
  const signed = digest === undefined ? null : BigInt.asIntN(64, digest);
  return [authority ?? null, lock ?? null, whole(token), written ? 1n : 0n, whole(sequence), signed, result ?? null];
}

/** The tokens that a connection shows the triggers, by resource. */
const shownTokens = new WeakMap<Database, Map<string, number>>();

function tokensOf(db: Database): Map<string, number> {
  let tokens = shownTokens.get(db);
  if (tokens === undefined) {
    const made = new Map<string, number>();
    const get = (resource: string): bigint | null => {
      const token = made.get(resource);
      return token === undefined ? null : BigInt(token);
    };
    // Node has it since 22.13. Without it SQLite refuses the statements that fire the triggers.
    (db as { function?(name: string, get: (resource: string) => bigint | null): void }).function?.(
      "palisade_token",
      get,
    );
    shownTokens.set(db, made);
    tokens = made;
  }
  return tokens;
}

function checkDatabase(db: unknown): void {
  const { exec, prepare } = shapeOf(db);
  if (typeof exec !== "function" || typeof prepare !== "function") {
    throw new TypeError(
      `palisade: the fence takes a connection of node:sqlite (DatabaseSync) or better-sqlite3, and not ${short(db)}`,
    );
  }
}

/** Only inside of a transaction are check and effect one step. */
function checkTransaction(db: Database): void {
  const { isTransaction, inTransaction } = shapeOf(db);
  const isInside = isTransaction ?? inTransaction ?? isInsideOne(db);
  if (isInside !== true) {
    throw new Invalid("there is no transaction: BEGIN IMMEDIATE on this connection first, or call transact");
  }
}

/** Older versions of Node do not tell, and SQLite refuses a second BEGIN. */
function isInsideOne(db: Database): boolean {
  try {
    db.exec("BEGIN");
  } catch {
    return true;
  }
  db.exec("ROLLBACK");
  return false;
}

function translated<Result>(ask: () => Result): Result {
  try {
    return ask();
  } catch (error) {
    const said = String(shapeOf(error)["message"]);
    if (said.includes("no such table: main.palisade_fence")) {
      throw new FenceNotInstalled(`${said}; run \`palisade fence install sqlite\``, { cause: error });
    }
    throw error;
  }
}
