/**
 * Jobs in a table of your own, in PostgreSQL with `pg` or in MySQL and MariaDB with `mysql2`, and without a server: the number of
 * the attempt is the fencing token.
 *
 * ```ts
 * const attempts = new Attempts({ table: "jobs" });
 * const attempt = await attempts.take(pool, "worker-1"); // the oldest job that is ready, or whose lease has expired
 * if (attempt !== undefined) {
 *   // All effects; they and `done` commit together. It has the row, so nobody takes the job over meanwhile.
 *   await attempts.transact(pool, attempt, (db) => db.query("UPDATE accounts SET total = total + 1"));
 * }
 * ```
 *
 * docs/use/job-attempts.md has the table and the statements. `take`, `heartbeat` and `reap` are transactions of their own;
 * `guard`, `finish` and `fail` belong into yours. An attempt whose job another one has taken is refused with `Stale`, one that
 * has ended with `Rejected` (`already_written`). In PostgreSQL the transaction can then only roll back, whatever is done with
 * the error; in MySQL and MariaDB it is rolled back before the error is thrown.
 *
 * @packageDocumentation
 */
import type { ClientBase, Pool } from "pg";

import { Invalid } from "./errors.js";
import { checkWork, type Pass } from "./fence/holder.js";
import { ask, isPool, transaction } from "./fence/pgsession.js";
import * as mysql from "./mysqlattempts.js";
import type { MysqlConnection, MysqlPool } from "./mysqlattempts.js";
import { checkKind, checkOptions, checkText, shapeOf, short } from "./options.js";
import { within } from "./wish.js";

export type { MysqlConnection, MysqlPool } from "./mysqlattempts.js";

/** A pool, or a connection outside of a transaction. */
export type JobDatabase = Pool | ClientBase | MysqlPool | MysqlConnection;

export type JobId = string | number | bigint;

export interface AttemptsOptions {
  /** Its name, with or without a schema; a view with these columns does, too. The default is jobs. */
  readonly table?: string;
  /** How long an attempt has its job without a heartbeat, 1,000 – 86,400,000 ms. The default is 30,000. */
  readonly leaseMs?: number;
  /** How many attempts a job gets, 1 – 1,000,000. They count when they begin. The default is 5. */
  readonly maxAttempts?: number;
  /** The authority of its tokens; by default the table. Two databases whose jobs write to one target outside need two. */
  readonly authority?: string;
}

/**
 * One attempt at a job. A fence takes it as a holder, for the resource `job:<id>`: attempts of two jobs cannot be compared.
 */
export interface Attempt extends Pass {
  /** As the database gives it: with `pg` a `bigint` is a text, with `mysql2` a number, by default. */
  readonly jobId: JobId;
  readonly attempt: number;
  readonly worker: string;
  /** All columns of the row, as they were when the attempt began. */
  readonly row: Readonly<Record<string, unknown>>;
  /** What it may claim at a fence. */
  readonly resource: string;
  readonly authority: string;
  readonly lock: string;
}

// The database's clock, and the time of the statement: that of `now()` is the beginning of the transaction.
const OPEN = "(state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp()))";
const MINE = "id = $1 AND attempt = $2::bigint AND state = 'running'";
const LATER = (parameter: string): string => `clock_timestamp() + ${parameter}::bigint * interval '1 millisecond'`;
const OWN_BOUND = "current_setting('idle_in_transaction_session_timeout')";

const statements = (table: string) => ({
  reap: `UPDATE ${table} SET state = 'failed', lease_until = NULL,
    reason = CASE state WHEN 'running' THEN 'attempt ' || attempt || ' was the last of ' || $1::bigint
        || ', and its lease expired (worker ' || coalesce(worker, '?') || ')'
        ELSE coalesce(reason, 'no attempt is left') END
    WHERE id IN (SELECT id FROM ${table} WHERE attempt >= $1::bigint AND ${OPEN} FOR UPDATE SKIP LOCKED)
    RETURNING id`,
  take: `UPDATE ${table} SET state = 'running', attempt = attempt + 1, worker = $1::text, lease_until = ${LATER("$2")}
    WHERE id = (SELECT id FROM ${table} WHERE attempt < $3::bigint AND ${OPEN} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING *`,
  heartbeat: `UPDATE ${table} SET lease_until = ${LATER("$3")} WHERE ${MINE} RETURNING 1`,
  // If this program stops inside the transaction, the database ends it after the time of a lease. A tighter setting of your
  // own stays.
  guard: `SELECT set_config('idle_in_transaction_session_timeout', CASE
      WHEN ${OWN_BOUND}::interval BETWEEN interval '1 millisecond' AND $3::bigint * interval '1 millisecond'
      THEN ${OWN_BOUND} ELSE $3::bigint::text END, true)
    FROM ${table} WHERE ${MINE} FOR UPDATE`,
  finish: `UPDATE ${table} SET state = 'done', lease_until = NULL WHERE ${MINE} RETURNING 1`,
  ended: `SELECT 1 FROM ${table} WHERE id = $1 AND attempt = $2::bigint AND state <> 'running'`,
  fail: `UPDATE ${table} SET state = CASE WHEN attempt < $4::bigint THEN 'ready' ELSE 'failed' END, lease_until = NULL,
    reason = $3::text WHERE ${MINE} RETURNING 1`,
});

/** An error in the database: the transaction cannot commit any more, even if nobody looks at what is thrown here. */
const refusing = (table: string, id: JobId, attempt: number): string => `DO $palisade$
DECLARE newest bigint; BEGIN
  SELECT j.attempt INTO newest FROM ${table} j WHERE j.id = '${id}';
  IF newest > ${attempt} THEN
    RAISE EXCEPTION USING ERRCODE = 'PF001', DETAIL = newest::text, CONSTRAINT = 'job:${id}',
      MESSAGE = 'token ${attempt} is stale: ${attempt} < ' || newest || ' at resource job:${id}',
      HINT = 'another attempt has this job: give up, roll back, and write nothing more';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'PF010', DETAIL = '', CONSTRAINT = 'job:${id}',
    MESSAGE = 'attempt ${attempt} has ended at resource job:${id}',
    HINT = 'it was finished, has failed, or its row is gone: roll back, and write nothing more';
END $palisade$`;

/** The attempts at the jobs of one table. It keeps nothing: the table does. */
export class Attempts {
  readonly #table: string;
  readonly #authority: string;
  readonly #leaseMs: number;
  readonly #maxAttempts: number;
  readonly #sql: ReturnType<typeof statements>;

  /** Sends nothing. Throws `Invalid`. */
  constructor(options: AttemptsOptions = {}) {
    checkOptions("new Attempts", options, ["table", "leaseMs", "maxAttempts", "authority"]);
    const { table = "jobs", leaseMs = 30_000, maxAttempts = 5, authority = table } = options;
    checkText("the table", table);
    checkText("the authority", authority);
    if (!/^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$/.test(table)) {
      throw new Invalid(`${short(table)} is not the name of a table: letters, digits and _, schema.table or table`);
    }
    if (!Number.isInteger(maxAttempts) || maxAttempts < 1 || maxAttempts > 1_000_000) {
      throw new Invalid(`maxAttempts is ${short(maxAttempts)}: 1 to 1000000 are allowed`);
    }
    if (!/^[ -~]{1,255}$/.test(authority)) {
      throw new Invalid(`authority is ${short(authority)}: 1 to 255 printable ASCII characters are allowed`);
    }
    this.#table = table;
    this.#authority = authority;
    this.#maxAttempts = maxAttempts;
    this.#leaseMs = within("leaseMs", leaseMs, 1_000, 86_400_000);
    this.#sql = statements(table);
  }

  /**
   * Begins an attempt at the oldest job that is ready or whose lease has expired, and commits; undefined if there is none. A job
   * whose last attempt is over is moved to `failed` on the way. The worker's name, 1 – 255 characters, is for people.
   */
  async take(db: JobDatabase, worker: string): Promise<Attempt | undefined> {
    checkText("the worker's name", worker);
    if (worker.length < 1 || worker.length > 255) {
      throw new Invalid(`the worker's name has ${worker.length} characters: 1 to 255 are allowed`);
    }
    const other = mysql.mysqlOf(db);
    if (other !== undefined) {
      return mysql.alone(other, async (own) => {
        const row = await mysql.take(own, this.#table, worker, this.#leaseMs, this.#maxAttempts);
        return row === undefined ? undefined : this.#attempt(row, worker);
      });
    }
    return alone(db as Pool | ClientBase, async (own) => {
      await ask(own, this.#sql.reap, [this.#maxAttempts]);
      const [row] = await ask(own, this.#sql.take, [worker, this.#leaseMs, this.#maxAttempts]);
      return row === undefined ? undefined : this.#attempt(row as Record<string, unknown>, worker);
    });
  }

  /** Renews the lease, and commits. It waits while `transact` has the row, which keeps the job by itself. */
  async heartbeat(db: JobDatabase, attempt: Attempt): Promise<void> {
    const other = mysql.mysqlOf(db);
    if (other !== undefined) {
      checkAttempt(attempt);
      const change = mysql.CHANGES.heartbeat(this.#leaseMs);
      return mysql.alone(other, (own) => mysql.mine(own, this.#table, attempt, change));
    }
    await alone(db as Pool | ClientBase, (own) => this.#mine(own, this.#sql.heartbeat, attempt, this.#leaseMs));
  }

  /** Moves the jobs whose last attempt is over to `failed`, and commits. Returns their ids. `take` does it, too. */
  async reap(db: JobDatabase): Promise<JobId[]> {
    const other = mysql.mysqlOf(db);
    if (other !== undefined) {
      return mysql.alone(other, (own) => mysql.reap(own, this.#table, this.#maxAttempts)) as Promise<JobId[]>;
    }
    const rows = await alone(db as Pool | ClientBase, (own) => ask(own, this.#sql.reap, [this.#maxAttempts]));
    return rows.map((row) => (row as { id: JobId }).id);
  }

  /** First in the transaction that has all effects: nobody takes the job over before it ends. */
  async guard(db: ClientBase | MysqlConnection, attempt: Attempt): Promise<void> {
    if (await this.#inMysql(db, attempt, mysql.CHANGES.guard)) {
      return;
    }
    await this.#mine(db as ClientBase, this.#sql.guard, attempt, this.#leaseMs);
  }

  /** The job is done, if the transaction commits. */
  async finish(db: ClientBase | MysqlConnection, attempt: Attempt): Promise<void> {
    if (await this.#inMysql(db, attempt, mysql.CHANGES.finish)) {
      return;
    }
    await this.#mine(db as ClientBase, this.#sql.finish, attempt);
  }

  /** The job is ready again if attempts are left, unless `retry` is false; else it has failed. */
  async fail(
    db: ClientBase | MysqlConnection,
    attempt: Attempt,
    reason: string,
    options: { readonly retry?: boolean } = {},
  ): Promise<void> {
    checkText("the reason", reason);
    checkOptions("fail", options, ["retry"]);
    const { retry = true } = options;
    checkKind("the option retry", retry, typeof retry === "boolean", "true or false");
    const most = retry ? this.#maxAttempts : 0;
    if (await this.#inMysql(db, attempt, mysql.CHANGES.fail(reason, most))) {
      return;
    }
    await this.#mine(db as ClientBase, this.#sql.fail, attempt, reason, most);
  }

  /**
   * Runs a transaction with `guard` at its beginning and `finish` at its end, unless `work` called `finish` or `fail`. It rolls
   * back after an error. If the connection fails during the commit, the job is done with all effects, or nothing happened.
   */
  async transact<Result>(
    db: Pool | ClientBase,
    attempt: Attempt,
    work: (db: ClientBase) => Result | PromiseLike<Result>,
  ): Promise<Result>;
  async transact<Result, Connection extends MysqlConnection>(
    db: MysqlPool<Connection> | Connection,
    attempt: Attempt,
    work: (db: Connection) => Result | PromiseLike<Result>,
  ): Promise<Result>;
  async transact<Result>(
    db: JobDatabase,
    attempt: Attempt,
    work: (db: never) => Result | PromiseLike<Result>,
  ): Promise<Result> {
    checkWork(work);
    const other = mysql.mysqlOf(db);
    if (other !== undefined) {
      checkAttempt(attempt);
      return mysql.alone(other, async (own) => {
        await mysql.mine(own, this.#table, attempt, mysql.CHANGES.guard);
        const result = await work(own as never);
        await mysql.mine(own, this.#table, attempt, mysql.CHANGES.finish, true);
        return result;
      });
    }
    return alone(db as Pool | ClientBase, async (own) => {
      await this.guard(own, attempt);
      const result = await work(own as never);
      const values = [attempt.jobId, attempt.attempt];
      if ((await ask(own, this.#sql.finish, values)).length === 0) {
        // Under the lock of the guard only `work` itself can have ended it.
        await this.#mine(own, this.#sql.ended, attempt);
      }
      return result;
    });
  }

  /** A statement that finds the row of the attempt, or else a refusal. */
  async #mine(db: ClientBase, statement: string, attempt: Attempt, ...more: unknown[]): Promise<void> {
    checkAttempt(attempt);
    if ((await ask(db, statement, [attempt.jobId, attempt.attempt, ...more])).length === 0) {
      await ask(db, refusing(this.#table, attempt.jobId, attempt.attempt), []);
    }
  }

  /** Carries a change out, if it is a connection of MySQL or MariaDB. */
  async #inMysql(db: unknown, attempt: Attempt, change: string | undefined): Promise<boolean> {
    const other = mysql.mysqlOf(db);
    if (other === undefined) {
      return false;
    }
    checkAttempt(attempt);
    await mysql.mine(await mysql.inTransaction(other), this.#table, attempt, change);
    return true;
  }

  #attempt(row: Readonly<Record<string, unknown>>, worker: string): Attempt {
    const { id, attempt } = row;
    if (!isId(id)) {
      throw new Invalid(`the job id ${short(id)} is neither an integer nor a UUID`);
    }
    const number = Number(attempt);
    const resource = `job:${id}`;
    const authority = this.#authority;
    return { jobId: id, attempt: number, token: number, authority, lock: resource, resource, worker, row };
  }
}

function checkAttempt(attempt: unknown): void {
  const { jobId, attempt: number } = shapeOf(attempt);
  checkKind("the attempt", attempt, isId(jobId) && Number.isSafeInteger(number), "what take returns");
}

/** It becomes part of a resource's name, and of a statement. */
function isId(id: unknown): id is JobId {
  return ["string", "number", "bigint"].includes(typeof id) && /^[0-9A-Za-z_-]{1,200}$/.test(String(id));
}

/** A transaction of its own. */
async function alone<Result>(db: Pool | ClientBase, work: (db: ClientBase) => Promise<Result>): Promise<Result> {
  if (!isPool(db)) {
    const query = shapeOf(db)["query"];
    checkKind("the connection", db, typeof query === "function", "a Pool of pg, or a client outside of a transaction");
    // Outside of a transaction, `now()` is the time of the statement. Before 8.17, `pg` does not tell the status.
    const { rows } = await db.query<{ alone: boolean }>("SELECT now() = statement_timestamp() AS alone");
    if (rows[0]?.alone !== true) {
      throw new Invalid(
        "the client is in a transaction, which could be rolled back: an attempt has to count before its work begins, so end " +
          "that transaction first",
      );
    }
  }
  return transaction(db, work);
}
