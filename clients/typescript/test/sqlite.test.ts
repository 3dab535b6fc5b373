/**
 * The fence in SQLite, with `node:sqlite`, which Node has since 22.5. PALISADE_SQLITE names the main file of another library, such as
 * better-sqlite3, which is no package of these tests because its install downloads a binary.
 */
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test, type TestContext } from "node:test";

import { Invalid, LeaseLost } from "../src/index.js";
import { FenceNotInstalled, Rejected, Stale, type Holder } from "../src/fence/index.js";
import { claim, record, transact, transactAll, why, write, type Database } from "../src/fence/sqlite.js";
import { MemoryServer } from "../src/testing/index.js";
import { addOrderToFile } from "./examples.js";
import { binary, folder, type Scope } from "./servers.js";
import { vectors } from "./vectors.js";

interface Sqlite extends Database {
  prepare(sql: string): { get(...values: unknown[]): unknown; run(...values: unknown[]): unknown };
  close(): void;
}
type Constructor = new (path: string) => Sqlite;

const library = process.env["PALISADE_SQLITE"] ?? "node:sqlite";
const module = (await import(library).catch(() => undefined)) as
  { readonly DatabaseSync?: Constructor; readonly default: Constructor } | undefined;
const skip = module === undefined ? `Node ${process.version} has no ${library}` : false;

function open(t: Scope, file: string): Sqlite {
  assert.ok(module);
  const db = new (module.DatabaseSync ?? module.default)(file);
  db.exec("PRAGMA busy_timeout = 10000");
  t.after(() => {
    db.close();
  });
  return db;
}

/** A command of the fence in Rust. */
function palisade(...args: string[]): string {
  return execFileSync(binary(), ["fence", ...args], { encoding: "utf8" });
}

/** A file with a total of 0, and the fence that the program installs. */
function fenced(t: Scope, ...tables: string[]): { db: Sqlite; file: string; url: string } {
  const file = join(folder(), "data.sqlite");
  const db = open(t, file);
  db.exec("PRAGMA journal_mode = WAL; CREATE TABLE totals (total INTEGER NOT NULL); INSERT INTO totals VALUES (0)");
  const url = `sqlite://${file}`;
  palisade("install", "sqlite", url, ...tables);
  return { db, file, url };
}

function total(db: Sqlite): number {
  return (db.prepare("SELECT total FROM totals").get() as { total: number }).total;
}

const set = (number: number) => (db: Database) => db.exec(`UPDATE totals SET total = ${number}`);

function begun<Result>(db: Database, work: () => Result): Result {
  db.exec("BEGIN");
  try {
    return work();
  } finally {
    db.exec("ROLLBACK");
  }
}

test("the guard row decides as the vectors say", { skip }, (t) => {
  const { db } = fenced(t);
  const columns = "authority, lock, token, written, sequence, digest, result";
  const insert = db.prepare(`INSERT INTO palisade_fence (resource, ${columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`);
  const select = db.prepare(
    `SELECT authority, lock, token, written, sequence, CAST(digest AS TEXT) AS digest, result FROM palisade_fence WHERE resource = ?`,
  );
  let number = 0;
  begun(db, () => {
    for (const one of vectors()) {
      const { pass, operation, rule, record: before } = one;
      // Without a token nobody asks the fence, and a claim of several has no number.
      if (pass === undefined || (operation.kind === "read" && operation.sequence !== undefined)) {
        continue;
      }
      number += 1;
      const name = `vector-${number}`;
      const whole = (value: number | undefined): bigint | null => (value === undefined ? null : BigInt(value));
      const signed = (value: bigint | undefined): bigint | null =>
        value === undefined ? null : BigInt.asIntN(64, value);
      const values = ({ authority, lock, token, written, sequence, digest, result }: typeof before) =>
        [
          authority ?? null,
          lock ?? null,
          whole(token),
          written ? 1n : 0n,
          whole(sequence),
          signed(digest),
          result ?? null,
        ] as const;
      insert.run(name, ...values(before));
      let verdict = "admit";
      try {
        if (operation.kind === "claim") {
          claim(db, name, pass, rule);
        } else if (operation.kind === "write") {
          const { sequence, digest } = operation;
          const numbered =
            sequence === undefined ? undefined : { sequence, ...(digest === undefined ? {} : { digest }) };
          verdict = write(db, name, pass, numbered, rule).repeat ? "repeat" : "admit";
        } else {
          continue;
        }
      } catch (error) {
        assert.ok(error instanceof Rejected, `${one.text}: ${String(error)}`);
        const { highest, last, bound, authority, lock } = error;
        verdict = error.code;
        assert.deepEqual({ highest, last, bound, authority, lock }, one.told, one.text);
      }
      assert.equal(verdict, one.verdict, one.text);
      const row = select.get(name) as Record<string, unknown>;
      const [authority, lock, token, written, sequence, digest, result] = values(one.next);
      const wanted = {
        ...{ authority, lock, token, written, sequence, result },
        digest: digest === null ? null : String(digest),
      };
      const plain = (value: unknown): unknown => (typeof value === "bigint" ? Number(value) : value);
      for (const [column, value] of Object.entries(wanted)) {
        const found = row[column];
        // Of better-sqlite3 it is a Buffer.
        const stored = found instanceof Uint8Array ? Uint8Array.from(found) : found;
        assert.deepEqual(stored, plain(value), `${one.text}: ${column}`);
      }
    }
  });
  assert.ok(number > 500, `${number} vectors`);
});

test("transact writes nothing for an older holder, or after an error", { skip }, (t) => {
  const { db } = fenced(t);
  const failed = new Error("the work failed");
  const fail = (): never => {
    set(99)(db);
    throw failed;
  };
  const pass = (authority: string): Holder => ({ token: 9, authority, lock: "orders" });
  for (const [holders, work, wanted, left] of [
    [{ orders: 8 }, set(8), undefined, 8],
    [{ orders: 7 }, set(7), Stale, 8],
    [{ orders: 9 }, fail, failed, 8],
    // The failed work took its claim with it.
    [{ orders: 8 }, set(10), undefined, 10],
    [{ other: 9 }, () => undefined, undefined, 10],
    [{ orders: 9, other: 8 }, set(11), Stale, 10],
    [{ orders: 8, other: 9 }, set(12), undefined, 12],
    [{ orders: pass("a") }, set(13), undefined, 13],
    [{ orders: pass("b") }, set(14), Rejected, 13],
  ] as [Record<string, Holder>, (db: Database) => unknown, typeof Stale | Error | undefined, number][]) {
    if (wanted === undefined) {
      transactAll(db, holders, work);
    } else {
      assert.throws(() => transactAll(db, holders, work), wanted as Error);
    }
    assert.equal(total(db), left);
  }
  assert.equal(
    transact(db, "orders", { token: 10, authority: "a", lock: "orders" }, () => "done"),
    "done",
  );
});

test("a repeat has its result", { skip }, (t) => {
  const { db } = fenced(t);
  const once = (digest: bigint): string | undefined => {
    db.exec("BEGIN");
    try {
      const { repeat, result } = write(db, "orders", 7, { sequence: 1, digest });
      if (!repeat) {
        record(db, "orders", 7, 1, Buffer.from("done"));
        assert.throws(() => {
          record(db, "orders", 7, 2, Buffer.from("x"));
        }, Invalid);
      }
      db.exec("COMMIT");
      return result && Buffer.from(result).toString();
    } catch (error) {
      db.exec("ROLLBACK");
      throw error;
    }
  };
  assert.equal(once(2n ** 64n - 1n), undefined);
  assert.equal(once(2n ** 64n - 1n), "done");
  assert.throws(() => once(6n), { code: "sequence_reused" });
});

test("wrong calls are named", { skip }, (t) => {
  const { db } = fenced(t);
  assert.throws(() => {
    claim(db, "orders", 7);
  }, /there is no transaction: BEGIN IMMEDIATE/);
  assert.throws(() => transact({} as Database, "orders", 7, set(1)), /a connection of node:sqlite/);
  // The work after the first await would be outside of the transaction.
  let ran = false;
  const late = async (): Promise<void> => {
    ran = true;
    await Promise.resolve();
  };
  assert.throws(() => transact(db, "orders", 7, late), /synchronous, and not an async function/);
  assert.ok(!ran);
  assert.throws(() => transact(db, "orders", 7, () => Promise.resolve(set(5)(db))), /it returned Promise/);
  assert.equal(total(db), 0);
  const loss = new LeaseLost("expired", "orders", 7);
  const lost = {
    token: 7,
    check: () => {
      throw loss;
    },
  };
  assert.throws(() => transact(db, "orders", lost, set(1)), loss);
  const bare = open(t, join(folder(), "bare.sqlite"));
  assert.throws(() => transact(bare, "orders", 1, set(1)), FenceNotInstalled);
  assert.throws(() => transact(bare, "orders", 1, set(1)), /run `palisade fence install sqlite`/);
});

test("where the connection does not tell, a claim outside of a transaction is refused, too", { skip }, (t) => {
  const { db } = fenced(t);
  const older: Database = { exec: (sql) => db.exec(sql), prepare: (sql) => db.prepare(sql) };
  assert.throws(() => {
    claim(older, "orders", 7);
  }, Invalid);
  transact(older, "orders", 7, set(3));
  assert.equal(total(db), 3);
});

test("the example of the README runs", { skip }, async (t) => {
  const { db } = fenced(t);
  db.exec("CREATE TABLE orders (total INTEGER); INSERT INTO orders VALUES (41)");
  const client = new MemoryServer().client();
  await client.withLock("orders", {}, (lease) => {
    addOrderToFile(db, lease);
  });
  await client.close();
  assert.equal((db.prepare("SELECT total FROM orders").get() as { total: number }).total, 42);
});

test("a file is shared with Rust", { skip }, (t) => {
  const { db, url } = fenced(t);
  const pass = (token: number): Holder => ({ token, authority: "a", lock: "orders" });
  transact(db, "orders", pass(7), set(7));
  const shown = JSON.parse(palisade("show", "orders", "--json", "--url", url)) as Record<string, unknown>;
  assert.equal(shown["token"] ?? shown["highest"], 7);
  assert.equal(shown["authority"], "a");
  palisade("rearm", "orders", "--floor", "40", "--yes", "--url", url);
  assert.throws(() => transact(db, "orders", pass(8), set(8)), /token 8 is stale: 8 < 40/);
});

test("a table with triggers is written by the newest holder alone", { skip }, (t) => {
  const { db, file } = fenced(t, "totals=orders");
  const other = open(t, file);
  // A connection that never claimed.
  assert.throws(() => set(1)(db), /palisade_token/);
  transact(db, "orders", 7, set(7));
  transact(other, "orders", 8, set(8));
  // It claimed before, and did not again.
  const refused = begun(db, () => {
    try {
      set(9)(db);
    } catch (error) {
      return why(db, "orders", error);
    }
    return undefined;
  });
  assert.ok(refused instanceof Stale);
  assert.deepEqual([refused.token, refused.highest], [7, 8]);
  assert.throws(() => transact(db, "orders", 7, set(9)), Stale);
  // A holder that was rejected shows no token any more.
  const none = begun(db, () => {
    try {
      set(9)(db);
    } catch (error) {
      return why(db, "orders", error);
    }
    return undefined;
  });
  assert.ok(none instanceof Rejected && none.code === "tokenless" && none.highest === 8);
  const mistake = new Error("a mistake");
  assert.equal(why(db, "orders", mistake), mistake);
  assert.equal(total(db), 8);
});

/** A holder that reads, is stopped past its lease, and writes. */
async function stopped(t: TestContext, isFenced: boolean): Promise<[number, string]> {
  const { db, file } = fenced(t);
  const program = `
    import * as library from ${JSON.stringify(library)};
    import { createInterface } from "node:readline";
    import { transact } from ${JSON.stringify(new URL("../src/fence/sqlite.js", import.meta.url).href)};
    const db = new (library.DatabaseSync ?? library.default)(${JSON.stringify(file)});
    db.exec("PRAGMA busy_timeout = 10000");
    const read = transact(db, "orders", 7, () => db.prepare("SELECT total FROM totals").get().total);
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    console.log("read " + read);
    // The test stops this process here.
    await lines.next();
    const set = () => db.exec("UPDATE totals SET total = " + (read + 1));
    try {
      ${isFenced ? 'transact(db, "orders", 7, set)' : "set()"};
      console.log("wrote");
    } catch (error) {
      console.log(error.message);
    }
    process.exit(0);`;
  const child = spawn(process.execPath, ["--no-warnings", "--input-type=module", "--eval", program], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  t.after(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, "read 0");
  child.kill("SIGSTOP");
  transact(db, "orders", 8, set(70));
  child.stdin.write("go\n");
  child.kill("SIGCONT");
  const said = String((await lines.next()).value);
  await once(child, "exit");
  return [total(db), said];
}

test("a stopped holder's write is refused", { skip }, async (t) => {
  const [left, said] = await stopped(t, true);
  assert.equal(left, 70);
  assert.match(said, /token 7 is stale: 7 < 8/);
});

test("a control: without the fence the acknowledged write is lost", { skip }, async (t) => {
  assert.deepEqual(await stopped(t, false), [1, "wrote"]);
});
