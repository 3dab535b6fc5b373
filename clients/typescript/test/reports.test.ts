/** A fence that refuses a token as stale is reported to the authority, in the background: docs/operate/history.md. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import http from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { before, suite, test } from "node:test";

import { Redis } from "ioredis";
import pg from "pg";

import { Client, type ClientOptions, type Lease } from "../src/index.js";
import { fencedFetch, throwIfRejected } from "../src/fence/http.js";
import { Stale, type Holder } from "../src/fence/index.js";
import { presented } from "../src/fence/holder.js";
import { transact } from "../src/fence/pg.js";
import { Resource } from "../src/fence/redis.js";
import { EMPTY, judged } from "../src/fence/rule.js";
import { MemoryServer } from "../src/testing/index.js";
import {
  connect,
  folder,
  listening,
  palisade,
  postgres,
  redis,
  serve,
  unique,
  until,
  wholeFile,
  type Scope,
} from "./servers.js";

type Claim = (holder: Holder) => Promise<unknown>;

interface Fence {
  readonly claim: Claim;
  readonly resource: string;
  readonly operation: string;
}

interface Rejection {
  readonly resource: string;
  readonly highest: number;
  readonly operation: string;
  readonly times: number;
}

/** A holder without notices, which renews only in 20 s, so it believes in its lease, and the token of the holder after it. */
async function superseded(
  t: Scope,
  client: Client,
  url: string,
  lock: string | readonly string[],
): Promise<{ old: Lease; newer: number }> {
  const old = await client.acquire(lock, { ttlMs: 60_000 });
  return { old, newer: await takenFrom(t, url, old.locks, old.token) };
}

async function takenFrom(t: Scope, url: string, locks: readonly string[], token: number): Promise<number> {
  const other = connect(t, { urls: url, reportRefusals: false });
  for (const lock of locks) {
    await other.breakLock(lock, token);
  }
  return (await other.acquire(locks, { ttlMs: 60_000 })).token;
}

async function get(url: string, path: string): Promise<Record<string, unknown>> {
  return (await (await fetch(url + path)).json()) as Record<string, unknown>;
}

async function rejections(url: string, lock: string): Promise<readonly Rejection[]> {
  const { grants } = (await get(url, `/v1/history?lock=${lock}`)) as { grants: { rejections?: Rejection[] }[] };
  return grants.flatMap((grant) => grant.rejections ?? []);
}

async function counts(url: string): Promise<number> {
  const { counts: of } = (await get(url, "/v1/status")) as { counts: Record<string, number> };
  return (of["rejections_reported"] ?? 0) + (of["rejections_unknown"] ?? 0);
}

async function onPostgres(t: Scope): Promise<Fence> {
  const pool = new pg.Pool({ connectionString: await postgres(t) });
  pool.on("error", () => undefined);
  t.after(() => pool.end());
  const resource = unique("orders");
  return { claim: (holder) => transact(pool, resource, holder, () => undefined), resource, operation: "claim" };
}

/** An API that knows nothing of fences, behind a real gateway. */
async function onGateway(t: Scope): Promise<Fence> {
  const upstream = await listening(
    t,
    http.createServer((_, response) => response.end()),
  );
  const free = "127.0.0.1:0";
  const data = join(folder(), "gateway");
  const { url } = await palisade(
    t,
    ...["gateway", "--listen", free, "--admin", free, "--upstream", upstream, "--data", data],
  );
  return {
    claim: async (holder) => throwIfRejected(await fencedFetch(holder)(`${url}/total?secret=1`, { method: "PUT" })),
    resource: new URL(url).host,
    operation: "PUT /total",
  };
}

for (const [name, fence] of Object.entries({ PostgreSQL: onPostgres, gateway: onGateway })) {
  test(`a refused write is in the history: ${name}`, async (t) => {
    const { url } = await serve(t);
    const { claim, resource, operation } = await fence(t);
    const silent = connect(t, { urls: url, reportRefusals: false, notices: false });
    const control = await superseded(t, silent, url, "control");
    // Without names, so that both locks may claim it.
    await claim(control.newer);
    await assert.rejects(claim(control.old), Stale);
    const client = connect(t, { urls: url, notices: false });
    const { old, newer } = await superseded(t, client, url, "orders");
    await claim(newer);
    // Bare tokens belong to no client. The second report of the lease equals the first, within ten seconds.
    const { token, authority } = old;
    for (const holder of [token, { token, authority, lock: "orders" }, old, old]) {
      await assert.rejects(claim(holder), Stale);
    }
    await until(async () => (await rejections(url, "orders")).length > 0);
    const [found, ...more] = await rejections(url, "orders");
    assert.ok(found);
    const { resource: at, highest, operation: did, times } = found;
    assert.deepEqual({ at, highest, did, times }, { at: resource, highest: newer, did: operation, times: 1 });
    // The control came before, and would be there.
    assert.deepEqual([more, await rejections(url, "control"), await counts(url)], [[], [], 1]);
    assert.equal(client.reportsDropped, 0);
  });
}

suite("with one Redis", () => {
  let connection: Redis;
  const scope = wholeFile();
  before(async () => {
    connection = new Redis(await redis(scope));
    scope.after(() => connection.quit());
  });
  const fence = (resource: string): Claim => {
    const named = new Resource(unique(resource));
    return (holder) => named.claim(connection, holder);
  };

  test("the lock is that of the token", async (t) => {
    const { url } = await serve(t);
    const claim = fence("seat");
    const { old, newer } = await superseded(t, connect(t, { urls: url, notices: false }), url, ["a", "b"]);
    await claim(newer);
    await assert.rejects(claim(old.part("b")), Stale);
    await until(async () => (await rejections(url, "b")).length === 1);
    assert.deepEqual(await rejections(url, "a"), []);
  });

  test("a thousand are few posts", async (t) => {
    const { url } = await serve(t);
    const client = connect(t, { urls: url, notices: false });
    const { old, newer } = await superseded(t, client, url, "seats");
    const claims = Array.from({ length: 1_000 }, (_, at) => fence(`seat-${at}`));
    await Promise.all(claims.map((claim) => claim(newer)));
    const began = performance.now();
    for (const claim of claims) {
      await assert.rejects(claim(old), Stale);
    }
    const perLoop = (performance.now() - began) / 100 + 1;
    // All others are queued, at most 64, or posted, at most ten in a second.
    assert.ok(client.reportsDropped >= 1_000 - 64 - perLoop - 1);
    await client.close();
    const posts = (performance.now() - began) / 100 + 2;
    await until(async () => (await counts(url)) + client.reportsDropped >= 1_000);
    const posted = await counts(url);
    assert.ok(posted >= 1 && posted <= posts, `${posted} of at most ${posts}`);
    // The one that was under way at the end may have arrived without its answer.
    assert.ok(posted + client.reportsDropped <= 1_001);
  });

  test("an authority that is gone delays nobody", async (t) => {
    const server = await serve(t);
    const clients = [true, false].map((reportRefusals) =>
      connect(t, { urls: server.url, reportRefusals, notices: false }),
    );
    const leases: { old: Lease; newer: number }[] = [];
    for (const [at, client] of clients.entries()) {
      leases.push(await superseded(t, client, server.url, `orders-${at}`));
    }
    const took: [number[], number[]] = [[], []];
    const rounds = Array.from({ length: 30 }, (_, round) => [fence(`${round}-0`), fence(`${round}-1`)] as const);
    for (const claims of rounds) {
      await Promise.all(claims.map((claim, at) => claim(leases[at]?.newer ?? 0)));
    }
    server.process.kill("SIGSTOP");
    for (const claims of rounds) {
      for (const [at, claim] of claims.entries()) {
        const began = performance.now();
        await assert.rejects(claim(leases[at]?.old ?? 0), Stale);
        took[at]?.push(performance.now() - began);
      }
    }
    server.process.kill("SIGCONT");
    const [reporting = 0, silent = 0] = took.map((times) => times.sort((one, other) => one - other)[15]);
    // A refusal that waited for its report would take two seconds.
    assert.ok(reporting < 5 * silent + 50, `${reporting} ms, and ${silent} ms without reports`);
  });
});

/** How long a process takes to end after a refusal while nobody answers, from the moment that it has nothing more to do. */
async function ends(t: Scope, { claim }: Fence, options: ClientOptions, url: string): Promise<number> {
  const from = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);
  const server = await serve(t);
  const child = spawn(
    process.execPath,
    [
      "--input-type=module",
      "--eval",
      `import { Client } from ${from("../src/index.js")};
       import { fencedFetch, throwIfRejected } from ${from("../src/fence/http.js")};
       import { createInterface } from "node:readline";
       const client = new Client(${JSON.stringify({ ...options, urls: server.url, patienceMs: 200, notices: false })});
       const lease = await client.acquire("orders", { ttlMs: 60_000 });
       console.log(String(lease.token));
       const lines = createInterface({ input: process.stdin });
       await lines[Symbol.asyncIterator]().next();
       lines.close();
       const answer = await fencedFetch(lease)(${JSON.stringify(url)}, { method: "PUT" });
       const error = await throwIfRejected(answer).catch((error) => error);
       await lease.release().catch(() => undefined);
       console.log(error.code);`,
    ],
    { stdio: ["pipe", "pipe", "inherit"] },
  );
  const ended = once(child, "exit");
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const token = Number((await lines.next()).value);
  await claim(await takenFrom(t, server.url, ["orders"], token));
  server.process.kill("SIGSTOP");
  child.stdin.end("\n");
  assert.equal((await lines.next()).value, "stale");
  const began = performance.now();
  assert.deepEqual(await ended, [0, null]);
  server.process.kill("SIGCONT");
  return performance.now() - began;
}

test("a report does not keep the process running", async (t) => {
  const first = await onGateway(t);
  const second = await onGateway(t);
  const silent = await ends(t, first, { reportRefusals: false }, `http://${first.resource}/total`);
  const reporting = await ends(t, second, {}, `http://${second.resource}/total`);
  // Of the two seconds of its attempt most were left.
  assert.ok(reporting < silent + 1_000, `${reporting} ms, and ${silent} ms without reports`);
});

test("the double takes reports, and one that does not arrive is counted", async () => {
  const server = new MemoryServer();
  for (const dropped of [0, 1]) {
    const client = server.client();
    const lease = await client.acquire(`orders-${dropped}`);
    const record = { ...EMPTY, token: lease.token + 1 };
    if (dropped === 1) {
      server.down();
    }
    assert.throws(() => judged(["seat", "claim"], record, presented(lease), { kind: "claim" }), Stale);
    await client.close();
    assert.equal(client.reportsDropped, dropped);
  }
});
