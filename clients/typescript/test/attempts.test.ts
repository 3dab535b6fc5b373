/**
 * Jobs in a table of one's own. Each story is first told with the statement of a queue as people write it, and loses something;
 * then with the attempts, and loses nothing. Python has all nine stories of docs/use/job-attempts.md.
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { before, beforeEach, suite, test } from "node:test";

import pg from "pg";

import { Attempts, type Attempt } from "../src/attempts.js";
import { Rejected, Stale } from "../src/fence/index.js";
import { claim } from "../src/fence/pg.js";
import { Invalid } from "../src/index.js";
import { work } from "./examples.js";
import { postgres, unique, wholeFile } from "./servers.js";

const scope = wholeFile();
const attempts = new Attempts();
let url: string;
let pool: pg.Pool;

before(async () => {
  url = await postgres(scope);
  pool = new pg.Pool({ connectionString: url });
  pool.on("error", () => undefined);
  scope.after(() => pool.end());
  await pool.query(`
    CREATE TABLE jobs (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL,
      state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done', 'failed')),
      attempt bigint NOT NULL DEFAULT 0, lease_until timestamptz, worker text, reason text,
      progress int, result text);
    CREATE TABLE accounts (total int)`);
});

beforeEach(async () => {
  await pool.query("TRUNCATE jobs RESTART IDENTITY; TRUNCATE accounts; INSERT INTO accounts VALUES (0)");
  await pool.query("INSERT INTO jobs (payload) VALUES ('{}')");
});

const one = async (statement: string): Promise<unknown> =>
  Object.values((await pool.query<Record<string, unknown>>(statement)).rows[0] ?? {})[0];
const count = async (statement: string): Promise<number | null> => (await pool.query(statement)).rowCount;
const expire = (): Promise<unknown> =>
  pool.query("UPDATE jobs SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running'");
const taken = async (worker: string): Promise<Attempt> =>
  (await attempts.take(pool, worker)) ?? assert.fail("there is no job");

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

suite("mistakes of queues", () => {
  test("1: the owner is a worker's stable name", async () => {
    const progress = (db: pg.ClientBase | pg.Pool, value: number): Promise<unknown> =>
      db.query(`UPDATE jobs SET progress = ${value} WHERE id = 1 AND worker = 'w1' AND state = 'running'`);
    const [first, second] = await twoAttempts();
    await progress(pool, 70);
    await progress(pool, 10);
    assert.equal(await one("SELECT progress FROM jobs"), 10);

    await attempts.transact(pool, second, (db) => progress(db, 70));
    await assert.rejects(
      attempts.transact(pool, first, (db) => progress(db, 10)),
      isStale,
    );
    assert.deepEqual([await one("SELECT progress FROM jobs"), await one("SELECT state FROM jobs")], [70, "done"]);
  });

  test("3: a completion that looks at the state only", async () => {
    await twoAttempts();
    const complete = (result: string): Promise<number | null> =>
      count(`UPDATE jobs SET state = 'done', result = '${result}' WHERE id = 1 AND state = 'running'`);
    assert.deepEqual([await complete("old"), await complete("new")], [1, 0]);

    await pool.query("UPDATE jobs SET state = 'ready', attempt = 0");
    const [first, second] = await twoAttempts();
    await assert.rejects(
      attempts.transact(pool, first, (db) => db.query("UPDATE jobs SET result = 'old'")),
      isStale,
    );
    await attempts.transact(pool, second, (db) => db.query("UPDATE jobs SET result = 'new'"));
    assert.equal(await one("SELECT result FROM jobs"), "new");
  });

  test("8: effects in another transaction than the guard", async () => {
    const [first, second] = await twoAttempts();
    const effect = (db: pg.ClientBase | pg.Pool, total: number): Promise<unknown> =>
      db.query(`UPDATE accounts SET total = ${total}`);
    await effect(pool, 70);
    await effect(pool, 10);
    assert.equal(await count("UPDATE jobs SET state = 'done' WHERE id = 1 AND attempt = 1 AND state = 'running'"), 0);
    assert.equal(await one("SELECT total FROM accounts"), 10);

    await attempts.transact(pool, second, (db) => effect(db, 70));
    await assert.rejects(
      attempts.transact(pool, first, (db) => effect(db, 10)),
      isStale,
    );
    assert.equal(await one("SELECT total FROM accounts"), 70);
  });

  test("9: a job that kills its worker is taken for ever", async () => {
    await pool.query("INSERT INTO jobs (payload) VALUES ('{}')");
    const take =
      "UPDATE jobs SET state = 'running', attempt = attempt + 1 WHERE id = (SELECT id FROM jobs WHERE state = 'ready' OR " +
      "(state = 'running' AND lease_until < clock_timestamp()) ORDER BY id LIMIT 1) RETURNING id";
    for (let time = 0; time < 7; time += 1) {
      assert.equal(await one(take), "1");
      await pool.query("UPDATE jobs SET lease_until = clock_timestamp() - interval '1 second' WHERE id = 1");
    }
    await pool.query("UPDATE jobs SET state = 'ready', attempt = 0");
    for (let time = 0; time < 5; time += 1) {
      assert.equal((await taken("w1")).jobId, "1");
      await expire();
    }
    assert.equal((await taken("w1")).jobId, "2");
    const { rows } = await pool.query("SELECT state, reason FROM jobs WHERE id = 1");
    assert.deepEqual(rows, [
      { state: "failed", reason: "attempt 5 was the last of 5, and its lease expired (worker w1)" },
    ]);
  });
});

/** A worker that takes the job, computes, and is stopped before it writes. The mistake is number 8. */
async function stopped(fenced: boolean): Promise<string> {
  const text = `
    import { createInterface } from "node:readline";
    import pg from ${JSON.stringify(import.meta.resolve("pg"))};
    import { Attempts } from ${JSON.stringify(new URL("../src/attempts.js", import.meta.url).href)};
    const pool = new pg.Pool({ connectionString: ${JSON.stringify(url)} });
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
  await attempts.transact(pool, await taken("w2"), (db) => db.query("UPDATE accounts SET total = 70"));
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
  const first = await taken("w1");
  const { jobId, token, authority, lock, resource, row } = first;
  assert.deepEqual([jobId, token, authority, lock, resource], ["1", 1, "jobs", "job:1", "job:1"]);
  assert.deepEqual([row["state"], row["worker"]], ["running", "w1"]);
  await attempts.heartbeat(pool, first);
  assert.equal(await one("SELECT lease_until > clock_timestamp() + interval '20 s' FROM jobs WHERE id = 1"), true);
  // The job that has failed is the oldest that is ready.
  await attempts.transact(pool, first, (db) => attempts.fail(db, first, "no paper"));
  assert.equal((await taken("w1")).token, 2);
  const second = await taken("w2");
  await attempts.transact(pool, second, (db) => attempts.fail(db, second, "no use", { retry: false }));
  assert.deepEqual((await pool.query("SELECT state, reason FROM jobs WHERE id = 2")).rows, [
    { state: "failed", reason: "no use" },
  ]);
  // It ended, and nobody else has it.
  await assert.rejects(attempts.heartbeat(pool, second), { code: "already_written" });
  await taken("w3");
  assert.equal(await attempts.take(pool, "w4"), undefined);
  await expire();
  assert.deepEqual(await new Attempts({ maxAttempts: 1 }).reap(pool), ["1", "3"]);
  await pool.query("DELETE FROM jobs");
  await assert.rejects(attempts.heartbeat(pool, first), (error) => error instanceof Rejected);
});

test("the example of the README", async () => {
  await work(pool);
  assert.deepEqual([await one("SELECT total FROM accounts"), await one("SELECT state FROM jobs")], [1, "done"]);
});

test("which call owns its transaction", async () => {
  const attempt = await taken("w1");
  const db = await pool.connect();
  try {
    for (const call of [attempts.guard(db, attempt), attempts.finish(db, attempt)]) {
      await assert.rejects(call, { code: "invalid", message: /needs a transaction/ });
    }
    // Outside of a transaction a client will do.
    await attempts.heartbeat(db, attempt);
    await db.query("BEGIN");
    for (const call of [
      () => attempts.take(db, "w1"),
      () => attempts.heartbeat(db, attempt),
      () => attempts.reap(db),
    ]) {
      await assert.rejects(call, { code: "invalid", message: /the client is in a transaction/ });
    }
    await db.query("ROLLBACK");
    // A refusal that nobody looks at: nothing is committed.
    await expire();
    await taken("w2");
    await db.query("BEGIN");
    await db.query("UPDATE accounts SET total = 10");
    await attempts.guard(db, attempt).catch(() => undefined);
    assert.equal((await db.query("COMMIT")).command, "ROLLBACK");
    assert.equal(await one("SELECT total FROM accounts"), 0);
    // A worker that stops here loses the row after its lease.
    await db.query("BEGIN");
    const second = { ...attempt, attempt: 2 };
    await attempts.guard(db, second);
    const bound = await db.query<{ bound: string }>(
      "SELECT current_setting('idle_in_transaction_session_timeout') AS bound",
    );
    assert.equal(bound.rows[0]?.bound, "30s");
    await db.query("ROLLBACK");
  } finally {
    db.release();
  }
});

test("an attempt is a holder for a fence, and those of two jobs are not compared", async () => {
  const [attempt, resource] = [await taken("w1"), unique("target")];
  const claimed = async (holder: Attempt): Promise<void> => {
    const db = await pool.connect();
    try {
      await db.query("BEGIN");
      await claim(db, resource, holder);
      await db.query("COMMIT");
    } finally {
      await db.query("ROLLBACK");
      db.release();
    }
  };
  await claimed(attempt);
  await assert.rejects(claimed({ ...attempt, lock: "job:2" }), { code: "wrong_lock", lock: "job:1" });
  await assert.rejects(claimed({ ...attempt, authority: "another" }), { code: "wrong_authority" });
});

test("what is plausible and wrong is named", async () => {
  const wrong = [{ table: "jobs; DROP" }, { table: "a.b.c" }, { table: "" }, { leaseMs: 999 }, { maxAttempts: 0 }];
  for (const options of [...wrong, { authority: "ä" }, { leaseMs: 1_000.5 }]) {
    assert.throws(() => new Attempts(options), Invalid);
  }
  assert.throws(() => new Attempts({ lease: 5 } as never), /did you mean leaseMs/);
  assert.throws(() => new Attempts({ table: 5 } as never), TypeError);
  await assert.rejects(attempts.take(pool, ""), Invalid);
  await assert.rejects(attempts.take({} as never, "w1"), /a Pool of pg, or a client outside of a transaction/);
  await assert.rejects(attempts.heartbeat(pool, { jobId: "1'", attempt: 1 } as never), TypeError);
  await assert.rejects(attempts.heartbeat(pool, undefined as never), /is what take returns/);
  assert.equal(await one("SELECT attempt FROM jobs"), "0");
  // Of a schema, and with UUIDs.
  await pool.query("CREATE SCHEMA IF NOT EXISTS queue; DROP TABLE IF EXISTS queue.mails");
  await pool.query(
    "CREATE TABLE queue.mails (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), state text DEFAULT 'ready', " +
      "attempt bigint DEFAULT 0, lease_until timestamptz, worker text, reason text)",
  );
  await pool.query("INSERT INTO queue.mails DEFAULT VALUES");
  const mails = new Attempts({ table: "queue.mails", authority: "mails" });
  const mail = (await mails.take(pool, "w1")) ?? assert.fail();
  assert.match(mail.resource, /^job:[0-9a-f-]{36}$/);
  await mails.transact(pool, mail, () => undefined);
});
