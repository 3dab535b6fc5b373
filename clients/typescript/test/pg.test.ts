/** The fence in PostgreSQL, on a real server. */
import assert from "node:assert/strict";
import { before, test } from "node:test";

import pg from "pg";

import { Invalid, LeaseLost, slotKey, type Lease } from "../src/index.js";
import { FenceNotInstalled, Rejected, Stale, type Holder } from "../src/fence/index.js";
import { check, claim, claimAll, record, rejection, transact, write } from "../src/fence/pg.js";
import { postgres, served, unique, until, wholeFile } from "./servers.js";
import { vectors } from "./vectors.js";

let url = "";
let pool: pg.Pool;

const scope = wholeFile();

before(async () => {
  url = await postgres(scope);
  pool = new pg.Pool({ connectionString: url });
  // A pool has ended before its connections have; the server, which ends next, may still break one of them.
  pool.on("error", () => undefined);
  scope.after(() => pool.end());
});

const claimed = (resource: string, holder: Holder): Promise<void> => transact(pool, resource, holder, () => undefined);

/** A transaction that is rolled back by an error. */
async function begun<Result>(work: (db: pg.PoolClient) => Promise<Result>): Promise<Result> {
  const db = await pool.connect();
  try {
    await db.query("BEGIN");
    const result = await work(db);
    await db.query("COMMIT");
    return result;
  } catch (error) {
    await db.query("ROLLBACK");
    throw error;
  } finally {
    db.release();
  }
}

test("a newer holder shuts the older one out", async () => {
  const resource = unique("o\"r\\d'ers");
  await claimed(resource, 7);
  await claimed(resource, 8);
  await assert.rejects(
    claimed(resource, 7),
    (error) => error instanceof Stale && error.message.includes("token 7 is stale: 7 < 8"),
  );
  await assert.rejects(
    begun((db) => check(db, resource, 7)),
    Stale,
  );
  await claimed(resource, 8);
});

test("a rejection rolls the caller's work back", async () => {
  const [resource, other] = [unique("orders"), unique("other")];
  await claimed(resource, 8);
  await assert.rejects(
    transact(pool, other, 7, (db) => claim(db, resource, 7)),
    Stale,
  );
  const { rowCount } = await pool.query("SELECT FROM palisade_fence WHERE resource = $1", [other]);
  assert.equal(rowCount, 0);
});

test("a claim says what is left of the lease", async () => {
  const bound = async (holder: Holder): Promise<unknown> => {
    const setting = "SELECT current_setting('idle_in_transaction_session_timeout') AS bound";
    const { rows } = await transact(pool, unique("orders"), holder, (db) => db.query<{ bound: string }>(setting));
    return rows[0]?.bound;
  };
  assert.equal(await bound({ token: 7, remainingMs: 24_999.5 }), "25s");
  assert.equal(await bound({ token: 7, remainingMs: 1e12 }), "999999999ms");
  // A control: of a bare token it is not known.
  assert.equal(await bound(7), "10s");
});

test("a rejection that the caller swallows is no commit", async () => {
  const [resource, other] = [unique("orders"), unique("other")];
  await claimed(resource, 8);
  await assert.rejects(
    transact(pool, other, 7, (db) => claim(db, resource, 7).catch(() => undefined)),
    /rolled back/,
  );
});

test("a token of another authority is no number to compare", async () => {
  const resource = unique("orders");
  await claimed(resource, { token: 7, authority: "one", lock: "orders" });
  await assert.rejects(
    claimed(resource, { token: 8, authority: "another", lock: "orders" }),
    (error) => error instanceof Rejected && error.code === "wrong_authority" && error.authority === "one",
  );
});

test("a numbered write is recognised and answered", async () => {
  const resource = unique("seats");
  const number = { sequence: 1, digest: 2n ** 64n - 1n };
  for (const repeat of [false, true]) {
    await begun(async (db) => {
      const written = await write(db, resource, 7, number);
      assert.equal(written.repeat, repeat);
      if (repeat) {
        assert.equal(Buffer.from(written.result ?? []).toString(), "seat 12A");
      } else {
        await record(db, resource, 7, 1, Buffer.from("seat 12A"));
      }
    });
  }
  await assert.rejects(
    begun((db) => write(db, resource, 7, { sequence: 1, digest: 5n })),
    (error) => error instanceof Rejected && error.code === "sequence_reused" && error.last === 1,
  );
  await assert.rejects(
    begun((db) => record(db, resource, 7, 2, Buffer.from(""))),
    Invalid,
  );
  await assert.rejects(
    begun((db) => record(db, resource, 7, 1, Buffer.alloc(65_537))),
    Invalid,
  );
});

test("a zombie of a slot is refused beside a live holder", async (t) => {
  const { client } = await served(t);
  const gpu = unique("gpu");
  const take = (): Promise<Lease> => client.acquire(gpu, { waitMs: 0, permits: { count: 1, of: 2 } });
  const claimSlot = ({ slotKeys, token }: Lease): Promise<void> => claimed(slotKeys[0] ?? "", token);
  const [zombie, live] = [await take(), await take()];
  assert.deepEqual([...zombie.slotKeys, ...live.slotKeys], [slotKey(gpu, 1), slotKey(gpu, 2)]);
  await claimSlot(zombie);
  await claimSlot(live);
  await client.breakLock(gpu, zombie.token, "it is paused");
  const successor = await take();
  assert.ok(successor.slots[0] === 1 && successor.token > live.token);
  await claimSlot(successor);
  await assert.rejects(claimSlot(zombie), Stale);
  await claimSlot(live);
  // Why each slot has a fence of its own: the older of two live holders is refused at one for all.
  await claimed(gpu, successor.token);
  await assert.rejects(claimed(gpu, live.token), Stale);
  live.check();
});

test("all resources are claimed or none", async () => {
  const [first, second] = [unique("a"), unique("b")];
  await claimed(second, 10);
  await assert.rejects(
    begun((db) => claimAll(db, { [second]: 9, [first]: 9 })),
    Stale,
  );
  await claimed(first, 1);
  await assert.rejects(
    begun((db) => claimAll(db, {})),
    Invalid,
  );
});

test("without a transaction nothing is claimed", async () => {
  const resource = unique("orders");
  await assert.rejects(claim(pool as unknown as pg.Client, resource, 7), /needs a transaction/);
  const db = new pg.Client(url);
  await db.connect();
  await assert.rejects(claim(db, resource, 7), /needs a transaction/);
  const { rowCount } = await db.query("SELECT FROM palisade_fence WHERE resource = $1", [resource]);
  assert.equal(rowCount, 0);
  await db.end();
});

test("bad arguments change nothing", async () => {
  await begun(async (db) => {
    for (const holder of [0, 2 ** 53, 1.5, { token: -1 }]) {
      await assert.rejects(claim(db, "orders", holder), Invalid);
    }
    await assert.rejects(claim(db, "ä", 1), Invalid);
    await assert.rejects(write(db, "orders", 1, { sequence: 2 ** 53 }), Invalid);
    await assert.rejects(write(db, "orders", 1, { sequence: 1, digest: 2n ** 64n }), Invalid);
  });
});

test("a database without the fence says what to run", async () => {
  const name = unique("bare").replaceAll("-", "_");
  await pool.query(`CREATE DATABASE ${name}`);
  const bare = new pg.Pool({ connectionString: url.replace(/postgres$/, name) });
  await assert.rejects(
    transact(bare, "orders", 7, () => undefined),
    (error) => error instanceof FenceNotInstalled && error.message.includes("palisade fence install postgres"),
  );
  await bare.end();
});

test("a sticky table refuses code that forgot the fence", async () => {
  const [table, resource] = [unique("t").replaceAll("-", "_"), unique("orders")];
  await pool.query(`CREATE TABLE ${table} (n int)`);
  await pool.query("SELECT palisade_sticky($1, $2)", [table, resource]);
  await transact(pool, resource, 7, (db) => db.query(`INSERT INTO ${table} VALUES (1)`));
  const error: unknown = await pool.query(`INSERT INTO ${table} VALUES (1)`).catch((thrown: unknown) => thrown);
  assert.deepEqual([rejection(error)?.code, rejection(error)?.highest], ["tokenless", 7]);
  assert.equal(rejection(new Error("another")), undefined);
});

test("a lease that was lost sends nothing", async (t) => {
  const { client } = await served(t);
  const lease = await client.acquire("orders");
  const resource = unique("orders");
  await claimed(resource, lease);
  await lease.release();
  await assert.rejects(claimed(resource, lease), LeaseLost);
});

test("a connection that breaks during the work is an error of the call", async () => {
  const work = transact(pool, unique("orders"), 7, async (db) => {
    let ended = false;
    db.once("end", () => {
      ended = true;
    });
    const { rows } = await db.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
    await pool.query("SELECT pg_terminate_backend($1)", [rows[0]?.pid]);
    await until(() => ended);
  });
  await assert.rejects(work);
});

test("the guard row decides as the vectors say", async () => {
  const base = unique("vector");
  const db = await pool.connect();
  await db.query("BEGIN");
  let tried = 0;
  for (const [number, one] of vectors().entries()) {
    const { pass, operation, rule } = one;
    if (pass === undefined) {
      // Code without a token does not call the fence here: the triggers refuse it.
      continue;
    }
    tried += 1;
    const name = `${base}-${number}`;
    const { authority, lock, token, written, sequence, digest, result } = one.record;
    const signed = digest === undefined ? undefined : BigInt.asIntN(64, digest).toString();
    await db.query(
      `INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
      [name, authority, lock, token, written, sequence, signed, result],
    );
    await db.query("SAVEPOINT before_it");
    let verdict = "admit";
    let told: object = { highest: undefined, last: undefined, bound: undefined, authority: undefined, lock: undefined };
    try {
      if (operation.kind === "claim") {
        await claim(db, name, pass, rule);
      } else if (operation.kind === "read") {
        await check(db, name, pass, rule);
      } else {
        const numbered =
          operation.sequence === undefined
            ? undefined
            : { sequence: operation.sequence, ...(operation.digest === undefined ? {} : { digest: operation.digest }) };
        verdict = (await write(db, name, pass, numbered, rule)).repeat ? "repeat" : "admit";
      }
    } catch (error) {
      assert.ok(error instanceof Rejected, `${one.text}: ${String(error)}`);
      await db.query("ROLLBACK TO SAVEPOINT before_it");
      verdict = error.code;
      told = {
        highest: error.highest,
        last: error.last,
        bound: error.bound,
        authority: error.authority,
        lock: error.lock,
      };
    }
    const { rows } = await db.query<Record<string, unknown>>("SELECT * FROM palisade_fence WHERE resource = $1", [
      name,
    ]);
    assert.deepEqual([verdict, told, stored(rows[0] ?? {})], [one.verdict, one.told, one.next], one.text);
  }
  await db.query("ROLLBACK");
  db.release();
  assert.ok(tried > 1_000);
});

function stored(row: Record<string, unknown>): object {
  const number = (value: unknown): number | undefined => (value === null ? undefined : Number(value));
  const result = row["result"] as Buffer | null;
  return {
    authority: row["authority"] ?? undefined,
    lock: row["lock"] ?? undefined,
    token: number(row["token"]),
    written: row["written"],
    sequence: number(row["sequence"]),
    digest: row["digest"] === null ? undefined : BigInt.asUintN(64, BigInt(row["digest"] as string)),
    result: result === null ? undefined : Uint8Array.from(result),
  };
}
