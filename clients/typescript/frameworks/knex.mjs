import knex from "knex";
import * as onMysql from "palisade-client/fence/mysql";
import * as onPg from "palisade-client/fence/pg";

export const engines = ["postgresql", "mysql"];

export async function open(url, { most = 4, waitMs = 60_000 } = {}) {
  const isMysql = url.startsWith("mysql:");
  const { claimStatement } = isMysql ? onMysql : onPg;
  const db = knex({
    client: isMysql ? "mysql2" : "pg",
    connection: url,
    pool: { min: 0, max: most },
    acquireConnectionTimeout: waitMs,
  });
  return {
    native: [db],
    transaction: (work) =>
      db.transaction((trx) =>
        work({
          claim: (...given) => trx.raw(claimStatement(...given)),
          read: async (name) => (await trx("counters").where({ name }).first()).total,
          write: (name, total, table = "counters") => trx(table).where({ name }).update({ total }),
        }),
      ),
    close: () => db.destroy(),
  };
}
