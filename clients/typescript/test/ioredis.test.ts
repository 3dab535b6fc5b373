/** The fence in Redis, on a real server. */
import assert from "node:assert/strict";
import { before, test } from "node:test";

import { Redis } from "ioredis";

import { Invalid, OperatorNeeded } from "../src/index.js";
import { FenceLost, FenceNotInstalled, Rejected, Stale } from "../src/fence/index.js";
import { probe, Resource } from "../src/fence/ioredis.js";
import { redis as served, unique, wholeFile } from "./servers.js";

let redis: Redis;

const scope = wholeFile();

before(async () => {
  redis = new Redis(await served(scope));
  scope.after(() => {
    redis.disconnect();
  });
});

function fresh(): [Resource, string] {
  const resource = new Resource(unique("orders"));
  return [resource, `{${resource.name}}:total`];
}

test("a newer holder shuts the older one out", async () => {
  await probe(redis);
  const [orders, key] = fresh();
  await orders.claim(redis, 7);
  assert.equal(await orders.get(redis, 7, key), null);
  await orders.set(redis, 7, key, 5);
  await orders.claim(redis, 8);
  assert.equal(await orders.get(redis, 8, key), "5");
  await assert.rejects(
    orders.set(redis, 7, key, 6),
    (error) => error instanceof Stale && error.message.includes("token 7 is stale: 7 < 8"),
  );
  await assert.rejects(orders.get(redis, 7, key), Stale);
  assert.equal(await redis.get(key), "5");
});

test("commands", async () => {
  const [orders, key] = fresh();
  const fields = `{${orders.name}}:fields`;
  await orders.append(redis, 7, key, Buffer.from([0xff, 0x00]));
  await orders.append(redis, 7, key, "b");
  assert.deepEqual(await orders.getBuffer(redis, 7, key), Buffer.from([0xff, 0x00, 0x62]));
  await orders.hset(redis, 7, fields, "x", 1);
  assert.equal(await orders.hget(redis, 7, fields, "x"), "1");
  await orders.del(redis, 7, key);
  await assert.rejects(orders.del(redis, 7, key), (error) => error instanceof Rejected && error.code === "missing");
  await orders.incrby(redis, 7, orders.name, 5);
  assert.equal(await orders.get(redis, 7, orders.name), "5");
});

test("a numbered write is carried out once", async () => {
  const [orders, key] = fresh();
  for (let time = 0; time < 2; time += 1) {
    await orders.incrby(redis, 7, key, 5, { sequence: 1 });
  }
  assert.equal(await redis.get(key), "5");
  await assert.rejects(
    orders.incrby(redis, 7, key, 6, { sequence: 1 }),
    (error) => error instanceof Rejected && error.code === "sequence_reused" && error.last === 1,
  );
  await orders.incrby(redis, 7, key, 1, { sequence: 2 });
  await assert.rejects(
    orders.incrby(redis, 7, key, 5, { sequence: 1 }),
    (error) => error instanceof Rejected && error.code === "sequence_stale" && error.last === 2,
  );
});

test("a token of another authority is no number to compare", async () => {
  const [orders] = fresh();
  await orders.claim(redis, { token: 7, authority: "one", lock: "orders" });
  await assert.rejects(
    orders.claim(redis, { token: 8, authority: "another", lock: "orders" }),
    (error) => error instanceof Rejected && error.code === "wrong_authority" && error.authority === "one",
  );
  await assert.rejects(
    orders.claim(redis, { token: 2 ** 53 - 1, authority: "one", lock: "orders" }),
    (error) => error instanceof Rejected && error.code === "jump" && error.highest === 7,
  );
});

test("a lost fence is refused", async () => {
  const [orders, key] = fresh();
  await orders.set(redis, 7, key, 1);
  await redis.del(`palisade:fence:{${orders.name}}`);
  await assert.rejects(orders.set(redis, 8, key, 2), FenceLost);
});

test("keys of another slot are refused before anything is sent", async () => {
  const [orders] = fresh();
  for (const key of ["elsewhere", "palisade:fence:{x}", `{}{${orders.name}}`, `{a}{${orders.name}}`]) {
    await assert.rejects(orders.set(redis, 7, key, 1), Invalid);
  }
  assert.equal(await redis.exists(`palisade:fence:{${orders.name}}`), 0);
  for (const name of ["", "a{b}", "ä", "x".repeat(256)]) {
    assert.throws(() => new Resource(name), Invalid);
  }
  new Resource("a|b~ c!");
});

test("a server that evicts is refused", async () => {
  await redis.config("SET", "maxmemory-policy", "allkeys-lru");
  await assert.rejects(
    probe(redis),
    (error) => error instanceof OperatorNeeded && error.message.includes("noeviction"),
  );
  await redis.config("SET", "maxmemory-policy", "noeviction");
});

test("a server without the functions says what to run", async () => {
  const [orders] = fresh();
  const library = (await redis.call("FUNCTION", "DUMP")) as string;
  assert.ok(library.length > 0);
  const dump = await redis.callBuffer("FUNCTION", "DUMP");
  await redis.call("FUNCTION", "FLUSH");
  await assert.rejects(
    orders.claim(redis, 7),
    (error) => error instanceof FenceNotInstalled && error.message.includes("palisade fence install redis"),
  );
  await redis.call("FUNCTION", "RESTORE", dump as Buffer);
  await orders.claim(redis, 7);
});
