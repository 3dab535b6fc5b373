/**
 * Jobs in a table of one's own in MariaDB, whose statements are those of MySQL. Each story is first told with the statement of a
 * queue as people write it, and loses something; then with the attempts, and loses nothing.
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { before, beforeEach, test } from "node:test";

import { createPool as createCallbackPool } from "mysql2";
import { createPool, type Pool, type PoolConnection } from "mysql2/promise";

import { Attempts, type Attempt, type MysqlPool } from "../src/attempts.js";
import { Rejected, Stale } from "../src/fence/index.js";
import { mariadb, wholeFile } from "./servers.js";

const scope = wholeFile();
const attempts = new Attempts();
let url: string;
let pool: Pool;

before(async () => {
  url = await mariadb(scope);
  pool = createPool(url);
  scope.after(() => pool.end());
  await pool.query(`
    CREATE TABLE jobs (
      id BIGINT AUTO_INCREMENT PRIMARY KEY, payload JSON NOT NULL, state VARCHAR(8) NOT NULL DEFAULT 'ready',
      attempt BIGINT NOT NULL DEFAULT 0, lease_until DATETIME(3), worker VARCHAR(255), reason TEXT, progress INT,
      KEY jobs_open (state, id)) ENGINE=InnoDB`);
  await pool.query("CREATE TABLE accounts (total INT) ENGINE=InnoDB");
});

beforeEach(async () => {
  await pool.query("TRUNCATE jobs");
  await pool.query("DELETE FROM accounts");
  await pool.query("INSERT INTO accounts VALUES (0)");
  await pool.query("INSERT INTO jobs (payload) VALUES ('{}')");
});

type Row = Record<string, unknown>;
const rows = async (statement: string): Promise<Row[]> => (await pool.query(statement))[0] as Row[];
const one = async (statement: string): Promise<unknown> => Object.values((await rows(statement))[0] ?? {})[0];
const expire = (): Promise<unknown> =>
  pool.query("UPDATE jobs SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE state = 'running'");
const taken = async (worker: string): Promise<Attempt> =>
  (await attempts.take(pool, worker)) ?? assert.fail("there is no job");
const add = (total: number) => (db: PoolConnection) => db.query(`UPDATE accounts SET total = ${total}`);

/** The first attempt is paused past its lease, and the same worker has begun the second one. */
async function twoAttempts(): Promise<[Attempt, Attempt]> {
  const first = await taken("w1");
  await expire();
  return [first, await taken("w1")];
}

const isStale = (error: unknown): boolean => {
  assert.ok(error instanceof Stale, String(error));
  assert.deepEqual([error.token, error.highest], [1, 2]);
  return true;
};

test("1: the owner is a worker's stable name", async () => {
  const progress = (db: Pool | PoolConnection, value: number): Promise<unknown> =>
    db.query(`UPDATE jobs SET progress = ${value} WHERE id = 1 AND worker = 'w1' AND state = 'running'`);
  const [first, second] = await twoAttempts();
  await progress(pool, 70);
  await progress(pool, 10);
  assert.equal(await one("SELECT progress FROM jobs"), 10);
  await attempts.transact(pool, second, async (db) => {
    await progress(db, 70);
    // The job goes on.
    await attempts.fail(db, second, "a part is done");
  });
  await assert.rejects(
    attempts.transact(pool, first, (db) => progress(db, 10)),
    isStale,
  );
  assert.equal(await one("SELECT progress FROM jobs"), 70);
});

test("8: effects in another transaction than the guard", async () => {
  const [first, second] = await twoAttempts();
  await pool.query("UPDATE accounts SET total = 70");
  await pool.query("UPDATE accounts SET total = 10");
  const done = "UPDATE jobs SET state = 'done' WHERE id = 1 AND attempt = 1";
  assert.equal(((await pool.query(done))[0] as { affectedRows: number }).affectedRows, 0);
  assert.equal(await one("SELECT total FROM accounts"), 10);
  await attempts.transact(pool, second, add(70));
  await assert.rejects(attempts.transact(pool, first, add(10)), isStale);
  assert.equal(await one("SELECT total FROM accounts"), 70);
});

test("9: a job that kills its worker is taken for ever", async () => {
  await pool.query("INSERT INTO jobs (payload) VALUES ('{}')");
  for (let time = 0; time < 7; time += 1) {
    const open = "state = 'ready' OR (state = 'running' AND lease_until < UTC_TIMESTAMP(3))";
    const id = await one(`SELECT id FROM jobs WHERE ${open} ORDER BY id LIMIT 1`);
    assert.equal(id, 1);
    await pool.query("UPDATE jobs SET state = 'running', attempt = attempt + 1 WHERE id = 1");
    await expire();
  }
  await pool.query("UPDATE jobs SET state = 'ready', attempt = 0");
  for (let time = 0; time < 5; time += 1) {
    assert.equal((await taken("w1")).jobId, 1);
    await expire();
  }
  assert.equal((await taken("w1")).jobId, 2);
  assert.deepEqual(await rows("SELECT state, reason FROM jobs WHERE id = 1"), [
    { state: "failed", reason: "attempt 5 was the last of 5, and its lease expired (worker w1)" },
  ]);
});

/** A worker that takes the job, computes, and is stopped before it writes. The mistake is number 8. */
async function stopped(fenced: boolean): Promise<string> {
  const text = `
    import { createInterface } from "node:readline";
    import { createPool } from ${JSON.stringify(import.meta.resolve("mysql2/promise"))};
    import { Attempts } from ${JSON.stringify(new URL("../src/attempts.js", import.meta.url).href)};
    const pool = createPool(${JSON.stringify(url)});
    const attempts = new Attempts();
    const attempt = await attempts.take(pool, "w1");
    console.log("go?");
    await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next();
    const effect = (db) => db.query("UPDATE accounts SET total = 10");
    try {
      await (${fenced} ? attempts.transact(pool, attempt, effect) : effect(pool));
      console.log("written");
    } catch (error) {
      console.log(error.name);
    }
    await pool.end();
    process.exit();`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", text], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  scope.after(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]() as AsyncIterator<string>;
  assert.equal((await lines.next()).value, "go?");
  child.kill("SIGSTOP");
  await expire();
  await attempts.transact(pool, await taken("w2"), add(70));
  child.stdin.write("go\n");
  child.kill("SIGCONT");
  return String((await lines.next()).value);
}

test("a worker that was stopped past its lease is refused", async () => {
  assert.equal(await stopped(true), "Stale");
  assert.equal(await one("SELECT total FROM accounts"), 70);
});

test("the control: without the guard, the acknowledged write of its successor is lost", async () => {
  assert.equal(await stopped(false), "written");
  assert.equal(await one("SELECT total FROM accounts"), 10);
});

test("take, heartbeat, finish, fail and reap", async () => {
  await pool.query("INSERT INTO jobs (payload) VALUES ('{}'), ('{}')");
  const first = await taken("wörker's \\1");
  const { jobId, token, authority, lock, resource, row } = first;
  assert.deepEqual([jobId, token, authority, lock, resource], [1, 1, "jobs", "job:1", "job:1"]);
  assert.deepEqual([row["state"], row["worker"]], ["running", "wörker's \\1"]);
  // Two within a millisecond change nothing, and are no loss.
  await Promise.all([1, 2, 3, 4, 5].map(() => attempts.heartbeat(pool, first)));
  assert.equal(await one("SELECT lease_until > UTC_TIMESTAMP(3) + INTERVAL 20 SECOND FROM jobs WHERE id = 1"), 1);
  // The failed job is the oldest that is ready.
  await attempts.transact(pool, first, (db) => attempts.fail(db, first, "it's no \\ paper"));
  assert.equal(await one("SELECT reason FROM jobs WHERE id = 1"), "it's no \\ paper");
  assert.equal((await taken("w1")).token, 2);
  const second = await taken("w2");
  await attempts.transact(pool, second, (db) => attempts.fail(db, second, "no use", { retry: false }));
  assert.deepEqual(await rows("SELECT state, reason FROM jobs WHERE id = 2"), [{ state: "failed", reason: "no use" }]);
  // It ended, and nobody else has it.
  await assert.rejects(attempts.heartbeat(pool, second), { code: "already_written" });
  await taken("w3");
  assert.equal(await attempts.take(pool, "w4"), undefined);
  await expire();
  assert.deepEqual(await new Attempts({ maxAttempts: 1 }).reap(pool), [1, 3]);
  await pool.query("DELETE FROM jobs");
  await assert.rejects(attempts.heartbeat(pool, first), (error) => error instanceof Rejected);
});

test("which call owns its transaction", async () => {
  const attempt = await taken("w1");
  const db = await pool.getConnection();
  try {
    for (const call of [() => attempts.guard(db, attempt), () => attempts.finish(db, attempt)]) {
      await assert.rejects(call, { code: "invalid", message: /needs a transaction/ });
    }
    await assert.rejects(attempts.guard(pool, attempt), /needs a transaction/);
    // Outside of a transaction a connection will do.
    await attempts.heartbeat(db, attempt);
    await db.beginTransaction();
    for (const call of [
      () => attempts.take(db, "w1"),
      () => attempts.heartbeat(db, attempt),
      () => attempts.reap(db),
    ]) {
      await assert.rejects(call, { code: "invalid", message: /the connection is in a transaction/ });
    }
    await attempts.guard(db, attempt);
    await db.query("UPDATE accounts SET total = 5");
    await attempts.finish(db, attempt);
    await db.commit();
    assert.deepEqual([await one("SELECT total FROM accounts"), await one("SELECT state FROM jobs")], [5, "done"]);
    // A refusal has rolled back.
    await pool.query("INSERT INTO jobs (payload) VALUES ('{}')");
    const old = await taken("w1");
    await expire();
    await taken("w2");
    await db.beginTransaction();
    await db.query("UPDATE accounts SET total = 10");
    await attempts.guard(db, old).catch(() => undefined);
    await db.commit();
    assert.equal(await one("SELECT total FROM accounts"), 5);
  } finally {
    await db.rollback();
    db.release();
  }
});

test("a pool of mysql2 itself has promises, too", async () => {
  const callbacks = createCallbackPool(url);
  const attempt = await attempts.take(callbacks as unknown as MysqlPool, "w1");
  assert.equal(attempt?.token, 1);
  callbacks.end(() => undefined);
});
