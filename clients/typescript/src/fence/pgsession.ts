/** Transactions of `pg`, for the fence and for attempts. */
import type { ClientBase, Pool, PoolClient } from "pg";

import { Invalid } from "../errors.js";
import { shapeOf, short } from "../options.js";
import { FenceNotInstalled, Rejected } from "./errors.js";
import { rejectionOf } from "./rejection.js";

export function isPool(pool: unknown): pool is Pool {
  const shape = shapeOf(pool);
  return shape["totalCount"] !== undefined && typeof shape["connect"] === "function";
}

/** Runs a transaction on a client, which is in none, or on one of the pool's. */
export async function transaction<Db extends ClientBase, Result>(
  on: Pool | Db,
  work: (db: Db | PoolClient) => Result | PromiseLike<Result>,
): Promise<Result> {
  const pooled = isPool(on) ? await on.connect() : undefined;
  const db = pooled ?? (on as Db);
  // A connection that breaks between two statements says so here, and without a listener that ends the process. The next
  // statement fails.
  db.on("error", ignore);
  let broken = false;
  try {
    await db.query("BEGIN");
    const result = await work(db);
    const { command } = await db.query("COMMIT");
    if (command !== "COMMIT") {
      // A statement failed and the error was caught: PostgreSQL then answers COMMIT with ROLLBACK.
      throw new Error("palisade: the transaction was rolled back, because one of its statements had failed");
    }
    return result;
  } catch (error) {
    broken = await db.query("ROLLBACK").then(
      () => false,
      () => true,
    );
    throw translated(error);
  } finally {
    db.removeListener("error", ignore);
    pooled?.release(broken);
  }
}

function ignore(): void {
  // See where it is added.
}

/** Asks a statement in a transaction. */
export async function ask(db: ClientBase, text: string, values: readonly unknown[]): Promise<unknown[]> {
  // A pool would carry out each statement on another connection. `pg` tells the status from 8.17 on.
  const told = db as { getTransactionStatus?(): string | null };
  if (typeof (db as { query?: unknown } | undefined)?.query !== "function") {
    throw new TypeError(`palisade: a fence takes a client of pg, in a transaction, and not ${short(db)}`);
  }
  if ("totalCount" in db || told.getTransactionStatus?.() === "I") {
    throw new Invalid("a fence needs a transaction: BEGIN on one connection, then claim and write on that connection");
  }
  try {
    return (await db.query<Record<string, unknown>>(text, [...values])).rows;
  } catch (error) {
    throw translated(error);
  }
}

function translated(error: unknown): unknown {
  const refused = error instanceof Rejected ? error : rejectionOf(error);
  if (refused !== undefined) {
    return refused;
  }
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown };
  const said = String(message).replaceAll("\n", " ");
  if ((code === "42P01" || code === "42883") && said.includes("palisade_")) {
    return new FenceNotInstalled(`${said}; run \`palisade fence install postgres\``, { cause: error });
  }
  if (code === "PF012") {
    return new Invalid(said, "read_before_claim");
  }
  if (code === "PF004") {
    return new Invalid(said);
  }
  return error;
}
