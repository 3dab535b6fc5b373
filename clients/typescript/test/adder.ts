/**
 * A holder's work in TypeScript, for proof/fleet and the mixed tests: it reads and writes one number, in two steps,
 * under a fence or without one. It speaks as proof/fleet/adder.py.
 *
 *     adder postgres|redis|s3|http URL RESOURCE fenced|unfenced      then lines: "read TOKEN", "write TOKEN NUMBER"
 *     answers: the number, "written", or "rejected CODE"
 */
import { realpathSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { GetObjectCommand, NoSuchKey, PutObjectCommand, S3Client } from "@aws-sdk/client-s3";
import { Redis } from "ioredis";
import pg from "pg";

import { CLAIM, fencedFetch, throwIfRejected } from "../src/fence/http.js";
import { Rejected } from "../src/fence/index.js";
import { Resource } from "../src/fence/ioredis.js";
import { transact } from "../src/fence/pg.js";
import { Store, type Resource as S3Resource } from "../src/fence/s3.js";

/** Each method throws `Rejected` if the fence refuses it. */
export interface Adder {
  read(token: number): Promise<number>;
  write(token: number, total: number): Promise<unknown>;
  close(): unknown;
}

class OverPostgres implements Adder {
  readonly #pool: pg.Pool;

  constructor(
    url: string,
    private readonly name: string,
    private readonly fenced: boolean,
  ) {
    this.#pool = new pg.Pool({ connectionString: url, max: 1 });
  }

  async read(token: number): Promise<number> {
    const { rows } = await this.#ask(token, "SELECT total FROM totals WHERE name = $1");
    return Number(rows[0]?.total);
  }

  async write(token: number, total: number): Promise<unknown> {
    return this.#ask(token, "UPDATE totals SET total = $2 WHERE name = $1", total);
  }

  close(): Promise<void> {
    return this.#pool.end();
  }

  #ask(token: number, statement: string, ...values: number[]): Promise<pg.QueryResult<{ total: string }>> {
    const ask = (db: pg.Pool | pg.PoolClient): Promise<pg.QueryResult<{ total: string }>> =>
      db.query(statement, [this.name, ...values]);
    return this.fenced ? transact(this.#pool, this.name, token, ask) : ask(this.#pool);
  }
}

class OverRedis implements Adder {
  readonly #redis: Redis;
  readonly #resource: Resource;
  readonly #key: string;

  constructor(
    url: string,
    name: string,
    private readonly fenced: boolean,
  ) {
    this.#redis = new Redis(url);
    this.#resource = new Resource(name);
    this.#key = `{${name}}:total`;
  }

  async read(token: number): Promise<number> {
    return Number(await (this.fenced ? this.#resource.get(this.#redis, token, this.#key) : this.#redis.get(this.#key)));
  }

  async write(token: number, total: number): Promise<unknown> {
    return this.fenced ? this.#resource.set(this.#redis, token, this.#key, total) : this.#redis.set(this.#key, total);
  }

  close(): void {
    this.#redis.disconnect();
  }
}

/** One object, in the bucket that the URL's path names. */
class OverS3 implements Adder {
  readonly #client: S3Client;
  readonly #bucket: string;
  readonly #resource: Promise<S3Resource>;

  constructor(
    url: string,
    private readonly name: string,
    private readonly fenced: boolean,
  ) {
    const { origin, pathname } = new URL(url);
    const credentials = { accessKeyId: "test", secretAccessKey: "test" };
    this.#client = new S3Client({ endpoint: origin, region: "us-east-1", credentials, forcePathStyle: true });
    this.#bucket = pathname.slice(1);
    this.#resource = Store.open(this.#client, this.#bucket, "fenced", { probe: false }).then((store) =>
      store.resource(name),
    );
  }

  async read(token: number): Promise<number> {
    return Number(this.fenced ? await (await this.#resource).read(token, "/total") : await this.#object());
  }

  async write(token: number, total: number): Promise<unknown> {
    if (this.fenced) {
      return (await this.#resource).put(token, "/total", String(total));
    }
    return this.#client.send(new PutObjectCommand({ Bucket: this.#bucket, Key: this.name, Body: String(total) }));
  }

  close(): void {
    this.#client.destroy();
  }

  async #object(): Promise<string | undefined> {
    try {
      const { Body } = await this.#client.send(new GetObjectCommand({ Bucket: this.#bucket, Key: this.name }));
      return await Body?.transformToString();
    } catch (error) {
      if (error instanceof NoSuchKey) {
        return "0";
      }
      throw error;
    }
  }
}

/** An API; with a fence the URL is the gateway's. */
class OverHttp implements Adder {
  readonly #url: string;

  constructor(
    url: string,
    name: string,
    private readonly fenced: boolean,
  ) {
    this.#url = `${url}/${name}`;
  }

  async read(token: number): Promise<number> {
    if (this.fenced) {
      await this.#ask(token, { method: "POST", headers: CLAIM });
    }
    return Number(await this.#ask(token, {}));
  }

  async write(token: number, total: number): Promise<unknown> {
    return this.#ask(token, { method: "PUT", body: String(total) });
  }

  close(): void {
    // `fetch` keeps nothing running.
  }

  async #ask(token: number, request: RequestInit): Promise<string> {
    const send = this.fenced ? fencedFetch(token) : fetch;
    const answer = await throwIfRejected(await send(this.#url, request));
    if (!answer.ok) {
      throw new Error(`${this.#url} answered ${answer.status}`);
    }
    return answer.text();
  }
}

const STORES = { postgres: OverPostgres, redis: OverRedis, s3: OverS3, http: OverHttp };

export function adder(store: keyof typeof STORES, url: string, name: string, fenced: boolean): Adder {
  return new STORES[store](url, name, fenced);
}

async function main([store, url, name, arm]: string[]): Promise<void> {
  const one = adder(store as keyof typeof STORES, url ?? "", name ?? "", arm === "fenced");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, token, total] = line.split(" ");
    try {
      const found = verb === "read" ? await one.read(Number(token)) : await one.write(Number(token), Number(total));
      console.log(verb === "read" ? String(found) : "written");
    } catch (error) {
      if (!(error instanceof Rejected)) {
        throw error;
      }
      console.log(`rejected ${error.code}`);
    }
  }
  await one.close();
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  await main(process.argv.slice(2));
}
