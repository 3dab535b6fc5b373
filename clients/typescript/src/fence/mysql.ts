/**
 * MySQL and MariaDB: the fence on your own connection, in your own transaction, with `mysql2`.
 *
 * ```ts
 * await transact(pool, "orders", lease, async (db) => {        // claims first: no older holder can write
 *   await db.query("UPDATE orders SET total = total + 1");
 * });
 * ```
 *
 * Pools and connections of `mysql2` and of `mysql2/promise` are taken alike; `work` gets a connection with promises.
 *
 * `palisade fence install mysql` installs the procedures, which decide. MySQL does not end a transaction after an error: roll
 * back after a rejection; `transact` does. A claim must be the first statement of its transaction, which would otherwise go on
 * seeing an older state. All tables must be InnoDB. Deadlocks (1213), lock time-outs (1205) and error 1615 (routines were
 * replaced) come through as errors of `mysql2`: begin again.
 *
 * MariaDB ends a transaction of a claim that stays idle for 10 seconds, or for longer than the rest of the lease. That bound
 * is the session's, and `transact` gives the connection its own one back. In a transaction of your own, `CALL
 * palisade_end(TRUE)` does that and commits, and with `FALSE` it rolls back.
 *
 * @packageDocumentation
 */
import type { Connection as CallbackConnection, Pool as CallbackPool } from "mysql2";
import type { Connection, Pool, PoolConnection } from "mysql2/promise";

import { Invalid, OperatorNeeded } from "../errors.js";
import { shapeOf, short } from "../options.js";
import { refused } from "../refusals.js";
import { FenceNotInstalled, Rejected } from "./errors.js";
import { checkHolders, checkResource, leftMs, presented, type Holder, type Pass, checkWork } from "./holder.js";
import { rejectionOf } from "./rejection.js";
import { checkRule, MAX_JUMP, type Rule } from "./rule.js";

export { rejection } from "./rejection.js";

/**
 * Resource, token, authority, lock, whether it is a write, sequence, digest, strict, max_jump.
 *
 * It is no prepared statement: `mysql2` keeps those, and after `USE` they would go on to claim in the database before. Names
 * are hexadecimal, because what a quote needs depends on the session's sql_mode.
 */
function claiming(resource: string, pass: Pass, { strict, maxJump = MAX_JUMP }: Rule): string {
  checkResource(resource);
  const { token, authority, lock } = pass;
  if (maxJump !== null && !Number.isSafeInteger(maxJump)) {
    throw new TypeError(`palisade: maxJump is a whole number or null, and not ${short(maxJump)}`);
  }
  const values = [
    hex(resource),
    token,
    hex(authority),
    hex(lock),
    "FALSE, NULL, NULL",
    strict === true,
    maxJump ?? "NULL",
  ];
  return `CALL palisade_judge(${values.join(", ")})`;
}

function hex(name: string | undefined): string {
  return name === undefined ? "NULL" : `x'${Buffer.from(name).toString("hex")}'`;
}

/**
 * Runs a transaction of its own: claims, carries out `work`, and commits. The connection belongs to `work` until it ends.
 *
 * Throws `Stale` if a newer holder has claimed, and passes on the errors of `work`; in both cases nothing was written. If the
 * connection fails during the commit, the error is that of `mysql2`, and the transaction may have been committed.
 */
export async function transact<Result>(
  pool: Pool | CallbackPool,
  resource: string,
  holder: Holder,
  work: (db: PoolConnection) => Result | PromiseLike<Result>,
  rule: Rule = {},
): Promise<Result> {
  checkResource(resource);
  return transactAll(pool, { [resource]: holder }, work, rule);
}

/** As `transact`, for several resources: it claims all of them or none. */
export async function transactAll<Result>(
  pool: Pool | CallbackPool,
  holders: Readonly<Record<string, Holder>>,
  work: (db: PoolConnection) => Result | PromiseLike<Result>,
  rule: Rule = {},
): Promise<Result> {
  const promises = promised(pool);
  checkHolders(holders);
  checkWork(work);
  const db = await promises.getConnection();
  let broken = false;
  try {
    await db.beginTransaction();
    await claimAll(db, holders, rule);
    const result = await work(db);
    // The procedure commits: between a commit and another statement this program could stop with the wrong bound.
    await db.query("CALL palisade_end(TRUE)");
    return result;
  } catch (error) {
    broken = await db.query("CALL palisade_end(FALSE)").then(
      () => false,
      () => true,
    );
    if (broken) {
      // The pool gets no connection with another one's bound.
      await db.rollback().catch(() => undefined);
    }
    throw translated(error);
  } finally {
    if (broken) {
      db.destroy();
    } else {
      db.release();
    }
  }
}

/** The pool of `mysql2`, with promises; that of `mysql2` itself has callbacks, and another one under `promise()`. */
function promised(pool: unknown): Pool {
  const found = (pool ?? {}) as Partial<Pool> & { promise?(): Pool };
  if (typeof found.promise === "function") {
    return found.promise();
  }
  if (typeof found.getConnection !== "function") {
    throw new TypeError(
      `palisade: transact takes a pool, as createPool of mysql2/promise makes it, and not ${short(pool)}; ` +
        "on a connection of your own, begin a transaction and call claim first",
    );
  }
  return found as Pool;
}

/** The connection with promises; that of `mysql2` itself has callbacks, and the same one with promises under `promise()`. */
function connected(connection: unknown): Connection {
  const found = shapeOf(connection) as Partial<Connection> & { promise?(): Connection };
  if (typeof found.query !== "function" || "getConnection" in found) {
    throw new TypeError(
      `palisade: claim takes a connection of mysql2 or mysql2/promise, in a transaction, and not ${short(connection)}: ` +
        "a pool would carry out each statement on another connection. Take one with pool.getConnection(), and call its " +
        "beginTransaction(), or call transact, which does both",
    );
  }
  return typeof found.promise === "function" ? found.promise() : (found as Connection);
}

/**
 * The claim as a statement without parameters, for a transaction of your framework's own: the first statement in it. A refusal
 * is an error of the framework, in which `rejection` finds it.
 *
 * ```ts
 * await knex.transaction(async (trx) => {
 *   await trx.raw(claimStatement("orders", lease));
 *   await trx("orders").increment("total", 1);
 * });
 * ```
 *
 * In MariaDB the connection goes on with the bound of 10 seconds: see the top of this module. Throws `LeaseLost` for a lease
 * that is lost.
 */
export function claimStatement(resource: string, holder: Holder, rule: Rule = {}): string {
  checkRule(rule);
  return claiming(resource, presented(holder), rule);
}

/** Raises the fence: from the commit on, no older token is admitted at the resource. */
export async function claim(
  db: Connection | CallbackConnection,
  resource: string,
  holder: Holder,
  rule: Rule = {},
): Promise<void> {
  checkResource(resource);
  await claimAll(db, { [resource]: holder }, rule);
}

/** Claims several resources at once. After an error roll back: some may be claimed. */
export async function claimAll(
  connection: Connection | CallbackConnection,
  holders: Readonly<Record<string, Holder>>,
  rule: Rule = {},
): Promise<void> {
  const db = connected(connection);
  checkRule(rule);
  checkHolders(holders);
  // In the order of the names, so that no two transactions wait for each other.
  const claims = Object.entries(holders)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([resource, holder]) => {
      const pass = presented(holder);
      return { resource, pass, statement: claiming(resource, pass, rule) };
    });
  if (claims.length === 0) {
    throw new Invalid("there is nothing to claim: name a resource");
  }
  const left = Object.values(holders)
    .map(leftMs)
    .filter((ms) => ms !== undefined);
  if (left.length > 0) {
    // If this program stops inside the transaction, MariaDB ends it when the lease is over.
    await db.query(`SET @palisade_lease_left_ms = ${Math.min(...left)}`);
  }
  for (const { resource, pass, statement } of claims) {
    try {
      await db.query(statement);
    } catch (error) {
      throw refused(pass, resource, "claim", translated(error));
    }
  }
}

function translated(error: unknown): unknown {
  const refused = error instanceof Rejected ? error : rejectionOf(error);
  if (refused !== undefined) {
    return refused;
  }
  const { errno, sqlState, sqlMessage } = (error ?? {}) as {
    errno?: unknown;
    sqlState?: unknown;
    sqlMessage?: unknown;
  };
  const said = String(sqlMessage);
  if ((errno === 1305 || errno === 1146) && said.includes("palisade_")) {
    const older = errno === 1305 ? "it was never installed, or by an older version: " : "";
    return new FenceNotInstalled(`${said}; ${older}run \`palisade fence install mysql\``, { cause: error });
  }
  if (errno === 1370 && said.includes("palisade_")) {
    const advice = "the user needs the right to call the fence: GRANT EXECUTE ON the database";
    return new OperatorNeeded("forbidden", `${said}; ${advice}`, { cause: error });
  }
  if (sqlState === "PF012") {
    return new Invalid(said, "read_before_claim");
  }
  return sqlState === "PF013" ? new Invalid(`${said}: call beginTransaction() on this connection first`) : error;
}
