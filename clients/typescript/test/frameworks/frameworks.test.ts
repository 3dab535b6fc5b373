/**
 * A holder that is stopped inside a framework's transaction, and what the framework's user sees. For each framework there is a
 * module in frameworks/; without PALISADE_FRAMEWORKS, a folder with copies of them and their packages, those run whose packages
 * are the client's own.
 */
import assert from "node:assert/strict";
import { execFileSync, spawn, type ChildProcessByStdio } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { before, suite, test } from "node:test";

import { Redis } from "ioredis";
import mysql from "mysql2/promise";
import pg from "pg";

import { transact as onMysql } from "../../src/fence/mysql.js";
import { transact as onPg } from "../../src/fence/pg.js";
import { Resource } from "../../src/fence/redis.js";
import type { Client, Lease } from "../../src/index.js";
import { binary, mariadb, postgres, redis, ROOT, served, wholeFile, type Running } from "../servers.js";

const PACKAGE = join(ROOT, "clients/typescript");
const PAGE = readFileSync(join(ROOT, "docs/use/node.md"), "utf8");
const OWN = ["drizzle", "knex", "mysql2", "node-redis"];
const place = process.env["PALISADE_FRAMEWORKS"] ?? join(PACKAGE, "build/frameworks");
const names = process.env["PALISADE_FRAMEWORKS"] === undefined ? OWN : [...OWN, "prisma", "typeorm"];

type Mode = "before" | "inside" | "bare" | "forgotten" | "commit" | "caught" | "exhausted" | "page";
type Name = "postgresql" | "mysql" | "redis";

/** What a user sees: the error's class, its code and its words; the page has them, too. */
interface Sees {
  readonly refused: RegExp;
  readonly ended: RegExp;
  readonly exhausted: RegExp;
}

const KNEX = /^KnexTimeoutError .*Timeout acquiring a connection/;
const sees: Readonly<Record<string, Sees>> = {
  "knex on postgresql": {
    refused: /^DatabaseError PF001/,
    ended: /^(Error .*(not queryable|terminated unexpectedly)|DatabaseError 57P01)/,
    exhausted: KNEX,
  },
  "knex on mysql": {
    refused: /^Error ER_SIGNAL_EXCEPTION/,
    ended: /^Error .*(closed state|ended by|Connection lost)/,
    exhausted: KNEX,
  },
  // Before 0.44, Drizzle passes the errors of the driver on as they are.
  "drizzle on postgresql": {
    refused: /^(DrizzleQueryError - Failed query|DatabaseError PF001)/,
    ended:
      /^(DrizzleQueryError - Failed query: (rollback|commit|update)|Error .*(not queryable|terminated unexpectedly)|DatabaseError 57P01)/,
    exhausted: /^Error - timeout exceeded when trying to connect/,
  },
  "drizzle on mysql": {
    refused: /^(DrizzleQueryError - Failed query|Error ER_SIGNAL_EXCEPTION)/,
    ended:
      /^(DrizzleQueryError - Failed query: (rollback|commit|update)|Error .*(closed state|ended by|Connection lost))/,
    exhausted: /^Error - No connections available/,
  },
  "typeorm on postgresql": {
    refused: /^QueryFailedError PF001/,
    ended: /^(QueryRunnerAlreadyReleasedError|QueryFailedError (57P01|.*terminated))/,
    exhausted: /^Error - timeout exceeded when trying to connect/,
  },
  "typeorm on mysql": {
    refused: /^QueryFailedError ER_SIGNAL_EXCEPTION/,
    ended: /^QueryFailedError .*(closed state|ended by|Connection lost)/,
    exhausted: /^Error - No connections available/,
  },
  "prisma on postgresql": {
    refused: /^PrismaClientKnownRequestError P2010/,
    ended:
      /^(Error|DriverAdapterError|PrismaClientKnownRequestError) .*((not queryable|terminated unexpectedly)|terminating connection|Transaction)/s,
    exhausted: /^PrismaClientKnownRequestError P2028/,
  },
  "prisma on mysql": {
    refused: /^PrismaClientKnownRequestError P2010/,
    ended: /^(DriverAdapterError|PrismaClientKnownRequestError) .*connection closed/s,
    // Prisma 7.0 keeps to the time of the driver, and not to its own.
    exhausted: /^(PrismaClientKnownRequestError P2028|DriverAdapterError - pool timeout)/,
  },
  "mysql2 on mysql": {
    refused: /^Stale stale/,
    ended: /^Error .*(closed state|ended by|Connection lost)/,
    exhausted: /^Error - No connections available/,
  },
  "node-redis on redis": { refused: /^Stale stale/, ended: /^Stale stale/, exhausted: /^$/ },
};

interface Engine {
  readonly url: string;
  /** Adds 1 to a row, as the next holder. */
  readonly add: (name: string, lease: Lease, fenced: boolean) => Promise<unknown>;
  readonly total: (name: string) => Promise<number>;
  /** Ends the connections that are in a transaction, or could be. */
  readonly end: () => Promise<unknown>;
}

interface Framework {
  readonly engines: readonly Name[];
  readonly modes?: readonly Mode[];
}

const scope = wholeFile();
const frameworks = new Map<string, Framework>();
const engines = new Map<Name, Engine>();
let client: Client;
let server: Running;

/** The page's examples by the name of the framework in the comment that stands before each. */
const examples = new Map(
  [...PAGE.matchAll(/<!-- (\S+) -->\n```js\n(.*?)```/gs)].map(([, name = "", text = ""]) => [name, text]),
);
const rowName = (framework: string, engine: Name, mode: Mode): string => `${framework}-${engine}-${mode}`;
const ADD = "UPDATE counters SET total = total + 1 WHERE name = ";

async function onPostgres(rows: readonly string[]): Promise<Engine> {
  const url = await postgres(scope);
  const pool = new pg.Pool({ connectionString: url });
  pool.on("error", () => undefined);
  scope.after(() => pool.end());
  for (const table of ["counters", "orders"]) {
    await pool.query(`CREATE TABLE ${table} (name varchar(64) PRIMARY KEY, total int)`);
    await pool.query(`INSERT INTO ${table} SELECT unnest($1::text[]), 0`, [rows]);
  }
  execFileSync(binary(), ["fence", "install", "postgres", "--url", url, "orders"], { stdio: "ignore" });
  return {
    url,
    add: (name, lease, fenced) => {
      const work = (db: pg.Pool | pg.PoolClient): Promise<unknown> => db.query(`${ADD} $1`, [name]);
      return fenced ? onPg(pool, name, lease, work) : work(pool);
    },
    total: async (name) => {
      const { rows: found } = await pool.query<{ total: number }>(
        "SELECT CASE WHEN $1 LIKE '%page' THEN o.total ELSE c.total END AS total FROM counters c JOIN orders o USING (name) WHERE name = $1",
        [name],
      );
      return found[0]?.total ?? -1;
    },
    end: () => pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"),
  };
}

async function onMariadb(rows: readonly string[]): Promise<Engine> {
  const url = await mariadb(scope);
  const pool = mysql.createPool(url);
  scope.after(() => pool.end());
  // Another user than here, so that `end` finds its connections.
  await pool.query("CREATE USER holder");
  await pool.query("GRANT ALL ON *.* TO holder");
  // At MariaDB's default level, from 11.6 on, the server itself refuses the control's late write.
  await pool.query("SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED");
  for (const table of ["counters", "orders"]) {
    await pool.query(`CREATE TABLE ${table} (name varchar(64) PRIMARY KEY, total int)`);
    await pool.query(`INSERT INTO ${table} VALUES ?`, [rows.map((row) => [row, 0])]);
  }
  execFileSync(binary(), ["fence", "install", "mysql", "--url", url, "orders"], { stdio: "ignore" });
  return {
    url: url.replace("//palisade@", "//holder@"),
    add: (name, lease, fenced) => {
      const work = (db: mysql.Pool | mysql.PoolConnection): Promise<unknown> => db.query(`${ADD} ?`, [name]);
      return fenced ? onMysql(pool, name, lease, work) : work(pool);
    },
    total: async (name) => {
      const table = name.endsWith("page") ? "orders" : "counters";
      const [found] = await pool.query<mysql.RowDataPacket[]>("SELECT total FROM ?? WHERE name = ?", [table, name]);
      return Number(found[0]?.["total"]);
    },
    end: async () => {
      // Not the list of transactions, which MariaDB renews ten times a second.
      const [found] = await pool.query<mysql.RowDataPacket[]>(
        "SELECT id FROM information_schema.processlist WHERE user = 'holder'",
      );
      for (const { id } of found) {
        // 1094: it is gone already.
        await pool.query(`KILL ${Number(id)}`).catch((error: unknown) => {
          assert.equal((error as { errno?: number }).errno, 1094);
        });
      }
    },
  };
}

async function onRedis(rows: readonly string[]): Promise<Engine> {
  const url = await redis(scope);
  const db = new Redis(url);
  scope.after(() => {
    db.disconnect();
  });
  const key = (name: string): string => (name.endsWith("page") ? "{orders}:total" : `{${name}}:total`);
  for (const row of rows) {
    await db.set(key(row), 0);
  }
  return {
    url,
    add: async (name, lease, fenced) => {
      if (!fenced) {
        return db.incr(key(name));
      }
      const resource = new Resource(name);
      await resource.claim(db, lease);
      return resource.incrby(db, lease, key(name), 1);
    },
    total: async (name) => Number(await db.get(key(name))),
    end: () => Promise.resolve(),
  };
}

interface Outcome {
  readonly done?: boolean;
  readonly error?: string;
  readonly code?: string;
  readonly message?: string;
  readonly rejection?: { readonly code: string; readonly token?: number; readonly highest?: number };
}

/** A process with frameworks/holder.mjs, which tells one story after the other. */
class Holder {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: AsyncIterator<string, undefined>;

  constructor(
    readonly framework: string,
    readonly engine: Name,
  ) {
    const { url } = engines.get(engine) ?? assert.fail(engine);
    const program = [join(place, "holder.mjs"), `./${framework}.mjs`, url, server.url];
    this.#child = spawn(process.execPath, program, { stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
    scope.after(() => this.#child.kill("SIGKILL"));
  }

  /** Tells one story, and does `meanwhile` while the process waits. */
  async story(mode: Mode, meanwhile: () => Promise<unknown> = () => Promise.resolve()): Promise<Outcome> {
    this.#child.stdin.write(`${mode} ${rowName(this.framework, this.engine, mode)}\n`);
    for (;;) {
      const line = (await this.#lines.next()).value ?? assert.fail(`the holder of ${this.framework} ended`);
      if (line === "go?") {
        await meanwhile();
        this.#child.stdin.write("go\n");
      } else if (line.startsWith("{")) {
        return JSON.parse(line) as Outcome;
      }
    }
  }

  /**
   * It is stopped until another holder has written, and goes on. Returns how many acknowledged adds are missing. Its lock is
   * broken, which takes no time; for a fence that is the same as a lease that expires.
   */
  async stopped(mode: Mode): Promise<[number, Outcome]> {
    const { add, total } = engines.get(this.engine) ?? assert.fail(this.engine);
    const name = rowName(this.framework, this.engine, mode);
    const outcome = await this.story(mode, async () => {
      this.#child.kill("SIGSTOP");
      const held = (await client.show(name)).holder ?? assert.fail("the lock is free");
      await client.breakLock(name, held.token);
      await client.withLock(name, { waitMs: 60_000 }, (lease) => add(name, lease, mode !== "bare"));
      this.#child.kill("SIGCONT");
    });
    return [1 + Number(outcome.done === true) - (await total(name)), outcome];
  }
}

const shown = ({ error, code = "-", message }: Outcome): string => `${String(error)} ${code} ${String(message)}`;

const modesOf = ({ modes }: Framework): readonly Mode[] =>
  modes ?? ["before", "inside", "bare", "forgotten", "commit", "caught", "exhausted", "page"];

before(async () => {
  mkdirSync(place, { recursive: true });
  const source = join(PACKAGE, "frameworks");
  for (const file of readdirSync(source).filter((name) => name.endsWith(".mjs"))) {
    cpSync(join(source, file), join(place, file));
  }
  const rows: Record<Name, string[]> = { postgresql: [], mysql: [], redis: [] };
  for (const name of names) {
    const framework = (await import(join(place, `${name}.mjs`))) as Framework;
    frameworks.set(name, framework);
    writeFileSync(join(place, `page-${name}.mjs`), examples.get(name) ?? assert.fail(`no example of ${name}`));
    for (const engine of framework.engines) {
      rows[engine].push(...modesOf(framework).map((mode) => rowName(name, engine, mode)));
    }
  }
  ({ client, server } = await served(scope));
  const [one, two, three] = await Promise.all([
    onPostgres(rows.postgresql),
    onMariadb(rows.mysql),
    onRedis(rows.redis),
  ]);
  engines.set("postgresql", one).set("mysql", two).set("redis", three);
});

const titles = Object.keys(sees).filter((title) => names.includes(title.split(" ")[0] ?? ""));
const holders = new Map<string, Holder>();

function holderOf(title: string): Holder {
  const [framework, engine] = title.split(" on ") as [string, Name];
  const holder = holders.get(title) ?? new Holder(framework, engine);
  holders.set(title, holder);
  return holder;
}

/** A test of one story, if the framework has it. */
function story(title: string, mode: Mode, says: string, run: (holder: Holder, sees: Sees) => Promise<void>): void {
  test(`${title}: ${says}`, async (t) => {
    const holder = holderOf(title);
    if (modesOf(frameworks.get(holder.framework) ?? assert.fail(title)).includes(mode)) {
      await run(holder, sees[title] ?? assert.fail(title));
    } else {
      t.skip("it has no such state");
    }
  });
}

suite("side by side", { concurrency: true }, () => {
  for (const title of titles) {
    suite(title, { concurrency: 1 }, () => {
      story(title, "before", "a holder that is stopped before its claim is refused", async (holder, { refused }) => {
        const [lost, outcome] = await holder.stopped("before");
        assert.match(shown(outcome), refused);
        assert.equal(outcome.rejection?.code, "stale");
        const { token = 0, highest = 0 } = outcome.rejection;
        assert.ok(token > 0 && token < highest, `${token} < ${highest}`);
        assert.equal(lost, 0);
      });

      story(title, "bare", "the control: without a claim an acknowledged add is lost", async (holder) => {
        assert.deepEqual(await holder.stopped("bare"), [1, { done: true }]);
      });

      story(
        title,
        "inside",
        "the transaction of a holder that is stopped after its claim ends",
        async (holder, its) => {
          // Through a framework, MariaDB takes its 10 s for it.
          if (names === OWN && /(knex|drizzle) on mysql/.test(title)) {
            return;
          }
          const [lost, outcome] = await holder.stopped("inside");
          assert.match(shown(outcome), its.ended);
          assert.equal(lost, 0);
        },
      );

      story(title, "forgotten", "a write without a claim is refused", async (holder) => {
        assert.equal((await holder.story("forgotten")).rejection?.code, "tokenless");
      });

      story(title, "exhausted", "all connections are in use", async (holder, { exhausted }) => {
        assert.match(shown(await holder.story("exhausted")), exhausted);
      });

      // The page warns of this: the framework says that all went well.
      story(title, "caught", "a refusal that is caught inside of the transaction is not seen", async (holder) => {
        assert.deepEqual(await holder.story("caught"), { done: true });
      });
    });
  }
});

suite("one after the other", () => {
  for (const title of titles) {
    story(title, "commit", "the connection is gone at the commit", async (holder, { ended }) => {
      const { end, total } = engines.get(holder.engine) ?? assert.fail(title);
      assert.match(shown(await holder.story("commit", end)), ended);
      assert.equal(await total(rowName(holder.framework, holder.engine, "commit")), 0);
    });

    story(title, "page", "the example of docs/use/node.md", async (holder) => {
      const isPostgres = examples.get(holder.framework)?.includes("/fence/pg") ?? false;
      if (isPostgres !== (holder.engine === "postgresql")) {
        return;
      }
      const { total } = engines.get(holder.engine) ?? assert.fail(title);
      const name = rowName(holder.framework, holder.engine, "page");
      const old = await total(name);
      assert.deepEqual(await holder.story("page"), { done: true });
      assert.equal(await total(name), old + 1);
    });
  }
});

test("under ten lines to a fenced write, and the page says how many", () => {
  const install = PAGE.slice(PAGE.indexOf("```sh\n") + 6).split("```")[0] ?? "";
  const count = (text: string): number => text.split("\n").filter((line) => line.trim() !== "").length;
  const counted = [...examples].map(([name, text]) => `${name} ${count(install) + count(text)}`);
  assert.ok(
    PAGE.replaceAll("\n", " ").includes(`Lines from the installation to a fenced write: ${counted.join(", ")}.`),
    counted.join(", "),
  );
  assert.ok(
    [...examples.values()].every((text) => count(install) + count(text) < 10),
    counted.join(", "),
  );
});
