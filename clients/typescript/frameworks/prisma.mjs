import { URL } from "node:url";

import { PrismaMariaDb } from "@prisma/adapter-mariadb";
import { PrismaPg } from "@prisma/adapter-pg";
import * as onMysql from "palisade-client/fence/mysql";
import * as onPg from "palisade-client/fence/pg";

export const engines = ["postgresql", "mysql"];

export async function open(url, { most = 4, waitMs = 60_000 } = {}) {
  const isMysql = url.startsWith("mysql:");
  const { claimStatement } = isMysql ? onMysql : onPg;
  const { PrismaClient } = await import(isMysql ? "./generated/mysql/index.js" : "./generated/postgresql/index.js");
  const { hostname, port, username, pathname } = new URL(url);
  const adapter = isMysql
    ? new PrismaMariaDb({
        host: hostname,
        port: +port,
        user: username,
        database: pathname.slice(1),
        connectionLimit: most,
      })
    : new PrismaPg({ connectionString: url, max: most });
  const prisma = new PrismaClient({ adapter });
  return {
    native: [prisma],
    transaction: (work) =>
      prisma.$transaction(
        (tx) =>
          work({
            claim: (...given) => tx.$executeRawUnsafe(claimStatement(...given)),
            read: async (name) => (await tx.counters.findUniqueOrThrow({ where: { name } })).total,
            write: (name, total, table = "counters") => tx[table].update({ where: { name }, data: { total } }),
          }),
        // By default Prisma waits 2 s for a connection, and ends a transaction after 5 s.
        { maxWait: waitMs, timeout: 60_000 },
      ),
    close: () => prisma.$disconnect(),
  };
}
