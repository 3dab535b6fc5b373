/** With the callbacks of `mysql2`, and a transaction of one's own. */
import mysql from "mysql2";
import { claim } from "palisade-client/fence/mysql";

export const engines = ["mysql"];

export async function open(url, { most = 4, waitMs = 60_000 } = {}) {
  const pool = mysql.createPool({ uri: url, connectionLimit: most, waitForConnections: waitMs > 1_000 });
  const connection = () =>
    new Promise((resolve, reject) => {
      pool.getConnection((error, db) => (error ? reject(error) : resolve(db)));
    });
  return {
    native: [pool],
    transaction: async (work) => {
      const db = await connection();
      const promises = db.promise();
      try {
        await promises.beginTransaction();
        const result = await work({
          claim: (resource, holder) => claim(db, resource, holder),
          read: async (name) => (await promises.query("SELECT total FROM counters WHERE name = ?", [name]))[0][0].total,
          write: (name, total, table = "counters") =>
            promises.query("UPDATE ?? SET total = ? WHERE name = ?", [table, total, name]),
        });
        await promises.commit();
        return result;
      } catch (error) {
        await promises.rollback().catch(() => undefined);
        throw error;
      } finally {
        db.release();
      }
    },
    close: () => pool.promise().end(),
  };
}
