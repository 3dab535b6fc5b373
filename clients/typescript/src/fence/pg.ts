/**
 * PostgreSQL: the fence on your own connection, in your own transaction, with `pg`.
 *
 * ```ts
 * await transact(pool, "orders", lease, async (db) => {        // claims first: no older holder can write
 *   await db.query("UPDATE orders SET total = total + 1");
 * });
 * ```
 *
 * `palisade fence install postgres` installs the functions, which decide. A rejection is an error, so the transaction can
 * only roll back. A claim must be the first statement of its transaction. Serialization failures (40001) and deadlocks
 * (40P01) come through as errors of `pg`: begin the same transaction again.
 *
 * @packageDocumentation
 */
import type { ClientBase, Pool, PoolClient } from "pg";

import { Invalid } from "../errors.js";
import { short } from "../options.js";
import { refused } from "../refusals.js";
import { checkHolders, checkResource, leftMs, presented, type Holder, type Pass, checkWork } from "./holder.js";
import { checkNumber, checkResult, checkWrite, type WriteNumber, type Written } from "./numbered.js";
import { ask, isPool, transaction } from "./pgsession.js";
import { checkRule, MAX_JUMP, type Rule } from "./rule.js";

export { MAX_RESULT_BYTES, type WriteNumber, type Written } from "./numbered.js";
export { rejection } from "./rejection.js";

// The types are written out, because the values are sent as text.
const PASS = "$3::text, $4::text, $5::boolean, $6::bigint";
// If this program stops inside the transaction, the database ends it when the lease is over. Your own setting is first.
const CLAIM =
  "WITH bound AS (SELECT set_config('palisade.lease_left_ms', " +
  "coalesce(nullif(current_setting('palisade.lease_left_ms', true), ''), $7::text, ''), true)) " +
  `SELECT palisade_claim($1::text, $2::bigint, ${PASS}) FROM bound`;
const CHECK = `SELECT palisade_check($1::text, $2::bigint, ${PASS})`;
const WRITE = `SELECT repeated, result FROM palisade_write($1::text, $2::bigint, $7::bigint, $8::bigint, ${PASS})`;
const RECORD = "SELECT palisade_record($1::text, $2::bigint, $3::bytea, $4::bigint)";

/**
 * Runs a transaction of its own: claims, carries out `work`, and commits. The connection belongs to `work` until it ends.
 *
 * Throws `Stale` if a newer holder has claimed, and passes on the errors of `work`; in both cases nothing was written. If
 * the connection fails during the commit, the error is that of `pg`, and the transaction may have been committed.
 */
export async function transact<Result>(
  pool: Pool,
  resource: string,
  holder: Holder,
  work: (db: PoolClient) => Result | PromiseLike<Result>,
  rule: Rule = {},
): Promise<Result> {
  checkResource(resource);
  return transactAll(pool, { [resource]: holder }, work, rule);
}

/** As `transact`, for several resources: it claims all of them or none. */
export async function transactAll<Result>(
  pool: Pool,
  holders: Readonly<Record<string, Holder>>,
  work: (db: PoolClient) => Result | PromiseLike<Result>,
  rule: Rule = {},
): Promise<Result> {
  if (!isPool(pool)) {
    throw new TypeError(
      `palisade: transact takes a Pool of pg, and not ${short(pool)}; ` +
        "on a client of your own, begin a transaction and call claim first",
    );
  }
  checkHolders(holders);
  checkWork(work);
  return transaction<PoolClient, Result>(pool, async (db) => {
    await claimAll(db, holders, rule);
    return work(db);
  });
}

/** Raises the fence: from the commit on, no older token is admitted at the resource. */
export async function claim(db: ClientBase, resource: string, holder: Holder, rule: Rule = {}): Promise<void> {
  checkResource(resource);
  await claimAll(db, { [resource]: holder }, rule);
}

/** Claims several resources at once: all of them or none. */
export async function claimAll(
  db: ClientBase,
  holders: Readonly<Record<string, Holder>>,
  rule: Rule = {},
): Promise<void> {
  checkHolders(holders);
  // In the order of the names, so that no two transactions wait for each other.
  const claims = Object.entries(holders)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([resource, holder]) => {
      const pass = presented(holder);
      return { resource, pass, values: claimValues(resource, pass, leftMs(holder), rule) };
    });
  if (claims.length === 0) {
    throw new Invalid("there is nothing to claim: name a resource");
  }
  for (const { resource, pass, values } of claims) {
    await asked(db, CLAIM, values, [resource, "claim", pass]);
  }
}

/** The last argument: the resource, what the caller called, and the holder. */
async function asked(
  db: ClientBase,
  text: string,
  values: readonly unknown[],
  [resource, helper, pass]: readonly [string, string, Pass],
): Promise<unknown[]> {
  try {
    return await ask(db, text, values);
  } catch (error) {
    throw refused(pass, resource, helper, error);
  }
}

/**
 * The claim as a statement without parameters, for a transaction of your framework's own: the first statement in it. It is for
 * one moment, because it says how long the lease lasts. A refusal is an error of the framework, in which `rejection` finds it.
 *
 * ```ts
 * await prisma.$transaction(async (tx) => {
 *   await tx.$executeRawUnsafe(claimStatement("orders", lease));
 *   await tx.order.updateMany({ data: { total: { increment: 1 } } });
 * });
 * ```
 *
 * Throws `LeaseLost` for a lease that is lost.
 */
export function claimStatement(resource: string, holder: Holder, rule: Rule = {}): string {
  const values = claimValues(resource, presented(holder), leftMs(holder), rule);
  return CLAIM.replace(/\$(\d)/g, (_, at: string) => literal(values[Number(at) - 1]));
}

/** Of a statement. */
type Parameter = string | number | boolean | null;

/** Frameworks take `?` for a parameter, and sessions differ in the meaning of a backslash: both are written in hexadecimal. */
function literal(value: Parameter | undefined): string {
  if (typeof value !== "string") {
    return String(value ?? "NULL");
  }
  const hex = Buffer.from(value).toString("hex");
  return /^[\w .:/~-]*$/.test(value) ? `'${value}'` : `convert_from(decode('${hex}', 'hex'), 'UTF8')`;
}

/** The parameters of `CLAIM`. */
function claimValues(resource: string, pass: Pass, left: number | undefined, rule: Rule): Parameter[] {
  return [...arguments_(resource, pass, rule), left ?? null];
}

/** Before a read that feeds a write, in a transaction that did not begin with a claim. */
export async function check(db: ClientBase, resource: string, holder: Holder, rule: Rule = {}): Promise<void> {
  const pass = presented(holder);
  await asked(db, CHECK, arguments_(resource, pass, rule), [resource, "read", pass]);
}

/** Before a write. With a number it is safe to repeat. */
export async function write(
  db: ClientBase,
  resource: string,
  holder: Holder,
  number?: WriteNumber,
  rule: Rule = {},
): Promise<Written> {
  checkWrite(number);
  const digest = number?.digest;
  // BIGINT has a sign, a digest has none.
  const signed = digest === undefined ? null : BigInt.asIntN(64, digest).toString();
  const pass = presented(holder);
  const values = [...arguments_(resource, pass, rule), number?.sequence ?? null, signed];
  const [row] = (await asked(db, WRITE, values, [resource, "write", pass])) as [
    { repeated: boolean; result: Uint8Array | null },
  ];
  return { repeat: row.repeated, result: row.result ?? undefined };
}

/** Records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out. */
export async function record(
  db: ClientBase,
  resource: string,
  holder: Holder,
  sequence: number,
  result: Uint8Array,
): Promise<void> {
  checkResource(resource);
  checkNumber(sequence);
  checkResult(result);
  const pass = presented(holder);
  await asked(db, RECORD, [resource, sequence, result, pass.token], [resource, "write", pass]);
}

function arguments_(resource: string, { token, authority, lock }: Pass, rule: Rule): Parameter[] {
  checkResource(resource);
  checkRule(rule);
  const maxJump = rule.maxJump === undefined ? MAX_JUMP : rule.maxJump;
  return [resource, token, authority ?? null, lock ?? null, rule.strict === true, maxJump];
}
