/** The fence of an S3-compatible store, against moto. */
import assert from "node:assert/strict";
import { before, test } from "node:test";

import {
  CreateBucketCommand,
  DeleteObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  type PutObjectCommandInput,
} from "@aws-sdk/client-s3";

import { Invalid, OperatorNeeded } from "../src/index.js";
import { FenceLost, Rejected, Stale } from "../src/fence/index.js";
import { Store, type Resource } from "../src/fence/s3.js";
import { s3, unique, wholeFile } from "./servers.js";

let client: S3Client;
let store: Store;

const scope = wholeFile();

before(async () => {
  client = made(await s3(scope));
  await client.send(new CreateBucketCommand({ Bucket: "bucket" }));
  store = await Store.open(client, "bucket", "/fenced/");
});

function made(endpoint: string | undefined): S3Client {
  return new S3Client({
    ...(endpoint === undefined ? {} : { endpoint }),
    region: "us-east-1",
    forcePathStyle: true,
    credentials: { accessKeyId: "test", secretAccessKey: "test" },
  });
}

const read = async (orders: Resource, token: number, key: string): Promise<string | undefined> =>
  (await orders.read(token, key))?.toString();

test("a newer holder shuts the older one out", async () => {
  const orders = store.resource(unique("orders"));
  await orders.claim(33);
  assert.equal(await read(orders, 33, "/total"), undefined);
  await orders.put(33, "/total", "11");
  await orders.claim(34);
  assert.equal(await read(orders, 34, "/total"), "11");
  await assert.rejects(orders.put(33, "/total", "late"), (error) => error instanceof Stale && error.highest === 34);
  await assert.rejects(orders.read(33, "/total"), Stale);
  await orders.append(34, "/total", "5");
  assert.equal(await read(orders, 34, "/total"), "115");
});

test("repeats and denials", async () => {
  const orders = store.resource("or/ders ~");
  const holder = { token: 7, authority: "authority", lock: "lock" };
  assert.equal(await orders.append(holder, "/a", "one", { sequence: 1 }), false);
  assert.equal(await orders.append(holder, "/a", "one", { sequence: 1 }), true);
  assert.equal((await orders.read(holder, "/a"))?.toString(), "one");
  await assert.rejects(
    orders.append(holder, "/a", "two", { sequence: 1 }),
    (error) => error instanceof Rejected && error.code === "sequence_reused",
  );
  await orders.delete(holder, "/a");
  await assert.rejects(orders.delete(holder, "/a"), (error) => error instanceof Rejected && error.code === "missing");
  await assert.rejects(orders.put(null, "/a", "x"), (error) => error instanceof Rejected && error.code === "tokenless");
  const { Contents } = await client.send(new ListObjectsV2Command({ Bucket: "bucket" }));
  assert.ok(Contents?.some(({ Key }) => Key === "fenced/resources/or%2Fders %7E/fence.json"));
  for (const key of ["a", "/", "/a//b", "/a/../b", "/a\u0000", `/${"x".repeat(1_024)}`, "/\ud800"]) {
    await assert.rejects(orders.put(holder, key, "x"), Invalid);
  }
});

test("racing writers lose nothing", async (t) => {
  const orders = store.resource(unique("race"));
  await orders.claim(7);
  // S3 checks a condition and puts in one step, moto in two.
  const put = store.put.bind(store);
  let last: Promise<unknown> = Promise.resolve();
  store.put = (...wish) => {
    const turn = last.then(() => put(...wish));
    last = turn.catch(() => undefined);
    return turn;
  };
  t.after(() => (store.put = put));
  const writer = async (): Promise<void> => {
    for (let number = 0; number < 4; number += 1) {
      await orders.append(7, "/log", "x");
    }
  };
  await Promise.all([writer(), writer(), writer()]);
  assert.equal(await read(orders, 7, "/log"), "x".repeat(12));
});

test("a put whose answer is lost is recognised", async () => {
  const orders = store.resource(unique("orders"));
  await orders.claim(7);
  const put = store.put.bind(store);
  let lose = 1;
  store.put = async (key, content, condition) => {
    const answer = await put(key, content, condition);
    if ("IfMatch" in condition && lose > 0) {
      lose -= 1;
      throw new Error("the answer is lost");
    }
    return answer;
  };
  await orders.append(7, "/log", "x");
  store.put = put;
  assert.equal(lose, 0);
  assert.equal(await read(orders, 7, "/log"), "x");
});

test("a lost or damaged manifest is refused", async () => {
  const name = unique("orders");
  const orders = store.resource(name);
  await orders.put(7, "/a", "x");
  const at = { Bucket: "bucket", Key: `fenced/resources/${name}/fence.json` };
  await client.send(new PutObjectCommand({ ...at, Body: "{}" }));
  await assert.rejects(orders.claim(8), (error) => error instanceof FenceLost && error.message.includes("damaged"));
  await client.send(new DeleteObjectCommand(at));
  await assert.rejects(orders.claim(8), (error) => error instanceof FenceLost && error.message.includes("re-arm"));
});

test("a store that ignores conditions is refused", async () => {
  const endpoint = await client.config.endpoint?.();
  assert.ok(endpoint !== undefined);
  const careless = made(`${endpoint.protocol}//${endpoint.hostname}:${String(endpoint.port)}`);
  careless.middlewareStack.add(
    (next) => (args) => {
      const input: PutObjectCommandInput = { ...(args.input as PutObjectCommandInput) };
      delete input.IfMatch;
      delete input.IfNoneMatch;
      return next({ ...args, input });
    },
    { step: "initialize" },
  );
  await assert.rejects(
    Store.open(careless, "bucket", "fenced"),
    (error) => error instanceof OperatorNeeded && error.message.includes("ignores"),
  );
});
