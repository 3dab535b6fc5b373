import { eq, sql } from "drizzle-orm";
import * as mysqlCore from "drizzle-orm/mysql-core";
import { drizzle as drizzleMysql } from "drizzle-orm/mysql2";
import { drizzle as drizzlePg } from "drizzle-orm/node-postgres";
import * as pgCore from "drizzle-orm/pg-core";
import mysql from "mysql2/promise";
import pg from "pg";
import * as onMysql from "palisade-client/fence/mysql";
import * as onPg from "palisade-client/fence/pg";

export const engines = ["postgresql", "mysql"];

const columns = ({ varchar, int, integer }) => ({
  name: varchar({ length: 64 }).primaryKey(),
  total: (integer ?? int)(),
});

export async function open(url, { most = 4, waitMs = 60_000 } = {}) {
  const isMysql = url.startsWith("mysql:");
  const { claimStatement } = isMysql ? onMysql : onPg;
  const pool = isMysql
    ? mysql.createPool({ uri: url, connectionLimit: most, waitForConnections: waitMs > 1_000 })
    : new pg.Pool({ connectionString: url, max: most, connectionTimeoutMillis: waitMs });
  // The pool listens to idle connections only: without this, one that the database ends in a transaction ends the process.
  pool.on(isMysql ? "connection" : "connect", (connection) => connection.on("error", () => undefined));
  const db = isMysql ? drizzleMysql({ client: pool }) : drizzlePg({ client: pool });
  const table = isMysql ? mysqlCore.mysqlTable : pgCore.pgTable;
  const kinds = isMysql ? mysqlCore : pgCore;
  const tables = { counters: table("counters", columns(kinds)), orders: table("orders", columns(kinds)) };
  const { counters } = tables;
  return {
    native: [db, tables.orders],
    transaction: (work) =>
      db.transaction((tx) =>
        work({
          claim: (...given) => tx.execute(sql.raw(claimStatement(...given))),
          read: async (name) => (await tx.select().from(counters).where(eq(counters.name, name)))[0].total,
          write: (name, total, table = "counters") =>
            tx.update(tables[table]).set({ total }).where(eq(tables[table].name, name)),
        }),
      ),
    close: () => pool.end(),
  };
}
