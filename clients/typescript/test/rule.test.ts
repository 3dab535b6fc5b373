/** The decision of the fence is that of all vectors, and the stored form that of the golden file. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Invalid, LeaseLost, UnknownOutcome } from "../src/index.js";
import { Rejected, Stale } from "../src/fence/index.js";
import { presented } from "../src/fence/holder.js";
import { decode, encode, MAX_IDS, NO_MANIFEST, tookEffect } from "../src/fence/manifest.js";
import { decide, EMPTY } from "../src/fence/rule.js";
import { ROOT } from "./servers.js";
import { vectors, type Case } from "./vectors.js";

function differs({ record, pass, operation, rule, verdict, told, next }: Case): boolean {
  try {
    const admitted = decide(record, pass, operation, rule);
    assert.equal(admitted.repeat ? "repeat" : "admit", verdict);
    assert.deepEqual(admitted.record, next);
  } catch (error) {
    if (!(error instanceof Rejected)) {
      return true;
    }
    const { highest, last, bound, authority, lock } = error;
    try {
      assert.deepEqual([error.code, { highest, last, bound, authority, lock }], [verdict, told]);
      assert.equal(error instanceof Stale, verdict === "stale");
    } catch {
      return true;
    }
  }
  return false;
}

test("every vector is decided alike", () => {
  const cases = vectors();
  assert.ok(cases.length > 1_000);
  assert.deepEqual(cases.filter(differs), []);
});

test("a stale token is named beside the newest", () => {
  const late = () => decide({ ...EMPTY, token: 8 }, presented(7), { kind: "write" });
  assert.throws(late, /token 7 is stale: 7 < 8; a newer holder has claimed this resource: give up/);
});

test("a wrong vector is found", () => {
  const stale = vectors().find(({ verdict }) => verdict === "stale");
  const written = vectors().find(({ verdict, operation }) => verdict === "admit" && operation.sequence !== undefined);
  assert.ok(stale !== undefined && written !== undefined);
  assert.ok(differs({ ...stale, told: { ...stale.told, highest: 1 } }));
  assert.ok(differs({ ...written, next: written.record }));
  assert.ok(differs({ ...written, verdict: "repeat" }));
});

test("the manifest in a bucket is that of the golden file", () => {
  const golden = readFileSync(join(ROOT, "vectors/formats/object-store.fence.json"), "utf8").trimEnd();
  const manifest = decode(golden);
  assert.deepEqual([manifest.record.token, manifest.record.digest, manifest.keys.size], [34, 2n ** 64n - 1n, 2]);
  assert.equal(encode(manifest), golden);
  for (const [found, instead] of [
    ['"format":1', '"format":2'],
    ['"ids"', '"idz"'],
    ['"token":34', '"token":34.5'],
    ['"digest":-1', '"digest":-1.5'],
    ['"fence":{', '"later":1,"fence":{'],
  ] as const) {
    assert.ok(golden.includes(found));
    assert.throws(() => decode(golden.replace(found, instead)), instead);
  }
  for (const broken of ["", "{", "[]", "null", "{}"]) {
    assert.throws(() => decode(broken), broken);
  }
});

test("keys are in the order of their bytes, also those that look like numbers", () => {
  const keys = new Map(["/é", "/a", "/10", "/9", "/Z"].map((key) => [key, []]));
  const text = encode({ ...NO_MANIFEST, keys });
  assert.match(text, /"keys":\{"\/10":\[\],"\/9":\[\],"\/Z":\[\],"\/a":\[\],"\/é":\[\]\}/);
});

test("whether a put took effect is told by its id, or not at all", () => {
  const ids = Array.from({ length: MAX_IDS }, (_, number) => String(number));
  const base = { ...NO_MANIFEST, ids: ["0"] };
  assert.ok(tookEffect({ ...NO_MANIFEST, ids: ["0", "mine"] }, "mine", base));
  assert.ok(!tookEffect({ ...NO_MANIFEST, ids: ["0", "other"] }, "mine", base));
  assert.ok(!tookEffect({ ...NO_MANIFEST, ids: ["other"] }, "mine", undefined));
  assert.throws(() => tookEffect({ ...NO_MANIFEST, ids }, "mine", { ...NO_MANIFEST, ids: ["gone"] }), UnknownOutcome);
});

test("what is no token is refused, and a lost lease presents nothing", () => {
  for (const token of [0, -1, 2 ** 53, 1.5, NaN]) {
    assert.throws(() => presented(token), Invalid);
    assert.throws(() => presented({ token }), Invalid);
  }
  // A text is no holder at all; inside one it is no token.
  assert.throws(() => presented("1" as unknown as number), TypeError);
  assert.throws(() => presented({ token: "1" as unknown as number }), Invalid);
  const loss = new LeaseLost("expired", "orders", 7);
  const lost = {
    token: 7,
    check: () => {
      throw loss;
    },
  };
  assert.throws(() => presented(lost), loss);
});
