/** A transaction that claims before anything is read, in PostgreSQL and MariaDB. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { before, suite, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { createConnection, createPool, type Pool as CallbackPool, type PoolConnection } from "mysql2";
import mysql from "mysql2/promise";
import pg from "pg";

import { Invalid, OperatorNeeded } from "../src/index.js";
import { FenceNotInstalled, Rejected, Stale, type Holder } from "../src/fence/index.js";
import * as onMysql from "../src/fence/mysql.js";
import * as onPg from "../src/fence/pg.js";
import { binary, mariadb, postgres, unique, wholeFile } from "./servers.js";

const RACERS = 4;
const TURNS = 50;
const scope = wholeFile();
let postgresPool: pg.Pool;
let mysqlPool: mysql.Pool;
let callbackPool: CallbackPool;
let url: string;

/** Asks a statement, and returns the first column of the first row. */
type Ask = (statement: string) => Promise<unknown>;

interface Engine {
  readonly transact: (holders: Record<string, Holder>, work: (ask: Ask) => Promise<unknown>) => Promise<unknown>;
  readonly unfenced: (work: (ask: Ask) => Promise<unknown>) => Promise<unknown>;
  readonly ask: Ask;
}

const asking =
  (db: pg.Pool | pg.PoolClient): Ask =>
  async (statement) =>
    Object.values((await db.query<Record<string, unknown>>(statement)).rows[0] ?? {})[0];
const askingMysql =
  (db: mysql.Pool | mysql.PoolConnection): Ask =>
  async (statement) => {
    const [rows] = await db.query<mysql.RowDataPacket[]>(statement);
    return Object.values((Array.isArray(rows) ? rows[0] : undefined) ?? {})[0] as unknown;
  };

const engines: Record<string, Engine> = {
  postgresql: {
    transact: (holders, work) => onPg.transactAll(postgresPool, holders, (db) => work(asking(db))),
    unfenced: async (work) => {
      const db = await postgresPool.connect();
      await db.query("BEGIN");
      await work(asking(db));
      await db.query("COMMIT");
      db.release();
    },
    ask: (statement) => asking(postgresPool)(statement),
  },
  mariadb: {
    transact: (holders, work) => onMysql.transactAll(mysqlPool, holders, (db) => work(askingMysql(db))),
    unfenced: async (work) => {
      const db = await mysqlPool.getConnection();
      // At MariaDB's default level, from 11.6 on, the server itself refuses to change rows that were read before another
      // client's commit.
      await db.query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
      await db.beginTransaction();
      await work(askingMysql(db));
      await db.commit();
      db.release();
    },
    ask: (statement) => askingMysql(mysqlPool)(statement),
  },
};

before(async () => {
  const [one, other] = await Promise.all([postgres(scope), mariadb(scope)]);
  url = other;
  postgresPool = new pg.Pool({ connectionString: one });
  postgresPool.on("error", () => undefined);
  mysqlPool = mysql.createPool(other);
  callbackPool = createPool(other);
  scope.after(async () => {
    await Promise.all([postgresPool.end(), mysqlPool.end(), callbackPool.promise().end()]);
  });
  for (const { ask } of Object.values(engines)) {
    await ask("CREATE TABLE race (name varchar(64) PRIMARY KEY, total int)");
  }
});

async function fresh({ ask }: Engine): Promise<string> {
  const name = unique("race");
  await ask(`INSERT INTO race VALUES ('${name}', 0)`);
  return name;
}

const totalOf = async (ask: Ask, name: string): Promise<number> =>
  Number(await ask(`SELECT total FROM race WHERE name = '${name}'`));

/** Reads, computes, and writes the result. */
async function add(ask: Ask, name: string): Promise<void> {
  const total = await totalOf(ask, name);
  await setImmediate();
  await ask(`UPDATE race SET total = ${total + 1} WHERE name = '${name}'`);
}

/** How many acknowledged adds are missing after holders, each with a newer token, have raced one another. */
async function raceLoses(engine: Engine, fenced: boolean): Promise<number> {
  const name = await fresh(engine);
  let token = 0;
  let acknowledged = 0;
  const race = async (): Promise<void> => {
    for (let turn = 0; turn < TURNS; turn += 1) {
      token += 1;
      try {
        const work = (ask: Ask): Promise<void> => add(ask, name);
        await (fenced ? engine.transact({ [name]: token }, work) : engine.unfenced(work));
        acknowledged += 1;
      } catch (error) {
        assert.ok(error instanceof Stale, String(error));
      }
    }
  };
  await Promise.all(Array.from({ length: RACERS }, race));
  assert.ok(acknowledged > RACERS, `only ${acknowledged} adds`);
  return acknowledged - (await totalOf(engine.ask, name));
}

for (const [name, engine] of Object.entries(engines)) {
  suite(name, () => {
    test("a race loses nothing", async () => {
      assert.equal(await raceLoses(engine, true), 0);
      // A control: without a claim, adds are lost.
      let lost = 0;
      for (let round = 0; lost === 0 && round < 20; round += 1) {
        lost = await raceLoses(engine, false);
      }
      assert.ok(lost > 0, "the race shows nothing");
    });

    test("nothing is written by an older holder or after an error", async () => {
      const [one, other] = [await fresh(engine), await fresh(engine)];
      const work = (ask: Ask): Promise<void> => add(ask, one);
      await engine.transact({ [one]: 8 }, work);
      await assert.rejects(
        engine.transact({ [one]: 7 }, work),
        (error) => error instanceof Stale && error.message.includes("token 7 is stale: 7 < 8"),
      );
      const failing = async (ask: Ask): Promise<void> => {
        await work(ask);
        throw new RangeError("the work failed");
      };
      await assert.rejects(engine.transact({ [one]: 9 }, failing), RangeError);
      // The failed work took its claim with it.
      await engine.transact({ [one]: 8 }, work);
      await engine.transact({ [other]: 9 }, () => Promise.resolve());
      await assert.rejects(engine.transact({ [one]: 8, [other]: 8 }, work), Stale);
      await engine.transact({ [one]: 10, [other]: 10 }, work);
      assert.equal(await totalOf(engine.ask, one), 3);
      const jump = await engine.transact({ [one]: 2 ** 50 }, work).catch((error: unknown) => error);
      assert.ok(jump instanceof Rejected);
      assert.deepEqual([jump.code, jump.highest, jump.bound], ["jump", 10, 2 ** 46]);
      const bound = { token: 11, authority: "a", lock: "l" };
      await engine.transact({ [one]: bound }, work);
      await assert.rejects(engine.transact({ [one]: { ...bound, authority: "b" } }, work), {
        code: "wrong_authority",
        authority: "a",
      });
      await assert.rejects(engine.transact({ [one]: { ...bound, lock: "m" } }, work), {
        code: "wrong_lock",
        lock: "l",
      });
    });

    test("what is plausible and wrong is named, and nothing is written", async () => {
      const one = await fresh(engine);
      const work = (ask: Ask): Promise<void> => add(ask, one);
      const lease = Promise.resolve({ token: 7 });
      for (const [holder, says] of [
        [undefined, /a fence takes a lease, .* and not undefined/],
        [null, /and not null/],
        ["7", /and not '7'/],
        [7n, /and not 7n/],
        [lease, /await the lease/],
        [{ fencing_token: 7 }, /and not \{ fencing_token: 7 \}/],
      ] as const) {
        await assert.rejects(engine.transact({ [one]: holder as never }, work), (error) => {
          assert.ok(error instanceof TypeError, String(error));
          assert.match(error.message, says);
          return true;
        });
      }
      for (const holder of [0, 1.5, NaN, { token: -1 }, { token: "7" }]) {
        await assert.rejects(engine.transact({ [one]: holder as never }, work), Invalid);
      }
      await assert.rejects(engine.transact({}, work), Invalid);
      assert.equal(await totalOf(engine.ask, one), 0);
    });
  });
}

test("objects as people have them", async () => {
  const claimed = (): undefined => undefined;
  // Pools and connections of mysql2 with callbacks are taken, too.
  await onMysql.transact(callbackPool, "orders", 7, claimed);
  const inPool = await new Promise<PoolConnection>((resolve, reject) => {
    callbackPool.getConnection((error, db) => {
      if (error === null) {
        resolve(db);
      } else {
        reject(error);
      }
    });
  });
  for (const connection of [inPool, createConnection(url)]) {
    await assert.rejects(onMysql.claim(connection, "orders", 8), {
      code: "invalid",
      message: /call beginTransaction\(\)/,
    });
    await connection.promise().beginTransaction();
    await onMysql.claim(connection, "orders", 8);
    await connection.promise().rollback();
    connection.destroy();
  }
  const wrong: [() => Promise<unknown>, RegExp][] = [
    [() => onMysql.transact(postgresPool as never, "a", 7, claimed), /createPool of mysql2\/promise/],
    [() => onMysql.transact("mysql://" as never, "a", 7, claimed), /createPool of mysql2\/promise/],
    [() => onMysql.claim(mysqlPool as never, "a", 7), /takes a connection of mysql2 .* pool\.getConnection\(\)/],
    [() => onMysql.claim(callbackPool as never, "a", 7), /takes a connection of mysql2 .* pool\.getConnection\(\)/],
    [
      () => onMysql.transact(mysqlPool, "a", 7, claimed, { max_jump: 5 } as never),
      /no option max_jump: did you mean maxJump/,
    ],
    [() => onPg.transact(mysqlPool as never, "a", 7, claimed), /takes a Pool of pg/],
    [() => onPg.transact({} as never, "a", 7, claimed), /takes a Pool of pg/],
    [() => onPg.claim(undefined as never, "a", 7), /takes a client of pg/],
    [() => onPg.transact(postgresPool, "a", 7, claimed, { maxjump: 5 } as never), /did you mean maxJump/],
    [() => onPg.transact(postgresPool, "a", 7, claimed, 5 as never), /takes an object of options/],
  ];
  for (const [call, says] of wrong) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof TypeError, String(error));
      assert.match(error.message, says);
      return true;
    });
  }
  const db = await mysqlPool.getConnection();
  await assert.rejects(onMysql.claim(db, "orders", 8), { code: "invalid", message: /a fence needs a transaction/ });
  await db.query("CREATE DATABASE bare");
  await db.query("USE bare");
  await db.beginTransaction();
  await assert.rejects(onMysql.claim(db, "orders", 8), FenceNotInstalled);
  db.destroy();
});

const IDLE = "SELECT @@SESSION.idle_write_transaction_timeout";
const leased = (token: number, ms: number): Holder => ({ token, remainingMs: ms });

// Else a later transaction of the connection, perhaps without a claim, would be ended by the bound of this one.
test("transact leaves the connection its own bound", async () => {
  const pool = mysql.createPool({ uri: url, connectionLimit: 1 });
  try {
    const ask = askingMysql(pool);
    const resource = unique("bound");
    for (const own of [0, 300]) {
      await ask(`SET SESSION idle_write_transaction_timeout = ${own}`);
      const session = await ask("SELECT CONNECTION_ID()");
      for (const [token, fails, wanted] of [
        [2, false, undefined],
        [3, true, RangeError],
        [1, false, Stale],
      ] as const) {
        const done = onMysql.transact(pool, resource, leased(token, 6_500), async (db) => {
          assert.equal(await askingMysql(db)(IDLE), 7);
          if (fails) {
            throw new RangeError("the work failed");
          }
        });
        await (wanted === undefined ? done : assert.rejects(done, wanted));
        assert.equal(await ask(IDLE), own, `token ${token}`);
      }
      // Of several leases the shortest bounds the transaction; of a bare token it is not known.
      const several = { [resource]: leased(2, 4_500), [unique("a")]: leased(2, 7_500), [unique("z")]: 2 };
      await onMysql.transactAll(pool, several, async (db) => {
        assert.equal(await askingMysql(db)(IDLE), 5);
      });
      // The control: a claim and a bare COMMIT.
      const db = await pool.getConnection();
      await db.beginTransaction();
      await onMysql.claim(db, resource, 2);
      await db.commit();
      db.release();
      assert.equal(await ask(IDLE), 10);
      await ask("CALL palisade_end(TRUE)");
      assert.deepEqual([await ask(IDLE), await ask("SELECT CONNECTION_ID()")], [own, session]);
    }
  } finally {
    await pool.end();
  }
});

test("without the procedure that commits nothing is written, and the error says what to type", async () => {
  const plain = (name: string): string => unique(name).replaceAll("-", "_");
  const [database, user] = [plain("older"), plain("u")];
  const ask = askingMysql(mysqlPool);
  await ask(`CREATE DATABASE ${database}`);
  const there = new URL(url);
  there.pathname = `/${database}`;
  execFileSync(binary(), ["fence", "install", "mysql", "--url", there.href], { stdio: "ignore" });
  await ask(`CREATE TABLE ${database}.things (n INT)`);
  await ask(`CREATE USER ${user}`);
  await ask(`GRANT SELECT, INSERT ON ${database}.things TO ${user}`);
  await ask(`GRANT EXECUTE ON PROCEDURE ${database}.palisade_judge TO ${user}`);
  const refused = async (name: string, kind: new (...given: never[]) => Error, says: RegExp): Promise<void> => {
    there.username = name;
    const pool = mysql.createPool(there.href);
    const work = onMysql.transact(pool, "orders", 7, (db) => db.query("INSERT INTO things VALUES (1)"));
    await assert.rejects(work, (error) => {
      assert.ok(error instanceof kind, String(error));
      assert.match(error.message, says);
      return true;
    });
    await pool.end();
    assert.equal(await ask(`SELECT COUNT(*) FROM ${database}.things`), 0);
    assert.equal(await ask(`SELECT COUNT(*) FROM ${database}.palisade_fence`), 0);
  };
  await refused(user, OperatorNeeded, /denied.*palisade_end.*GRANT EXECUTE ON/);
  await ask(`DROP PROCEDURE ${database}.palisade_end`);
  await refused("palisade", FenceNotInstalled, /palisade_end.*an older version.*palisade fence install mysql/);
});
