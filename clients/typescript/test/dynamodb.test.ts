/** The fence of an item in DynamoDB, against moto. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";

import { CreateTableCommand, DynamoDBClient, PutItemCommand } from "@aws-sdk/client-dynamodb";

import { Item, type Attributes } from "../src/fence/dynamodb.js";
import { FenceLost, Rejected, Stale } from "../src/fence/index.js";
import { decodeFence, encodeFence } from "../src/fence/manifest.js";
import { EMPTY } from "../src/fence/rule.js";
import { Invalid, LeaseLost } from "../src/index.js";
import { ROOT, s3, unique, wholeFile } from "./servers.js";
import { vectors } from "./vectors.js";

let endpoint = "";
let client: DynamoDBClient;
let lastPut: Promise<unknown> = Promise.resolve();

const scope = wholeFile();

before(async () => {
  endpoint = await s3(scope);
  client = made(3);
  const create = new CreateTableCommand({
    TableName: "seats",
    KeySchema: [{ AttributeName: "seat", KeyType: "HASH" }],
    AttributeDefinitions: [{ AttributeName: "seat", AttributeType: "S" }],
    BillingMode: "PAY_PER_REQUEST",
  });
  await client.send(create);
});

function made(maxAttempts: number): DynamoDBClient {
  const credentials = { accessKeyId: "test", secretAccessKey: "test" };
  const made = new DynamoDBClient({ endpoint, region: "us-east-1", credentials, maxAttempts });
  // DynamoDB checks a condition and puts in one step, moto in two.
  made.middlewareStack.add(
    (next, context) => (args) => {
      if (!("commandName" in context) || context["commandName"] !== "PutItemCommand") {
        return next(args);
      }
      const turn = lastPut.then(() => next(args));
      lastPut = turn.catch(() => undefined);
      return turn;
    },
    { step: "initialize" },
  );
  return made;
}

const key = (): Attributes => ({ seat: { S: unique("seat") } });
const plusOne = ({ n }: Attributes): Attributes => ({ n: { N: String(Number(n?.N ?? 0) + 1) } });

test("a newer holder shuts the older one out", async () => {
  const seat = new Item(client, "seats", key());
  await seat.claim(33);
  assert.deepEqual(await seat.read(33), {});
  await seat.write(33, { passenger: { S: "Alice" } });
  await seat.claim(34);
  assert.deepEqual(await seat.read(34), { passenger: { S: "Alice" } });
  for (const late of [() => seat.write(33, {}), () => seat.read(33), () => seat.claim(33)]) {
    await assert.rejects(late(), (error) => error instanceof Stale && error.highest === 34);
  }
  assert.deepEqual(await seat.read(34), { passenger: { S: "Alice" } });
  const lost = {
    token: 35,
    check: () => {
      throw new LeaseLost("expired", "seats", 35);
    },
  };
  await assert.rejects(seat.claim(lost), LeaseLost);
  await seat.claim(34);
});

test("repeats and denials", async () => {
  const seat = new Item(client, "seats", key());
  const holder = { token: 7, authority: "authority", lock: "lock" };
  const numbered = { sequence: 1, digest: 2n ** 64n - 1n };
  assert.equal(await seat.write(holder, { n: { N: "1" } }, numbered), false);
  assert.equal(await seat.write(holder, { n: { N: "2" } }, numbered), true);
  assert.deepEqual(await seat.read(holder), { n: { N: "1" } });
  const refused = async (code: string, work: Promise<unknown>): Promise<void> => {
    await assert.rejects(work, (error) => error instanceof Rejected && error.code === code);
  };
  await refused("sequence_reused", seat.write(holder, {}, { sequence: 1, digest: 5n }));
  await refused(
    "missing",
    seat.write(holder, () => undefined),
  );
  await refused("tokenless", seat.write(null, {}));
  assert.throws(() => new Item(client, "seats", {}), Invalid);
});

test("the attribute of the fence is not the caller's", async () => {
  // As a key it would be written by each put: every claim would make another item, and none would see another one.
  const [own, lower] = [key(), { palisade_fence: { S: "{}" } }];
  for (const fenced of [lower, { ...own, ...lower }]) {
    assert.throws(() => new Item(client, "seats", fenced), { name: "Invalid", message: /another key/ });
  }
  const seat = new Item(client, "seats", own);
  await seat.write(9, { n: { N: "1" } });
  for (const change of [lower, (before: Attributes) => ({ ...before, ...lower })]) {
    await assert.rejects(seat.write(9, change), { name: "Invalid", message: /attribute of the fence/ });
  }
  const other = Object.fromEntries(Object.keys(own).map((name) => [name, { S: "another" }]));
  await assert.rejects(seat.write(9, other), { name: "Invalid", message: /belongs to the key/ });
  assert.deepEqual(await seat.read(9), { n: { N: "1" } });
  // The control: the key as it is.
  await seat.write(9, { n: { N: "2" }, ...own });
  assert.deepEqual(await seat.read(9), { n: { N: "2" } });
});

test("racing writers lose nothing", async () => {
  const seat = new Item(client, "seats", key());
  await seat.claim(7);
  const writer = async (): Promise<void> => {
    for (let number = 0; number < 5; number += 1) {
      await seat.write(7, plusOne);
    }
  };
  await Promise.all([writer(), writer(), writer()]);
  assert.deepEqual(await seat.read(7), { n: { N: "15" } });
});

test("a put whose answer is lost is recognised", async () => {
  const careless = made(1);
  let lose = 1;
  careless.middlewareStack.add(
    (next, context) => async (args) => {
      const answer = await next(args);
      if ("commandName" in context && context["commandName"] === "PutItemCommand" && lose > 0) {
        lose -= 1;
        throw new Error("the answer is lost");
      }
      return answer;
    },
    { step: "initialize" },
  );
  const seat = new Item(careless, "seats", key());
  await seat.write(7, plusOne);
  assert.deepEqual([lose, await seat.read(7)], [0, { n: { N: "1" } }]);
});

test("data without its fence is refused", async () => {
  const at = key();
  const seat = new Item(client, "seats", at);
  const put = (more: Attributes): Promise<unknown> =>
    client.send(new PutItemCommand({ TableName: "seats", Item: { ...at, ...more } }));
  await put({ passenger: { S: "Bob" } });
  await assert.rejects(seat.claim(8), (error) => error instanceof FenceLost && error.message.includes("re-arm"));
  for (const damaged of [{ S: "{}" }, { N: "1" }]) {
    await put({ palisade_fence: damaged });
    await assert.rejects(seat.claim(8), (error) => error instanceof FenceLost && error.message.includes("damaged"));
  }
});

test("the golden file is read and written as it is", () => {
  const golden = readFileSync(join(ROOT, "vectors/formats/dynamodb.palisade_fence.json"), "utf8").trimEnd();
  assert.equal(encodeFence(decodeFence(golden)), golden);
});

test("an item decides as the vectors say", async () => {
  // rule.test.ts tests all of them; this test is about the stored items, so it has one of each kind.
  const kinds = new Map(
    vectors().map((one) => [`${one.operation.kind} ${one.verdict} ${String(one.rule.strict)}`, one]),
  );
  const decided = [...kinds.values()].map(async (one) => {
    const at = key();
    const before = encodeFence({ record: one.record, ids: [] });
    if (before !== encodeFence({ record: EMPTY, ids: [] })) {
      const item = { ...at, palisade_fence: { S: before } };
      await client.send(new PutItemCommand({ TableName: "seats", Item: item }));
    }
    const item = new Item(client, "seats", at, one.rule);
    let verdict = "admit";
    try {
      if (one.operation.kind === "write") {
        const { sequence, digest } = one.operation;
        verdict = (await item.write(one.pass ?? null, {}, { sequence, digest })) ? "repeat" : "admit";
      } else {
        await item[one.operation.kind](one.pass ?? 0);
      }
    } catch (error) {
      assert.ok(error instanceof Rejected, String(error));
      verdict = error.code;
    }
    const stored = encodeFence({ record: await item.record(), ids: [] });
    const right = verdict === one.verdict && stored === encodeFence({ record: one.next, ids: [] });
    return right ? [] : [`${verdict}: ${one.text}`];
  });
  assert.deepEqual((await Promise.all(decided)).flat(), []);
});
