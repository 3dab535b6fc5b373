/** The fence in Redis with node-redis, on a real server. What both packages share is tested with ioredis. */
import assert from "node:assert/strict";
import { before, test } from "node:test";

import { createClient, createClientPool } from "redis";

import { FenceNotInstalled, rejection, Stale } from "../src/fence/index.js";
import { probe, Resource } from "../src/fence/redis.js";
import { redis as served, unique, wholeFile } from "./servers.js";

const connected = (url: string) => createClient({ url }).connect();
let redis: Awaited<ReturnType<typeof connected>>;
let url: string;

const scope = wholeFile();

before(async () => {
  url = await served(scope);
  redis = await connected(url);
  scope.after(() => redis.close());
});

test("a newer holder shuts the older one out, with a client and with a pool", async () => {
  await probe(redis);
  const pool = createClientPool({ url });
  await pool.connect();
  for (const connection of [redis, pool]) {
    const orders = new Resource(unique("orders"));
    const key = `{${orders.name}}:total`;
    await orders.claim(connection, 7);
    assert.equal(await orders.get(connection, 7, key), null);
    await orders.set(connection, 7, key, 5, { sequence: 1 });
    await orders.set(connection, 7, key, 5, { sequence: 1 });
    await orders.claim(connection, 8);
    assert.equal(await orders.get(connection, 8, key), "5");
    await assert.rejects(orders.set(connection, 7, key, 6), (error) => {
      assert.ok(error instanceof Stale);
      assert.deepEqual([error.token, error.highest], [7, 8]);
      return true;
    });
    await orders.append(connection, 8, key, Buffer.from([0xff, 0x00]));
    assert.deepEqual(await orders.getBuffer(connection, 8, key), Buffer.from([0x35, 0xff, 0x00]));
    const fields = `{${orders.name}}:fields`;
    await orders.hset(connection, 8, fields, "x", 1);
    assert.equal(await orders.hget(connection, 8, fields, "x"), "1");
  }
  await pool.close();
});

test("the functions called by hand: the refusal is found in the error of node-redis", async () => {
  const name = unique("orders");
  const keys = [`palisade:fence:{${name}}`];
  await redis.fCall("palisade_claim", { keys, arguments: ["8", "", "", ""] });
  const error = await redis
    .fCall("palisade_claim", { keys, arguments: ["7", "", "", ""] })
    .catch((one: unknown) => one);
  assert.ok(error instanceof Error && !(error instanceof Stale));
  const found = rejection(error);
  assert.ok(found instanceof Stale);
  assert.deepEqual([found.token, found.highest], [7, 8]);
});

test("what sends nothing at once is refused", async () => {
  const orders = new Resource(unique("orders"));
  for (const wrong of [redis.multi(), undefined, {}, url]) {
    await assert.rejects(orders.claim(wrong as never, 7), (error) => {
      assert.ok(error instanceof TypeError);
      assert.match(error.message, /a client or a cluster of redis, or .* no pipeline and no multi\(\)/);
      return true;
    });
  }
});

test("a server without the functions says what to run", async () => {
  await redis.functionFlush();
  await assert.rejects(new Resource("a").claim(redis, 7), FenceNotInstalled);
});
