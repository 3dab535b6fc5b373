/** Several locks at once: the API, and a fence for each of them. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import { presented, type Holder } from "../src/fence/holder.js";
import { Rejected } from "../src/fence/index.js";
import { decide, EMPTY, type FenceRecord } from "../src/fence/rule.js";
import { Client, Invalid, LeaseLost, LockHeld, type AcquireOptions } from "../src/index.js";
import { onBoth } from "./both.js";

async function holders(client: Client, ...locks: string[]): Promise<(number | undefined)[]> {
  const shown = await Promise.all(locks.map((lock) => client.show(lock)));
  return shown.map(({ holder }) => holder?.token);
}

onBoth("several locks are one lease, and each is released by its name", async ({ client }) => {
  const lease = await client.acquire(["b", "a", "c"], { waitMs: 0, clientId: "me" });
  const { token } = lease;
  assert.deepEqual([lease.locks, lease.lock], [["a", "b", "c"], ""]);
  assert.match(lease.toString(), /"a", "b", "c"/);
  assert.deepEqual(await holders(client, "a", "b", "c"), [token, token, token]);
  await assert.rejects(client.acquire(["c", "d"], { waitMs: 0 }), LockHeld);
  assert.equal(await client.tryAcquire(["c", "d"]), undefined);
  assert.equal(await lease.releasePart("b"), "released");
  assert.equal(await lease.releasePart("b"), "already_released");
  assert.deepEqual(await holders(client, "a", "b", "c", "d"), [token, undefined, token, undefined]);
  lease.check();
  assert.equal(await lease.release(), "released");
  assert.equal(await lease.release(), "already_released");
  assert.deepEqual(await holders(client, "a", "c"), [undefined, undefined]);
});

onBoth("a loss names the lock that is over, and frees the others", async ({ client }) => {
  const work = client.withLock(["a", "b"], { ttlMs: 9_000 }, async (lease) => {
    await client.breakLock("b", lease.token, "the test");
    await once(new EventTarget(), "never", { signal: lease.signal });
  });
  await assert.rejects(work, (error) => {
    assert.ok(error instanceof LeaseLost);
    assert.deepEqual([error.code, error.lock], ["revoked", "b"]);
    return true;
  });
  assert.deepEqual(await holders(client, "a", "b"), [undefined, undefined]);
});

test("what is wrong with several locks is told before anything is sent", async (t) => {
  const client = new Client({ urls: "http://127.0.0.1:1" });
  t.after(() => client.close());
  const many = Array.from({ length: 65 }, (_, number) => `lock-${number}`);
  const wrong: [string[], AcquireOptions, RegExp][] = [
    [[], {}, /0 locks/],
    [many, {}, /65 locks/],
    [["a", "b", "a"], {}, /"a" is named twice/],
    [["a", ""], {}, /name of a lock/],
    [["a", "b"], { shared: true }, /exclusive/],
    [["a", "b"], { permits: { count: 1, of: 2 } }, /exclusive/],
    [["a", "b"], { lockDelayMs: 1_000 }, /exclusive/],
    [["a", "b"], { atLeastForMs: 1_000 }, /exclusive/],
  ];
  for (const [locks, options, message] of wrong) {
    await assert.rejects(client.acquire(locks, options), { name: "Invalid", message });
  }
});

onBoth("each fence is bound to its own lock", async ({ client }) => {
  const both = await client.acquire(["a", "b"]);
  const claimed = (record: FenceRecord, holder: Holder): FenceRecord =>
    decide(record, presented(holder), { kind: "claim" }).record;
  const part = both.part("b");
  const record = claimed(EMPTY, part);
  assert.deepEqual([record.lock, record.token, record.authority], ["b", both.token, both.authority]);
  // Without a name the fence stays open for the name of the next holder.
  const nameless = claimed(EMPTY, both);
  assert.equal(nameless.lock, undefined);
  // Control: the name of another lock keeps the next holder out.
  const misnamed = claimed(EMPTY, both.part("a"));
  await both.releasePart("b");
  const next = await client.acquire("b");
  assert.equal(claimed(record, next).lock, "b");
  assert.equal(claimed(nameless, next).lock, "b");
  assert.throws(() => claimed(misnamed, next), { name: Rejected.name, code: "wrong_lock" });
  assert.throws(() => claimed(EMPTY, part), LeaseLost);
  assert.throws(() => both.part("b"), LeaseLost);
  assert.throws(() => both.part("c"), Invalid);
  await assert.rejects(both.releasePart("c"), Invalid);
  both.check();
  await both.release();
  await next.release();
});
