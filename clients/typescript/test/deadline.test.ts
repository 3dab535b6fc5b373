/** The deadline, by the vectors of all clients: vectors/deadline.json. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { deadline } from "../src/hold.js";
import { Fault, readGrant, Reply } from "../src/reply.js";
import { ROOT } from "./servers.js";

type Vector = Readonly<
  Record<"lease_duration_ms" | "waited_ms" | "valid_for_ms" | "drift_ppm" | "margin_ms", number> &
    Record<"sent_ns" | "deadline_ns", bigint>
>;

/** Nanoseconds do not fit into a number. */
function vectors(): Vector[] {
  const text = readFileSync(join(ROOT, "vectors/deadline.json"), "utf8");
  const exact = text.replace(/("(?:sent|deadline)_ns": )(\d+)/g, '$1"$2"');
  return JSON.parse(exact, (name, value: unknown) =>
    name.endsWith("_ns") ? BigInt(value as string) : value,
  ) as Vector[];
}

/** As from the answer to an acquire, in nanoseconds after it was sent. */
function lasts(vector: Vector, field: "valid_for_ms" | "lease_duration_ms" = "valid_for_ms"): bigint {
  const answer = {
    fencing_token: 1,
    lock_token: "k",
    authority: "a",
    valid_for_ms: vector[field],
    waited_ms: vector.waited_ms,
  };
  // The client's clock has whole milliseconds.
  const grant = readGrant(Number(vector.sent_ns / 1_000_000n), new Reply(200, answer), {
    shared: false,
    permits: undefined,
  });
  assert.ok(!(grant instanceof Fault));
  return BigInt(deadline(grant.t0, grant.validForMs, vector.margin_ms) - grant.t0) * 1_000_000n;
}

function early(vector: Vector, field?: "lease_duration_ms"): bigint {
  return vector.deadline_ns - vector.sent_ns - lasts(vector, field);
}

test("every vector has this deadline", () => {
  for (const vector of vectors()) {
    assert.equal(vector.drift_ppm, 10_000);
    // A client may stop earlier by its rounding.
    assert.ok(early(vector) >= 0n && early(vector) < 1_000_000n, `${early(vector)} ns: ${String(vector.sent_ns)}`);
  }
});

test("another rule is found: a client that takes the lease's length for the time that is left", () => {
  assert.ok(vectors().filter((vector) => early(vector, "lease_duration_ms") < 0n).length >= 9);
});
