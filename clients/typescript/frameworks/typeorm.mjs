import { DataSource, EntitySchema } from "typeorm";
import * as onMysql from "palisade-client/fence/mysql";
import * as onPg from "palisade-client/fence/pg";

export const engines = ["postgresql", "mysql"];

const entity = (name) =>
  new EntitySchema({ name, columns: { name: { type: "varchar", primary: true }, total: { type: "int" } } });

export async function open(url, { most = 4, waitMs = 60_000 } = {}) {
  const isMysql = url.startsWith("mysql:");
  const { claimStatement } = isMysql ? onMysql : onPg;
  const source = await new DataSource({
    type: isMysql ? "mysql" : "postgres",
    url,
    poolSize: most,
    entities: [entity("counters"), entity("orders")],
    extra: isMysql ? { waitForConnections: waitMs > 1_000 } : { connectionTimeoutMillis: waitMs },
  }).initialize();
  return {
    native: [source],
    transaction: (work) =>
      source.transaction((manager) =>
        work({
          claim: (...given) => manager.query(claimStatement(...given)),
          read: async (name) => (await manager.findOneByOrFail("counters", { name })).total,
          write: (name, total, table = "counters") => manager.update(table, { name }, { total }),
        }),
      ),
    close: () => source.destroy(),
  };
}
