/**
 * Arguments that people pass: each public function, given each of these values in each of its places,
 * works, or its error names what to pass. A function without a row here fails the test.
 */
import assert from "node:assert/strict";
import { generateKeyPairSync } from "node:crypto";
import { test } from "node:test";
import { inspect } from "node:util";

import * as dynamodb from "../src/fence/dynamodb.js";
import * as http from "../src/fence/http.js";
import * as fences from "../src/fence/index.js";
import * as ioredis from "../src/fence/ioredis.js";
import * as mysql from "../src/fence/mysql.js";
import * as pg from "../src/fence/pg.js";
import * as s3 from "../src/fence/s3.js";
import * as sequencer from "../src/fence/sequencer.js";
import * as sqlite from "../src/fence/sqlite.js";
import * as palisade from "../src/index.js";
import * as testing from "../src/testing/index.js";
import { connect, serve } from "./servers.js";

const ODD = {
  undefined: undefined,
  null: null,
  number: 5,
  zero: 0,
  negative: -1,
  fraction: 1.5,
  nan: NaN,
  bigint: 7n,
  true: true,
  text: "x",
  empty: "",
  object: { a: 1 },
  list: ["x"],
  promise: Promise.resolve({ token: 7 }),
  date: new Date(0),
  map: new Map(),
  symbol: Symbol("s"),
  bytes: Buffer.from("x"),
  work: () => 1,
};
type Kind = keyof typeof ODD;

/** A place of a function, the values that are right there, and a call. */
type Row = readonly [place: string, right: readonly Kind[], call: (odd: never) => unknown];

const NUMBERS: readonly Kind[] = ["number", "zero"];
const TEXTS: readonly Kind[] = ["text", "empty"];
const VALUES: readonly Kind[] = [...TEXTS, ...NUMBERS, "negative", "fraction", "nan"];
const ABSENT: Kind = "undefined";
const RULE: readonly Kind[] = [ABSENT];
const HOLDER: readonly Kind[] = ["number"];
const WRITES: readonly Kind[] = [ABSENT];

/**
 * The call is refused or works. Any other failure, such as a lock that nobody holds, is not the caller's
 * mistake.
 */
async function check([place, right, call]: Row): Promise<void> {
  for (const [kind, odd] of Object.entries(ODD)) {
    const at = `${place}, given ${kind}`;
    let refused: unknown;
    try {
      await call(odd as never);
    } catch (error) {
      refused = error;
    }
    const isNamed =
      (refused instanceof TypeError ||
        refused instanceof palisade.Invalid ||
        refused instanceof sequencer.BadSequencer) &&
      refused.message.startsWith("palisade: ") &&
      refused.message.length > "palisade: ".length;
    if (right.includes(kind as Kind)) {
      assert.ok(!(refused instanceof TypeError) && !isNamed, `${at}: ${inspect(refused)}`);
    } else {
      assert.ok(isNamed, `${at}: ${refused === undefined ? "it was taken" : inspect(refused)}`);
    }
  }
}

/** For a place whose default is no mistake. */
function orNull(odd: unknown): never {
  return (odd ?? null) as never;
}

/** Ends a stream that begins. */
async function begun(stream: AsyncGenerator, signal?: AbortController): Promise<void> {
  const first = stream.next();
  signal?.abort();
  await first.catch((error: unknown) => {
    if (!(error instanceof Error && error.name === "AbortError")) {
      throw error;
    }
  });
}

const table = { send: () => Promise.resolve({}) } as never;
const key = { seat: { S: "1" } };
const redis = { call: () => Promise.resolve("1"), callBuffer: () => Promise.resolve(null) };
const orders = new ioredis.Resource("a");
const connection = { query: () => Promise.resolve([[]]), beginTransaction: () => Promise.resolve() };
const done = (): void => undefined;
const mysqlPool = { getConnection: () => Promise.resolve({ ...connection, release: done, destroy: done }) } as never;
const client = {
  query: (command: string) => Promise.resolve({ rows: [{ repeated: false, result: null }], command }),
  on: done,
  removeListener: done,
  release: done,
};
const pgPool = { totalCount: 1, connect: () => Promise.resolve(client) } as never;
const work = (): number => 1;
/** A bucket that takes every put. */
const objects = new Map<string, Uint8Array>();
const bucket = {
  send: ({
    constructor: { name },
    input,
  }: {
    constructor: { name: string };
    input: { Key: string; Body: Uint8Array };
  }) => {
    if (name === "PutObjectCommand") {
      objects.set(input.Key, input.Body);
    }
    const found = objects.get(input.Key);
    return name === "GetObjectCommand" && found === undefined
      ? Promise.reject(Object.assign(new Error("no such key"), { name: "NoSuchKey" }))
      : Promise.resolve({ ETag: "e", Contents: [], Body: { transformToByteArray: () => Promise.resolve(found) } });
  },
} as never;
const store = (): Promise<s3.Store> => s3.Store.open(bucket, "b", "r", { probe: false });
const resource = async (): Promise<s3.Resource> => (await store()).resource("a");
const { x } = generateKeyPairSync("ed25519").publicKey.export({ format: "jwk" });
const keys = new sequencer.Keys(JSON.stringify({ issuer: "a", keys: [{ kty: "OKP", crv: "Ed25519", kid: "k", x }] }));

const row = { get: () => ({ token: 7, written: 0 }), run: done };
const file = { exec: done, prepare: () => row, isTransaction: true };
const memory = new testing.MemoryServer();

const FENCES: readonly Row[] = [
  ["dynamodb.Item client", [], (odd) => new dynamodb.Item(odd, "t", key)],
  ["dynamodb.Item table", TEXTS, (odd) => new dynamodb.Item(table, odd, key)],
  ["dynamodb.Item key", ["object"], (odd) => new dynamodb.Item(table, "t", odd)],
  ["dynamodb.Item rule", RULE, (odd) => new dynamodb.Item(table, "t", key, odd)],
  ["dynamodb.Item.claim holder", HOLDER, (odd) => new dynamodb.Item(table, "t", key).claim(odd)],
  ["dynamodb.Item.read holder", HOLDER, (odd) => new dynamodb.Item(table, "t", key).read(odd)],
  ["dynamodb.Item.write holder", [...HOLDER, "null"], (odd) => new dynamodb.Item(table, "t", key).write(odd, {})],
  ["dynamodb.Item.write change", ["object"], (odd) => new dynamodb.Item(table, "t", key).write(7, odd)],
  ["dynamodb.Item.write changed", ["object"], (odd) => new dynamodb.Item(table, "t", key).write(7, () => orNull(odd))],
  ["dynamodb.Item.write options", WRITES, (odd) => new dynamodb.Item(table, "t", key).write(7, {}, odd)],
  [
    "dynamodb.Item.write sequence",
    [ABSENT, ...NUMBERS],
    (odd) => new dynamodb.Item(table, "t", key).write(7, {}, { sequence: odd }),
  ],
  [
    "dynamodb.Item.write digest",
    [ABSENT, "bigint"],
    (odd) => new dynamodb.Item(table, "t", key).write(7, {}, { sequence: 1, digest: odd }),
  ],
  ["http.numbered sequence", NUMBERS, (odd) => http.numbered(odd)],
  ["http.headers holder", HOLDER, (odd) => http.headers(odd)],
  ["http.headers authority", [ABSENT, "null", ...TEXTS], (odd) => http.headers({ token: 7, authority: odd })],
  ["http.headers lock", [ABSENT, "null", ...TEXTS], (odd) => http.headers({ token: 7, lock: odd })],
  ["http.fencedFetch holder", HOLDER, (odd) => http.fencedFetch(odd, work as never)("http://a")],
  ["http.fencedFetch next", ["work"], (odd) => http.fencedFetch(7, orNull(odd))("http://a")],
  ["http.throwIfRejected answer", [], (odd) => http.throwIfRejected(odd)],
  ["ioredis.Resource name", ["text"], (odd) => new ioredis.Resource(odd)],
  ["ioredis.Resource.claim connection", [], (odd) => orders.claim(odd, 7)],
  ["ioredis.Resource.claim holder", HOLDER, (odd) => orders.claim(redis, odd)],
  ["ioredis.Resource.get key", [], (odd) => orders.get(redis, 7, odd)],
  ["ioredis.Resource.getBuffer key", [], (odd) => orders.getBuffer(redis, 7, odd)],
  ["ioredis.Resource.hget field", [...VALUES, "bytes"], (odd) => orders.hget(redis, 7, "{a}", odd)],
  ["ioredis.Resource.set value", [...VALUES, "bytes"], (odd) => orders.set(redis, 7, "{a}", odd)],
  ["ioredis.Resource.set options", WRITES, (odd) => orders.set(redis, 7, "{a}", "v", odd)],
  ["ioredis.Resource.append value", [...VALUES, "bytes"], (odd) => orders.append(redis, 7, "{a}", odd)],
  ["ioredis.Resource.incrby by", ["number", "zero", "negative"], (odd) => orders.incrby(redis, 7, "{a}", odd)],
  ["ioredis.Resource.hset value", [...VALUES, "bytes"], (odd) => orders.hset(redis, 7, "{a}", "f", odd)],
  ["ioredis.Resource.del sequence", [ABSENT, ...NUMBERS], (odd) => orders.del(redis, 7, "{a}", { sequence: odd })],
  ["ioredis.probe connection", [], (odd) => ioredis.probe(odd)],
  ["mysql.transact pool", [], (odd) => mysql.transact(odd, "a", 7, work)],
  ["mysql.transact resource", ["text"], (odd) => mysql.transact(mysqlPool, odd, 7, work)],
  ["mysql.transact holder", HOLDER, (odd) => mysql.transact(mysqlPool, "a", odd, work)],
  ["mysql.transact work", ["work"], (odd) => mysql.transact(mysqlPool, "a", 7, odd)],
  ["mysql.transact rule", RULE, (odd) => mysql.transact(mysqlPool, "a", 7, work, odd)],
  ["mysql.transactAll holders", ["object"], (odd) => mysql.transactAll(mysqlPool, odd, work)],
  ["mysql.claim connection", [], (odd) => mysql.claim(odd, "a", 7)],
  ["mysql.claim resource", ["text"], (odd) => mysql.claim(connection as never, odd, 7)],
  ["mysql.claimAll holders", ["object"], (odd) => mysql.claimAll(connection as never, odd)],
  ["pg.transact pool", [], (odd) => pg.transact(odd, "a", 7, work)],
  ["pg.transact resource", ["text"], (odd) => pg.transact(pgPool, odd, 7, work)],
  ["pg.transact holder", HOLDER, (odd) => pg.transact(pgPool, "a", odd, work)],
  ["pg.transact work", ["work"], (odd) => pg.transact(pgPool, "a", 7, odd)],
  ["pg.transact rule", RULE, (odd) => pg.transact(pgPool, "a", 7, work, odd)],
  ["pg.transactAll holders", ["object"], (odd) => pg.transactAll(pgPool, odd, work)],
  ["pg.claim connection", [], (odd) => pg.claim(odd, "a", 7)],
  ["pg.claim resource", ["text"], (odd) => pg.claim(client as never, odd, 7)],
  ["pg.claimAll holders", ["object"], (odd) => pg.claimAll(client as never, odd)],
  ["pg.check holder", HOLDER, (odd) => pg.check(client as never, "a", odd)],
  ["pg.check rule", RULE, (odd) => pg.check(client as never, "a", 7, odd)],
  ["pg.write number", WRITES, (odd) => pg.write(client as never, "a", 7, odd)],
  ["pg.write sequence", NUMBERS, (odd) => pg.write(client as never, "a", 7, { sequence: odd })],
  ["pg.write digest", [ABSENT, "bigint"], (odd) => pg.write(client as never, "a", 7, { sequence: 1, digest: odd })],
  ["pg.record sequence", NUMBERS, (odd) => pg.record(client as never, "a", 7, odd, new Uint8Array())],
  ["pg.record result", ["bytes"], (odd) => pg.record(client as never, "a", 7, 1, odd)],
  ["s3.Store.open client", [], (odd) => s3.Store.open(odd, "b", "r", { probe: false })],
  ["s3.Store.open bucket", TEXTS, (odd) => s3.Store.open(bucket, odd, "r", { probe: false })],
  ["s3.Store.open root", TEXTS, (odd) => s3.Store.open(bucket, "b", odd, { probe: false })],
  ["s3.Store.open options", WRITES, (odd) => s3.Store.open(bucket, "b", "r", odd)],
  ["s3.Store.open rule", [ABSENT, "null"], (odd) => s3.Store.open(bucket, "b", "r", { probe: false, rule: odd })],
  ["s3.Store.resource name", ["text"], async (odd) => (await store()).resource(odd)],
  ["s3.Resource.claim holder", HOLDER, async (odd) => (await resource()).claim(odd)],
  ["s3.Resource.read key", [], async (odd) => (await resource()).read(7, odd)],
  ["s3.Resource.put content", [...TEXTS, "bytes"], async (odd) => (await resource()).put(7, "/a", odd)],
  ["s3.Resource.put options", WRITES, async (odd) => (await resource()).put(7, "/a", "x", odd)],
  ["s3.Resource.append content", [...TEXTS, "bytes"], async (odd) => (await resource()).append(7, "/a", odd)],
  ["s3.Resource.delete key", [], async (odd) => (await resource()).delete(7, odd)],
  ["sequencer.Keys text", [], (odd) => new sequencer.Keys(odd)],
  ["sequencer.Keys.check text", [], (odd) => keys.check(odd, "a", { writes: true })],
  ["sequencer.Keys.check resource", [], (odd) => keys.check("", odd, { writes: true })],
  ["sequencer.Keys.check options", [], (odd) => keys.check("", "a", odd)],
  ["sequencer.Keys.verify text", [], (odd) => keys.verify(odd)],
  ["fences.rejection error", Object.keys(ODD) as Kind[], (odd) => fences.rejection(odd)],
  ["pg.claimStatement resource", ["text"], (odd) => pg.claimStatement(odd, 7)],
  ["pg.claimStatement holder", HOLDER, (odd) => pg.claimStatement("a", odd)],
  ["pg.claimStatement rule", RULE, (odd) => pg.claimStatement("a", 7, odd)],
  ["mysql.claimStatement resource", ["text"], (odd) => mysql.claimStatement(odd, 7)],
  ["mysql.claimStatement holder", HOLDER, (odd) => mysql.claimStatement("a", odd)],
  ["mysql.claimStatement rule", RULE, (odd) => mysql.claimStatement("a", 7, odd)],
  ["mysql.rejection error", Object.keys(ODD) as Kind[], (odd) => mysql.rejection(odd)],
  ["pg.rejection error", Object.keys(ODD) as Kind[], (odd) => pg.rejection(odd)],
  ["sqlite.transact connection", [], (odd) => sqlite.transact(odd, "a", 7, work)],
  ["sqlite.transact resource", ["text"], (odd) => sqlite.transact(file, odd, 7, work)],
  ["sqlite.transact holder", HOLDER, (odd) => sqlite.transact(file, "a", odd, work)],
  ["sqlite.transact work", ["work"], (odd) => sqlite.transact(file, "a", 7, odd)],
  ["sqlite.transact rule", RULE, (odd) => sqlite.transact(file, "a", 7, work, odd)],
  ["sqlite.transactAll holders", ["object"], (odd) => sqlite.transactAll(file, odd, work)],
  [
    "sqlite.claim connection",
    [],
    (odd) => {
      sqlite.claim(odd, "a", 7);
    },
  ],
  [
    "sqlite.claim resource",
    ["text"],
    (odd) => {
      sqlite.claim(file, odd, 7);
    },
  ],
  [
    "sqlite.claimAll holders",
    ["object"],
    (odd) => {
      sqlite.claimAll(file, odd);
    },
  ],
  [
    "sqlite.check holder",
    HOLDER,
    (odd) => {
      sqlite.check(file, "a", odd);
    },
  ],
  [
    "sqlite.check rule",
    RULE,
    (odd) => {
      sqlite.check(file, "a", 7, odd);
    },
  ],
  ["sqlite.write number", WRITES, (odd) => sqlite.write(file, "a", 7, odd)],
  ["sqlite.write sequence", NUMBERS, (odd) => sqlite.write(file, "a", 7, { sequence: odd })],
  ["sqlite.write digest", [ABSENT, "bigint"], (odd) => sqlite.write(file, "a", 7, { sequence: 1, digest: odd })],
  [
    "sqlite.record sequence",
    NUMBERS,
    (odd) => {
      sqlite.record(file, "a", 7, odd, new Uint8Array());
    },
  ],
  [
    "sqlite.record result",
    ["bytes"],
    (odd) => {
      sqlite.record(file, "a", 7, 1, odd);
    },
  ],
  ["sqlite.why connection", [], (odd) => sqlite.why(odd, "a", undefined)],
  ["sqlite.why resource", ["text"], (odd) => sqlite.why(file, odd, undefined)],
  ["sqlite.why error", Object.keys(ODD) as Kind[], (odd) => sqlite.why(file, "a", odd)],
  ["testing.MemoryServer.client options", [ABSENT], (odd) => memory.client(odd)],
  [
    "testing.MemoryServer.expire lock",
    ["text"],
    (odd) => {
      memory.expire(odd);
    },
  ],
  [
    "testing.MemoryServer.revoke lock",
    ["text"],
    (odd) => {
      memory.revoke(odd);
    },
  ],
  [
    "testing.MemoryServer.revoke reason",
    [ABSENT, ...TEXTS],
    (odd) => {
      memory.revoke("x", odd);
    },
  ],
  [
    "testing.MemoryServer.hold lock",
    ["text"],
    (odd) => {
      memory.hold(odd).release();
    },
  ],
  [
    "testing.MemoryServer.hold clientId",
    [ABSENT, "text"],
    (odd) => {
      memory.hold("y", odd).release();
    },
  ],
  ["testing.MemoryServer.tokens lock", ["text"], (odd) => memory.tokens(odd)],
  ["testing.MemoryServer.holder lock", ["text"], (odd) => memory.holder(odd)],
];

function ofTheClient(client: palisade.Client, lease: palisade.Lease, reader: palisade.Lease): readonly Row[] {
  const made = (options: object): unknown => new palisade.Client({ urls: "http://127.0.0.1:1", ...options });
  // Refused, or denied at once.
  const held = (options: object): unknown => client.tryAcquire("held", { waitMs: 0, ...options });
  const optional = (...right: Kind[]): Kind[] => [ABSENT, ...right];
  return [
    ["palisade.Client options", optional(), (odd) => new palisade.Client(odd)],
    ["palisade.Client urls", optional("null"), (odd) => made({ urls: odd })],
    ["palisade.Client token", optional("text"), (odd) => made({ urls: "https://a", token: odd })],
    ["palisade.Client tokenFile", optional(), (odd) => made({ tokenFile: odd })],
    ["palisade.Client tls", optional(), (odd) => made({ tls: odd })],
    ["palisade.Client patienceMs", optional("null", "number"), (odd) => made({ patienceMs: odd })],
    ["palisade.Client marginMs", optional("null", "number", "zero"), (odd) => made({ marginMs: odd })],
    ["palisade.Client reportRefusals", optional("true", "null"), (odd) => made({ reportRefusals: odd })],
    ["palisade.Client notices", optional("true", "null"), (odd) => made({ notices: odd })],
    ["palisade.Client.acquire lock", ["text", "list"], async (odd) => (await client.acquire(odd)).release()],
    ["palisade.Client.tryAcquire options", optional(), (odd) => client.tryAcquire("held", odd)],
    ["palisade.Client.acquire ttlMs", optional("null"), (odd) => held({ ttlMs: odd })],
    ["palisade.Client.acquire waitMs", optional("null", "number", "zero"), (odd) => held({ ttlMs: 1000, waitMs: odd })],
    ["palisade.Client.acquire shared", optional("true"), (odd) => held({ shared: odd })],
    ["palisade.Client.acquire update", optional("true"), (odd) => held({ update: odd })],
    ["palisade.Client.acquire permits", optional(), (odd) => held({ permits: odd })],
    ["palisade.Client.acquire lockDelayMs", optional("null", "number", "zero"), (odd) => held({ lockDelayMs: odd })],
    ["palisade.Client.acquire atLeastForMs", optional("null", "number", "zero"), (odd) => held({ atLeastForMs: odd })],
    ["palisade.Client.acquire clientId", optional("text"), (odd) => held({ clientId: odd })],
    ["palisade.Client.acquire metadata", optional(...TEXTS), (odd) => held({ metadata: odd })],
    ["palisade.Client.acquire signal", optional(), (odd) => held({ signal: odd })],
    ["palisade.Client.withLock options", [], (odd) => client.withLock("w", orNull(odd), work)],
    ["palisade.Client.withLock work", ["work"], (odd) => client.withLock("w", {}, odd)],
    ["palisade.Client.show lock", ["text"], (odd) => client.show(odd)],
    ["palisade.Client.list prefix", optional(...TEXTS), (odd) => begun(client.list(odd))],
    ["palisade.Client.watch prefix", optional(...TEXTS), (odd) => watched(client, odd, {})],
    ["palisade.Client.watch options", [], (odd) => client.watch("", orNull(odd))],
    ["palisade.Client.watch after", optional("number", "zero"), (odd) => watched(client, "", { after: odd })],
    ["palisade.Client.watch signal", optional(), (odd) => void client.watch("", { signal: odd }).return()],
    ["palisade.Client.adopt text", [], (odd) => client.adopt(odd)],
    ["palisade.Client.adopt options", [], (odd) => client.adopt("x", orNull(odd))],
    ["palisade.Client.leader name", ["text"], (odd) => client.leader(odd)],
    ["palisade.Client.observe name", ["text"], (odd) => observed(client, odd)],
    ["palisade.Client.observe options", [], (odd) => client.observe("x", orNull(odd))],
    ["palisade.Client.observe signal", optional(), (odd) => void client.observe("x", { signal: odd }).return()],
    ["palisade.Lease.proclaim value", TEXTS, (odd) => lease.proclaim(odd)],
    ["palisade.Client.breakLock lock", ["text"], (odd) => client.breakLock(odd, 5)],
    ["palisade.Client.breakLock token", ["number"], (odd) => client.breakLock("x", odd)],
    ["palisade.Client.breakLock reason", optional(...TEXTS), (odd) => client.breakLock("x", 5, odd)],
    ["palisade.Client.resize lock", ["text"], (odd) => client.resize(odd, 5)],
    ["palisade.Client.resize permits", ["number"], (odd) => client.resize("x", odd)],
    [
      "palisade.Lease.listen callback",
      ["work"],
      (odd) => {
        lease.listen(odd);
      },
    ],
    ["palisade.Lease.part name", [], (odd) => lease.part(odd)],
    ["palisade.Lease.releasePart name", [], (odd) => lease.releasePart(odd)],
    ["palisade.Lease.sequencer name", optional(), (odd) => lease.sequencer(odd)],
    ["palisade.Lease.downgrade options", optional(), (odd) => reader.downgrade(odd)],
    ["palisade.Lease.downgrade signal", optional(), (odd) => reader.downgrade({ signal: odd })],
    ["palisade.Lease.upgrade options", [], (odd) => reader.upgrade(orNull(odd))],
    ["palisade.Lease.upgrade signal", [], (odd) => reader.upgrade({ signal: orNull(odd) })],
    ["palisade.slotKey lock", TEXTS, (odd) => palisade.slotKey(odd, 1)],
    ["palisade.slotKey slot", ["number"], (odd) => palisade.slotKey("a", odd)],
  ];
}

async function watched(client: palisade.Client, prefix: string, options: palisade.WatchOptions): Promise<void> {
  const leaving = new AbortController();
  await begun(client.watch(prefix, { ...options, signal: leaving.signal }), leaving);
}

async function observed(client: palisade.Client, name: string): Promise<void> {
  const leaving = new AbortController();
  await begun(client.observe(name, { signal: leaving.signal }), leaving);
}

test("each function of a fence, given each value, works or names what to pass", async () => {
  for (const row of FENCES) {
    await check(row);
  }
});

test("each function of the client, given each value, works or names what to pass", async (t) => {
  const server = await serve(t);
  const client = connect(t, { urls: server.url });
  const lease = await client.acquire("held");
  const reader = await client.acquire("read", { update: true });
  const rows = ofTheClient(client, lease, reader);
  for (const row of rows) {
    await check(row);
  }
  lease.check();
  reader.check();
  await Promise.all([lease.release(), reader.release()]);
  // A control: each public function with an argument has a row.
  const places = [...rows, ...FENCES].map(([place]) => place);
  const missing = everyFunction().filter((name) => !places.some((place) => place.startsWith(`${name} `)));
  assert.deepEqual(missing, []);
});

/** Checked by its callers, or not for users. */
const INTERNAL = [
  "dynamodb.Item.record",
  "palisade.Client.status",
  "palisade.Client.close",
  "palisade.Lease",
  "palisade.Lease.check",
  "palisade.Lease.export",
  "palisade.Lease.leave",
  "palisade.Lease.release",
  "palisade.Lease.toString",
  "palisade.Lease.wanted",
  "s3.Resource",
  "s3.Store",
  "s3.Store.get",
  "s3.Store.isEmpty",
  "s3.Store.put",
  "sequencer.checkCovers",
  "testing.Held",
  "testing.Held.release",
  "testing.MemoryServer",
  "testing.MemoryServer.down",
  "testing.MemoryServer.stall",
  "testing.MemoryServer.up",
];

function everyFunction(): string[] {
  const names: string[] = [];
  for (const [module, exported] of Object.entries({
    dynamodb,
    fences,
    http,
    ioredis,
    mysql,
    pg,
    palisade,
    s3,
    sequencer,
    sqlite,
    testing,
  })) {
    for (const [name, value] of Object.entries(exported) as [string, unknown][]) {
      if (typeof value !== "function" || value.prototype instanceof Error) {
        continue;
      }
      names.push(`${module}.${name}`);
      const prototype = Object.entries(Object.getOwnPropertyDescriptors((value.prototype ?? {}) as object));
      const methods = prototype.filter(
        ([method, { value }]) => method !== "constructor" && typeof value === "function",
      );
      names.push(...methods.map(([method]) => `${module}.${name}.${method}`));
    }
  }
  return names.filter((name) => !INTERNAL.includes(name));
}
