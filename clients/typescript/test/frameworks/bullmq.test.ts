/** A worker of BullMQ that is stopped past its job's lock. Run by frameworks/check. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { before, test } from "node:test";

import pg from "pg";

import { postgres, redis, ROOT, wholeFile } from "../servers.js";

const scope = wholeFile();
const place = process.env["PALISADE_FRAMEWORKS"] ?? assert.fail("run frameworks/check");

/** What this file needs of BullMQ, whose types are not the client's own. */
interface BullMQ {
  readonly Queue: new (
    name: string,
    options: { connection: { host: string; port: number } },
  ) => {
    add(name: string, data: object): Promise<{ readonly id: string }>;
    close(): Promise<void>;
  };
}

interface Worker {
  readonly kill: (signal: NodeJS.Signals) => void;
  readonly go: () => void;
  /** The next line that begins with one of these. */
  readonly next: (...beginnings: string[]) => Promise<string>;
}

let database: string;
let url: string;
let db: pg.Pool;

before(async () => {
  const page = readFileSync(join(ROOT, "docs/use/node.md"), "utf8");
  const example =
    /<!-- bullmq -->\n```js\n(.*?)```/s.exec(page)?.[1] ?? assert.fail("the page has no example of BullMQ");
  writeFileSync(join(place, "page-bullmq.mjs"), example);
  cpSync(join(ROOT, "clients/typescript/frameworks/bullmq.mjs"), join(place, "bullmq.mjs"));
  [database, url] = await Promise.all([postgres(scope), redis(scope)]);
  db = new pg.Pool({ connectionString: database });
  db.on("error", () => undefined);
  scope.after(() => db.end());
  await db.query("CREATE TABLE counters (name varchar(64) PRIMARY KEY, total int)");
});

function worker(queue: string): Worker {
  const child = spawn(process.execPath, [join(place, "bullmq.mjs"), database, url, queue], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  scope.after(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]() as AsyncIterator<string, undefined>;
  return {
    kill: (signal) => child.kill(signal),
    go: () => child.stdin.write("go\n"),
    next: async (...beginnings) => {
      for (;;) {
        const line = (await lines.next()).value ?? assert.fail("the worker ended");
        if (beginnings.some((beginning) => line.startsWith(beginning))) {
          return line;
        }
      }
    },
  };
}

/** The first worker is stopped until another one has done its job. Returns how many acknowledged adds are missing. */
async function stopped(queue: string): Promise<[number, string, string]> {
  await db.query("INSERT INTO counters VALUES ($1, 0)", [queue]);
  const { Queue } = createRequire(join(place, "package.json"))("bullmq") as BullMQ;
  const { hostname, port } = new URL(url);
  const jobs = new Queue(queue, { connection: { host: hostname, port: Number(port) } });
  await jobs.add("add", {});
  const one = worker(queue);
  assert.equal(await one.next("go?"), "go? 1 0");
  one.kill("SIGSTOP");
  const other = worker(queue);
  assert.equal(await other.next("go?"), "go? 2 0");
  other.go();
  const done = JSON.parse(await other.next("{")) as { done?: boolean };
  assert.equal(done.done, true);
  one.go();
  one.kill("SIGCONT");
  const late = await one.next("{");
  const missing = await one.next("error Missing lock");
  const { rows } = await db.query<{ total: number }>("SELECT total FROM counters WHERE name = $1", [queue]);
  await jobs.close();
  return [1 + Number(late.includes('"done":true')) - (rows[0]?.total ?? 0), late, missing];
}

test("the write of an earlier start of a job is refused", async () => {
  const [lost, late] = await stopped("fenced");
  assert.deepEqual(JSON.parse(late), { error: "Stale", rejection: { code: "stale", token: 1, highest: 2 } });
  assert.equal(lost, 0);
});

test("the control: without the claim it goes through, and the signal of its job is not aborted", async () => {
  const [lost, late] = await stopped("bare");
  assert.deepEqual([lost, JSON.parse(late)], [1, { done: true, aborted: false }]);
});
