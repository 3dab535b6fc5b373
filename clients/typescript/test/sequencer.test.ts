/** Signed tokens: every vector is decided alike, and a lease's sequencer is believed with the keys of its own server. */
import assert from "node:assert/strict";
import crypto from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { join } from "node:path";
import { test } from "node:test";

import { BadSequencer, Keys, MAX_BYTES, type BadSequencerCode, type Sequencer } from "../src/fence/sequencer.js";
import { Invalid, LeaseLost } from "../src/index.js";
import { ROOT, served, type Running } from "./servers.js";

interface Case {
  readonly name: string;
  readonly sequencer: string;
  readonly resource: string;
  readonly writes: boolean;
  readonly verdict: string;
  readonly claims?: Readonly<Record<string, unknown>>;
}

const { jwks, cases } = JSON.parse(readFileSync(join(ROOT, "vectors/sequencers.json"), "utf8")) as {
  jwks: { keys: Record<string, unknown>[] };
  cases: Case[];
};
const KEYS = new Keys(JSON.stringify(jwks));

function answer(keys: Keys, { sequencer, resource, writes }: Case): unknown {
  try {
    return keys.check(sequencer, resource, { writes });
  } catch (error) {
    return error instanceof BadSequencer ? error.code : error;
  }
}

function expected({ verdict, claims }: Case): unknown {
  if (claims === undefined) {
    return verdict;
  }
  const { iss, lock, mode, token, slots = [], sub } = claims;
  return { authority: iss, lock, mode, token, slots, principal: sub };
}

function differing(): string[] {
  const differs = (one: Case): boolean => {
    try {
      assert.deepEqual(answer(KEYS, one), expected(one));
      return false;
    } catch {
      return true;
    }
  };
  return cases.filter(differs).map(({ name }) => name);
}

function refuses(call: () => unknown, code: BadSequencerCode, says: RegExp): void {
  assert.throws(call, (error) => {
    assert.ok(error instanceof BadSequencer);
    assert.equal(error.code, code);
    assert.match(error.message, says);
    return true;
  });
}

async function keysOf({ url }: Running): Promise<Keys> {
  return new Keys(await (await fetch(`${url}/.well-known/jwks.json`)).text());
}

test("every vector is decided alike", () => {
  assert.ok(cases.length > 50);
  assert.deepEqual(differing(), []);
});

test("a verifier that believes every signature is found", (t) => {
  const { mock } = t.mock.method(crypto, "verify", () => true);
  syncBuiltinESMExports();
  const found = differing();
  mock.restore();
  syncBuiltinESMExports();
  assert.ok(found.includes("forged: another payload under the signature"), found.join());
  assert.deepEqual(differing(), []);
});

/** Signs a payload as an authority does. */
const { publicKey, privateKey } = crypto.generateKeyPairSync("ed25519");
const OWN = new Keys(
  JSON.stringify({ issuer: "a", keys: [{ ...publicKey.export({ format: "jwk" }), kid: "k" }] }, undefined, 2),
);
function signed(payload: string | Buffer): string {
  const part = (content: string | Buffer): string => Buffer.from(content).toString("base64url");
  const text = `${part('{"alg":"EdDSA","kid":"k","typ":"palisade-sequencer"}')}.${part(payload)}`;
  return `${text}.${part(crypto.sign(null, Buffer.from(text), privateKey))}`;
}

test("a payload is taken as the other verifiers take it", () => {
  const payload = (members: string): string => `{"iss":"a","lock":"l","mode":"exclusive",${members}}`;
  const plain: Sequencer = { authority: "a", lock: "l", mode: "exclusive", token: 34, slots: [], principal: undefined };
  for (const [members, principal] of [
    ['"token":34', undefined],
    [' "token" : 34 , "sub" : null ', undefined],
    ['"token":34,"slots":[],"sub":""', ""],
    ['"token":34,"sub":"1.5 : {\\"sub\\", \\\\"', '1.5 : {"sub", \\'],
    ['"\\u0074oken":34,"sub":"ü"', "ü"],
  ] as const) {
    assert.deepEqual(OWN.verify(signed(payload(members))), { ...plain, principal }, members);
  }
  for (const members of [
    '"token":34,"\\u0074oken":34',
    '"token":34.0',
    '"token":3.4e1',
    '"token":9007199254740991.1',
    '"token":-34',
    '"token":34,"slots":null',
    '"token":34,"slots":{}',
    '"token":34,"sub":7',
    '"token":34,"sub":{"a":1,"a":1}',
    '"token":34,"__proto__":1',
    '"token":null',
    "",
  ]) {
    refuses(() => OWN.verify(signed(payload(members))), "bad_sequencer", /malformed: its (payload|token)/);
  }
  const permits = '{"iss":"a","lock":"l","mode":"permits","token":1,"slots":';
  assert.deepEqual(OWN.verify(signed(`${permits}[1,4294967295]}`)).slots, [1, 4_294_967_295]);
  for (const slots of ["[4294967296]", "[-1]", '["1"]', "[[1]]", "[null]"]) {
    refuses(() => OWN.verify(signed(`${permits}${slots}}`)), "bad_sequencer", /its (slots|payload)/);
  }
  const notUtf8 = Buffer.from(payload('"token":34,"sub":"\xff"'), "latin1");
  for (const other of [` ${payload('"token":34')}`, "[]", notUtf8]) {
    refuses(() => OWN.verify(signed(other)), "bad_sequencer", /its payload/);
  }
});

test("what is no sequencer is refused, and says why", () => {
  const right = cases[0]?.sequencer ?? "";
  for (const text of [
    `${right.slice(0, -2)}\n${right.slice(-2)}`,
    `${right}=`,
    `${right}.AA`,
    `ü${right}`,
    "..",
    right.slice(1),
  ]) {
    refuses(() => KEYS.verify(text), "bad_sequencer", /malformed: (it must have three parts|its header)/);
  }
  const deep = Buffer.from(`{"a":${"[".repeat(2_995)}`).toString("base64url");
  refuses(() => KEYS.verify(`${deep}.e30.AAAA`), "bad_sequencer", /its header/);
  refuses(() => KEYS.verify("a".repeat(MAX_BYTES + 1)), "bad_sequencer", /longer than 4096 bytes/);
});

test("what is no set of keys is refused", () => {
  const [key] = jwks.keys;
  const set = (...keys: unknown[]): string => JSON.stringify({ issuer: "a", keys });
  for (const [text, says] of [
    ["", /not a set/],
    ["[]", /not a set/],
    [set(1), /not a set/],
    [`{"issuer":"b",${set(key).slice(1)}`, /not a set/],
    [JSON.stringify({ keys: [key] }), /issuer is undefined/],
    [JSON.stringify({ issuer: "a\n", keys: [key] }), /issuer/],
    [set(), /no key for Ed25519/],
    [set({ ...key, crv: "Ed448" }), /no key for Ed25519/],
    [set(key, key), /two keys are called "k1"/],
    [set({ ...key, x: String(key?.["x"]).slice(0, -2) }), /32 bytes/],
    [set({ ...key, kid: null }), /no kid/],
  ] as const) {
    assert.throws(
      () => new Keys(text),
      (error) =>
        error instanceof Invalid && says.test(error.message) && error.message.includes("/.well-known/jwks.json"),
      text,
    );
  }
  // As RFC 7517 asks, unknown members are left out.
  assert.equal(new Keys(` ${set({ kty: "EC" }, { ...key, weight: 0.5 })}\n`).issuer, "a");
});

test("a lease's sequencer is believed with the keys of its own server", async (t) => {
  const { client, server } = await served(t);
  const keys = await keysOf(server);
  const lease = await client.acquire("orders");
  const { token, authority } = lease;
  const sequencer = keys.check(await lease.sequencer(), "orders", { writes: true });
  assert.deepEqual(
    [sequencer.token, sequencer.authority, sequencer.lock, sequencer.mode, sequencer.slots],
    [token, authority, "orders", "exclusive", []],
  );
  const elsewhere = await served(t);
  const foreign = await (await elsewhere.client.acquire("orders")).sequencer();
  assert.equal((await keysOf(elsewhere.server)).check(foreign, "orders", { writes: true }).token, 1);
  refuses(() => keys.verify(foreign), "bad_sequencer", /names the key/);
});

test("permits, readers and several locks have sequencers", async (t) => {
  const { client, server } = await served(t);
  const keys = await keysOf(server);
  const permits = await client.acquire("gpu", { permits: { count: 2, of: 3 } });
  const text = await permits.sequencer();
  for (const slot of permits.slotKeys) {
    assert.deepEqual(keys.check(text, slot, { writes: true }).slots, permits.slots);
  }
  refuses(() => keys.check(text, "gpu~3", { writes: true }), "wrong_lock", /gpu~1, gpu~2/);
  for (const reader of [
    await client.acquire("report", { shared: true }),
    await client.acquire("report", { shared: true }),
  ]) {
    const presented = await reader.sequencer();
    assert.equal(keys.check(presented, "report", { writes: false }).token, reader.token);
    refuses(() => keys.check(presented, "report", { writes: true }), "bad_sequencer", /reader/);
  }
  const both = await client.acquire(["a", "b"]);
  for (const name of both.locks) {
    assert.equal(keys.check(await both.sequencer(name), name, { writes: true }).token, both.token);
  }
  refuses(() => keys.check(text, "a", { writes: true }), "wrong_lock", /this resource is a/);
  for (const [name, says] of [
    [undefined, /name the lock: one of "a", "b"/],
    ["c", /"c" is not a lock of this lease: it has "a", "b"/],
  ] as const) {
    await assert.rejects(both.sequencer(name), (error) => error instanceof Invalid && says.test(error.message));
  }
  await both.releasePart("b");
  await assert.rejects(both.sequencer("b"), (error) => error instanceof LeaseLost && error.lock === "b");
  both.check();
});

test("a sequencer of a lease that is over is not asked for twice", async (t) => {
  const { client, server } = await served(t);
  const lease = await client.acquire("orders", { ttlMs: 60_000 });
  await client.breakLock("orders", lease.token, "the test");
  const isLost = (error: unknown): boolean =>
    error instanceof LeaseLost && error.code === "revoked" && error.lock === "orders";
  await assert.rejects(lease.sequencer(), isLost);
  assert.ok(!lease.held && lease.signal.aborted && isLost(await lease.lost));
  server.process.kill();
  await once(server.process, "exit");
  await assert.rejects(lease.sequencer(), isLost);
});
