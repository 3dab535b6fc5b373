/** A holder in Rust and one in TypeScript share a fence: whichever is the zombie, nothing acknowledged is lost. */
import assert from "node:assert/strict";
import { spawn, type ChildProcessWithoutNullStreams } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { before, suite, test } from "node:test";

import { Redis } from "ioredis";
import pg from "pg";

import { Stale } from "../src/fence/index.js";
import { adder } from "./adder.js";
import { found, postgres, redis, ROOT, served, unique, wholeFile, type Scope } from "./servers.js";

const ROUNDS = 20;
const scope = wholeFile();
let pool: pg.Pool;
let cache: Redis;
const urls = { postgres: "", redis: "" };

before(async () => {
  urls.postgres = await postgres(scope);
  urls.redis = await redis(scope);
  pool = new pg.Pool({ connectionString: urls.postgres });
  // See pg.test.ts.
  pool.on("error", () => undefined);
  cache = new Redis(urls.redis);
  scope.after(() => {
    cache.disconnect();
    return pool.end();
  });
  await pool.query("CREATE TABLE totals (name text PRIMARY KEY, total bigint)");
});

/** Reads and writes one number in two steps, as a holder that may be paused in between. */
interface Adder {
  read(token: number): Promise<number>;
  /** Whether the write was acknowledged. */
  write(token: number, total: number): Promise<boolean>;
}

class TypeScript implements Adder {
  readonly #adder: ReturnType<typeof adder>;

  constructor(t: Scope, store: keyof typeof urls, name: string, fenced: boolean) {
    this.#adder = adder(store, urls[store], name, fenced);
    t.after(() => this.#adder.close());
  }

  read(token: number): Promise<number> {
    return this.#adder.read(token);
  }

  async write(token: number, total: number): Promise<boolean> {
    try {
      await this.#adder.write(token, total);
      return true;
    } catch (error) {
      assert.ok(error instanceof Stale, String(error));
      return false;
    }
  }
}

class Rust implements Adder {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #lines: AsyncIterator<string>;

  constructor(t: Scope, store: keyof typeof urls, name: string, fenced: boolean) {
    const build = "cargo build -p palisade-fence --features postgres,redis --example adder";
    const path = process.env["PALISADE_ADDER"] ?? join(ROOT, "target/debug/examples/adder");
    const program = found(path, `run \`${build}\`, or set PALISADE_ADDER`);
    this.#process = spawn(program, [store, urls[store], name, fenced ? "fenced" : "unfenced"]);
    this.#lines = createInterface({ input: this.#process.stdout })[Symbol.asyncIterator]();
    t.after(() => this.#process.stdin.end());
  }

  async read(token: number): Promise<number> {
    const answer = await this.#ask(`read ${token}`);
    assert.match(answer, /^\d+$/);
    return Number(answer);
  }

  async write(token: number, total: number): Promise<boolean> {
    const answer = await this.#ask(`write ${token} ${total}`);
    assert.ok(answer === "written" || answer === "rejected stale", answer);
    return answer === "written";
  }

  async #ask(line: string): Promise<string> {
    this.#process.stdin.write(`${line}\n`);
    const answer = await this.#lines.next();
    assert.ok(answer.done !== true, "the Rust holder ended");
    return answer.value;
  }
}

/**
 * How many acknowledged adds are missing in the end: in each round the zombie reads, is paused past its lease, and writes
 * between the next holder's read and write.
 */
async function lost(t: Scope, zombie: Adder, holder: Adder): Promise<number> {
  const { client } = await served(t);
  let adds = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const first = await client.acquire("total", { waitMs: 0 });
    const seen = await zombie.read(first.token);
    await client.breakLock("total", first.token, "the zombie is paused");
    const second = await client.acquire("total", { waitMs: 0 });
    const current = await holder.read(second.token);
    adds += Number(await zombie.write(first.token, seen + 1));
    adds += Number(await holder.write(second.token, current + 1));
    await second.release();
    await first.release();
  }
  return client.withLock("total", { waitMs: 0 }, async (last) => adds - (await holder.read(last.token)));
}

type Language = "typescript" | "rust";

for (const store of ["postgres", "redis"] as const) {
  suite(store, () => {
    /** Makes holders of a language, all of them with one number of this test. */
    const adders = async (t: Scope, fenced: boolean): Promise<(language: Language) => Adder> => {
      const name = unique("total");
      await pool.query("INSERT INTO totals VALUES ($1, 0)", [name]);
      if (!fenced) {
        await cache.set(`{${name}}:total`, 0);
      }
      return (language) => {
        const Made = language === "rust" ? Rust : TypeScript;
        return new Made(t, store, name, fenced);
      };
    };
    const pairs: [Language, Language][] = [
      ["typescript", "rust"],
      ["rust", "typescript"],
    ];
    for (const [zombie, holder] of pairs) {
      test(`nothing is lost behind a shared fence: ${zombie}, then ${holder}`, async (t) => {
        const adder = await adders(t, true);
        assert.equal(await lost(t, adder(zombie), adder(holder)), 0);
      });
      test(`without a fence an add is lost in every round: ${zombie}, then ${holder}`, async (t) => {
        const adder = await adders(t, false);
        assert.equal(await lost(t, adder(zombie), adder(holder)), ROUNDS);
      });
    }
  });
}
