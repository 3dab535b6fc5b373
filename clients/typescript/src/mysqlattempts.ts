/**
 * The statements of attempts in MySQL and MariaDB, with `mysql2`. These count the rows that changed, and not those that were
 * found, so a row is looked for first; and an error ends no transaction there, so a refusal rolls back before it is thrown.
 *
 * The statements have no parameters: texts are hexadecimal, because what a quote needs depends on the session's sql_mode, and
 * ids have letters, digits, `_` and `-` alone.
 */
import { Invalid } from "./errors.js";
import { Rejected, Stale } from "./fence/errors.js";
import { shapeOf } from "./options.js";

/** A connection of `mysql2/promise`. */
export interface MysqlConnection {
  query(sql: string): Promise<[unknown, unknown]>;
  beginTransaction(): Promise<unknown>;
  commit(): Promise<unknown>;
  rollback(): Promise<unknown>;
  destroy(): void;
}

/** A pool of `mysql2/promise`. */
export interface MysqlPool<Connection extends MysqlConnection = MysqlConnection> {
  getConnection(): Promise<Connection & { release(): void }>;
}

type Row = Readonly<Record<string, unknown>>;

/** An attempt, whose parts were checked. */
interface Named {
  readonly jobId: string | number | bigint;
  readonly attempt: number;
}

const OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < UTC_TIMESTAMP(3)))";
const IN_TRANSACTION = 1;
const AUTOCOMMIT = 2;

const later = (leaseMs: number): string => `UTC_TIMESTAMP(3) + INTERVAL ${leaseMs * 1_000} MICROSECOND`;
const text = (value: string): string => `CONVERT(x'${Buffer.from(value).toString("hex")}' USING utf8mb4)`;

/** The pool or connection with promises; those of `mysql2` itself have callbacks. Undefined for those of another package. */
export function mysqlOf(db: unknown): MysqlPool | MysqlConnection | undefined {
  const { getConnection, beginTransaction, promise } = shapeOf(db);
  if (typeof getConnection !== "function" && typeof beginTransaction !== "function") {
    return undefined;
  }
  return typeof promise === "function" ? (db as { promise(): MysqlPool }).promise() : (db as MysqlPool);
}

/** A connection, inside of a transaction of the caller's. */
export async function inTransaction(db: MysqlPool | MysqlConnection): Promise<MysqlConnection> {
  const status = "getConnection" in db ? AUTOCOMMIT : await statusOf(db);
  if ((status & IN_TRANSACTION) === 0 && (status & AUTOCOMMIT) !== 0) {
    throw new Invalid(
      "an attempt needs a transaction: call beginTransaction() on one connection, and use that connection",
    );
  }
  return db as MysqlConnection;
}

/** A transaction of its own, on a connection of the pool or on one that is in none. */
export async function alone<Result>(
  on: MysqlPool | MysqlConnection,
  work: (db: MysqlConnection) => Result | PromiseLike<Result>,
): Promise<Result> {
  const pooled = "getConnection" in on ? await on.getConnection() : undefined;
  const db = pooled ?? (on as MysqlConnection);
  if (pooled === undefined && ((await statusOf(db)) & IN_TRANSACTION) !== 0) {
    throw new Invalid(
      "the connection is in a transaction, which could be rolled back: an attempt has to count before its work begins, so " +
        "end that transaction first",
    );
  }
  let broken = false;
  try {
    await db.beginTransaction();
    const result = await work(db);
    await db.commit();
    return result;
  } catch (error) {
    broken = await db.rollback().then(
      () => false,
      () => true,
    );
    throw error;
  } finally {
    if (broken) {
      pooled?.destroy();
    } else {
      pooled?.release();
    }
  }
}

/** The server says with each answer that has no rows whether a transaction is open. */
async function statusOf(db: MysqlConnection): Promise<number> {
  const [{ serverStatus }] = (await db.query("DO 0")) as [{ serverStatus?: number }, unknown];
  return serverStatus ?? 0;
}

async function rows(db: MysqlConnection, statement: string): Promise<readonly Row[]> {
  const [found] = await db.query(statement);
  return Array.isArray(found) ? (found as Row[]) : [];
}

/** Returns the ids. */
export async function reap(db: MysqlConnection, table: string, most: number): Promise<unknown[]> {
  const found = await rows(
    db,
    `SELECT id, state, attempt, worker, reason FROM ${table} WHERE attempt >= ${most} AND ${OPEN} FOR UPDATE SKIP LOCKED`,
  );
  for (const { id, state, attempt, worker, reason } of found) {
    const last = `attempt ${String(attempt)} was the last of ${most}, and its lease expired`;
    const why =
      state === "running"
        ? `${last} (worker ${(worker ?? "?") as string})`
        : ((reason ?? "no attempt is left") as string);
    await db.query(
      `UPDATE ${table} SET state = 'failed', lease_until = NULL, reason = ${text(why)} WHERE id = '${String(id)}'`,
    );
  }
  return found.map(({ id }) => id);
}

/** Returns the row of the job that it took. */
export async function take(
  db: MysqlConnection,
  table: string,
  worker: string,
  leaseMs: number,
  most: number,
): Promise<Row | undefined> {
  await reap(db, table, most);
  const open = `SELECT id FROM ${table} WHERE attempt < ${most} AND ${OPEN} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`;
  const [next] = await rows(db, open);
  if (next === undefined) {
    return undefined;
  }
  const id = `'${String(next["id"])}'`;
  await db.query(
    `UPDATE ${table} SET state = 'running', attempt = attempt + 1, worker = ${text(worker)}, lease_until = ${later(leaseMs)} WHERE id = ${id}`,
  );
  const [row] = await rows(db, `SELECT * FROM ${table} WHERE id = ${id}`);
  return row;
}

/** What changes in the row of an attempt. */
export const CHANGES = {
  guard: undefined,
  finish: "state = 'done', lease_until = NULL",
  heartbeat: (leaseMs: number): string => `lease_until = ${later(leaseMs)}`,
  fail: (reason: string, most: number): string =>
    `state = IF(attempt < ${most}, 'ready', 'failed'), lease_until = NULL, reason = ${text(reason)}`,
};

/** Locks the row of the attempt and changes it, or else refuses. `endedToo`: one that has ended is left as it is. */
export async function mine(
  db: MysqlConnection,
  table: string,
  { jobId, attempt }: Named,
  change: string | undefined,
  endedToo = false,
): Promise<void> {
  const id = `'${String(jobId)}'`;
  const [row] = await rows(db, `SELECT state FROM ${table} WHERE id = ${id} AND attempt = ${attempt} FOR UPDATE`);
  if (row?.["state"] !== "running" && !(endedToo && row !== undefined)) {
    const [now] = await rows(db, `SELECT attempt FROM ${table} WHERE id = ${id} FOR UPDATE`);
    await db.query("ROLLBACK");
    const newest = Number(now?.["attempt"] ?? 0);
    throw newest > attempt ? new Stale(attempt, newest) : new Rejected("already_written");
  }
  if (change !== undefined && row["state"] === "running") {
    await db.query(`UPDATE ${table} SET ${change} WHERE id = ${id}`);
  }
}
