/** The examples of the README, as they stand there. */
import assert from "node:assert/strict";

import type { S3Client } from "@aws-sdk/client-s3";
import type { Redis } from "ioredis";
import type { Pool } from "pg";

import { Attempts } from "../src/attempts.js";
import { CLAIM, fencedFetch, numbered, throwIfRejected } from "../src/fence/http.js";
import { Resource } from "../src/fence/ioredis.js";
import { Store } from "../src/fence/s3.js";
import { Keys } from "../src/fence/sequencer.js";
import { transact, type Database } from "../src/fence/sqlite.js";
import { Client, LockHeld, type Lease, type Notice } from "../src/index.js";
import { MemoryServer } from "../src/testing/index.js";

export async function report(work: (part: number, signal: AbortSignal) => Promise<void>): Promise<void> {
  // prettier-ignore
  {
const client = new Client(); // PALISADE_URL, or http://127.0.0.1:7420
try {
  await using lease = await client.acquire("report", { ttlMs: 15_000, waitMs: 2_000 });
  for (const part of [1, 2, 3]) {
    lease.check(); // throws LeaseLost; no round trip
    await work(part, lease.signal); // the signal aborts at the loss
  }
} catch (error) {
  if (!(error instanceof LockHeld)) throw error;
  console.log("busy:", error.holder?.clientId, "try again in", error.retryAfterMs, "ms");
}
}
}

export async function follow(client: Client, console: { log(text: string): void }): Promise<void> {
  // prettier-ignore
  {
for await (const leader of client.observe("db-primary")) {
  console.log(leader === undefined ? "nobody leads" : `${leader.clientId} leads at ${leader.value}`);
}
}
}

export async function withoutServer(): Promise<void> {
  // prettier-ignore
  {
const server = new MemoryServer();
const other = server.hold("orders", "another worker");
assert.equal(await server.client().tryAcquire("orders"), undefined);
other.release();
const lease = await server.client().acquire("orders", { ttlMs: 300 });
server.revoke("orders", "the test"); // the holder hears of it by a notice
assert.equal((await lease.lost).code, "revoked");
}
}

/** That of docs/use/notices.md. */
export async function hear(): Promise<void> {
  // prettier-ignore
  {
function onNotice(notice: Notice): void {
  if (notice.kind === "suspended") {
    console.log(`renewal is failing, ${notice.remainingMs} ms left`); // then comes "restored", or "lost"
  } else if (notice.kind === "wanted") {
    console.log(`${notice.waiters} wait for the lock`); // "unwanted": none wait any more
  } else if (notice.kind === "lost") {
    console.log(`lost: ${notice.why} ${notice.reason ?? ""}`);
  }
}

await using client = new Client();
await using lease = await client.acquire("report");
lease.listen(onNotice);
for (let part = 0; part < 3; part += 1) {
  lease.check(); // fails at once after a break
  if (lease.wanted() > 0) break; // let the others have it
}
}
}

export function addOrderToFile(db: Database, lease: Lease): void {
  // prettier-ignore
  {
transact(db, "orders", lease, () => db.exec("UPDATE orders SET total = total + 1"));
}
}

export async function takeApples(redis: Redis, lease: Lease): Promise<void> {
  // prettier-ignore
  {
const stock = new Resource("stock");
await stock.claim(redis, lease); // first: raises the fence
const left = Number((await stock.get(redis, lease, "{stock}:apples")) ?? 10);
await stock.set(redis, lease, "{stock}:apples", left - 3, { sequence: 1 }); // with a number it is safe to repeat
}
}

export async function addOrder(s3: S3Client, lease: Lease): Promise<void> {
  // prettier-ignore
  {
const orders = (await Store.open(s3, "bucket", "fenced")).resource("orders");
await orders.claim(lease);
const total = Number((await orders.read(lease, "/total")) ?? 0);
await orders.put(lease, "/total", String(total + 1));
}
}

export async function pay(url: string, lease: Lease): Promise<void> {
  // prettier-ignore
  {
const api = fencedFetch(lease);
await throwIfRejected(await api(url, { method: "POST", headers: CLAIM }));
await throwIfRejected(await api(url, { method: "PUT", body: '{"paid": true}', headers: numbered(1) }));
}
}

export async function work(pool: Pool): Promise<void> {
  // prettier-ignore
  {
const attempts = new Attempts({ table: "jobs", leaseMs: 30_000, maxAttempts: 5 });
const attempt = await attempts.take(pool, "worker-1"); // commits: the attempt counts before the work begins
if (attempt !== undefined) {
  await attempts.transact(pool, attempt, (db) => db.query("UPDATE accounts SET total = total + 1")); // … and done
}
}
}

export async function presentSigned(server: string, lease: Lease): Promise<void> {
  // prettier-ignore
  {
const text = await lease.sequencer(); // it goes to the resource, over TLS, and into no log

// At the resource: get the keys over TLS, and again when they have changed.
const jwks = await fetch(`${server}/.well-known/jwks.json`);
const sequencer = new Keys(await jwks.text()).check(text, "invoices", { writes: true });
console.log(sequencer.token, sequencer.principal); // the fence compares the token, as always
}
}
