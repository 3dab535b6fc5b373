import { rejected, Rejected, staleToken, isRejectionCode, type RejectionCode, type Told } from "./errors.js";

/** Where frameworks keep the error of the database: `meta` and `driverAdapterError` are Prisma's, `driverError` is TypeORM's. */
const INNER = ["cause", "driverError", "meta", "driverAdapterError", "original", "parent", "errors"];
/** The most errors that are looked at: each may keep several. */
const MOST = 64;

/**
 * The refusal of a fence, whatever it is wrapped in; undefined if no fence refused anything. It knows the errors of `pg`,
 * `mysql2`, `mariadb`, `ioredis` and `redis`, and finds them in the errors of Prisma, Drizzle, Knex, TypeORM and of others that
 * keep a `cause`.
 *
 * ```ts
 * const refused = rejection(error);
 * if (refused?.code === "stale") return; // a newer holder has claimed: give up, and write nothing more
 * ```
 */
export function rejection(error: unknown): Rejected | undefined {
  const found = new Set([error]);
  for (const each of found) {
    if (each instanceof Rejected) {
      return each;
    }
    const known = rejectionOf(each);
    if (known !== undefined) {
      return known;
    }
    for (const inner of innerOf(each)) {
      // A chain may end in itself. A set goes on with what is added.
      if (found.size < MOST) {
        found.add(inner);
      }
    }
  }
  return undefined;
}

function innerOf(error: unknown): unknown[] {
  if (typeof error !== "object" || error === null) {
    return [];
  }
  const shape = error as Readonly<Record<string, unknown>>;
  return Array.isArray(error)
    ? (error as unknown[])
    : INNER.map((name) => shape[name]).filter((one) => one !== undefined);
}

/** The rejections by SQLSTATE, with the meaning of the numbers at the end of the messages of MySQL. */
const REJECTIONS: Readonly<Record<string, [RejectionCode, ...(keyof Told)[]]>> = {
  PF001: ["stale", "token", "highest"],
  PF002: ["tokenless", "highest"],
  PF005: ["wrong_authority", "authority"],
  PF006: ["wrong_lock", "lock"],
  PF007: ["jump", "bound", "highest"],
  PF008: ["sequence_stale", "last"],
  PF009: ["sequence_reused", "last"],
  PF010: ["already_written"],
};

/** The rejection that this one error is, of a database or of Redis; what it is wrapped in is not looked at. @internal */
export function rejectionOf(error: unknown): Rejected | undefined {
  if (typeof error !== "object" || error === null) {
    return undefined;
  }
  const { code, sqlState, state, detail, sqlMessage, message } = error as Readonly<Record<string, unknown>>;
  const said = typeof sqlMessage === "string" ? sqlMessage : typeof message === "string" ? message : "";
  if (typeof code === "string" && Object.hasOwn(REJECTIONS, code)) {
    return ofPostgres(code, typeof detail === "string" ? detail : undefined, said);
  }
  // `state` is that of Prisma's adapter for MariaDB.
  const mysql = sqlState ?? state;
  if (typeof mysql === "string" && Object.hasOwn(REJECTIONS, mysql)) {
    return ofMysql(mysql, said);
  }
  return ofRedis(said);
}

function ofPostgres(state: string, detail: string | undefined, said: string): Rejected | undefined {
  const [code] = REJECTIONS[state] ?? [];
  if (code === undefined) {
    return undefined;
  }
  // Some layers leave the detail out, and the message has both numbers.
  const number = wholeNumber(detail) ?? wholeNumber(/ is stale: \d+ < (\d+)/.exec(said)?.[1]);
  if (code === "jump") {
    const [highest, bound] = (detail ?? "").split(" ").map(wholeNumber);
    return rejected(code, { highest: highest === 0 ? undefined : highest, bound });
  }
  return told(code, number, detail ?? "", said);
}

/** Of the name of another authority or lock, the message has the first 80 bytes. */
function ofMysql(state: string, said: string): Rejected | undefined {
  const [code, ...names] = REJECTIONS[state] ?? [];
  if (code === undefined) {
    return undefined;
  }
  const numbers = said.match(/\d+/g)?.slice(-names.length).map(Number) ?? [];
  const name = /belongs to another (?:authority|lock): (.*)$/.exec(said)?.[1];
  const details = names.map((one, at) => [
    one,
    one === "authority" || one === "lock" ? name : numbers[at] || undefined,
  ]);
  return rejected(code, Object.fromEntries(details) as Told);
}

/** An error of the form `PALISADE CODE VALUE: what to do`. */
const OF_REDIS = /^PALISADE (\w+) (.*?): (.*)$/s;

/** The parts of what the functions in Redis said: code, value, and what to do. @internal */
export function partsOf(said: string): readonly [string, string, string] {
  const [, code = "", value = "", says = ""] = OF_REDIS.exec(said) ?? [];
  return [code, value, says];
}

function ofRedis(said: string): Rejected | undefined {
  const [code, value] = partsOf(said);
  return isRejectionCode(code) ? told(code, wholeNumber(value), value, said) : undefined;
}

function told(code: RejectionCode, number: number | undefined, name: string, said: string): Rejected {
  return rejected(code, {
    token: staleToken(said),
    highest: code === "stale" || code === "jump" || code === "tokenless" ? number : undefined,
    last: code.startsWith("sequence_") ? number : undefined,
    authority: code === "wrong_authority" ? name : undefined,
    lock: code === "wrong_lock" ? name : undefined,
  });
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : undefined;
}
