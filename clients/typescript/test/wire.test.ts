/** Tests that need no server: the deadline, the answers, the table of codes. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "../src/client.js";
import { earliest, latest, sleepUntil } from "../src/clock.js";
import { Endpoints } from "../src/endpoints.js";
import { Invalid, LeaseLost, LockHeld, NotAcquired, OperatorNeeded, PalisadeError } from "../src/errors.js";
import { deadline, Hold, RELEASED } from "../src/hold.js";
import { Fault, parsed, readGrant, Reply, type Granted } from "../src/reply.js";
import { Block } from "../src/watch.js";
import { lockPath } from "../src/wish.js";

const HOUR = 3_600_000;

test("the clock goes on, and knows how far it may be behind", async () => {
  const [before, after] = [earliest(), latest()];
  assert.ok(after >= before && after - before < 10_000);
  const end = latest() + 30;
  await sleepUntil(end);
  assert.ok(latest() >= end);
});

test("the deadline of the protocol's example, rounded down", () => {
  assert.equal(deadline(100_000, 10_000, 0), 109_801);
  assert.equal(deadline(0, 101, 0), 99);
  assert.equal(deadline(0, 10_000, 1_000), 8_801);
  assert.equal(deadline(7, 1_000, HOUR), 7);
});

test("a hold goes forward only, and is not revived", () => {
  const ends: string[] = [];
  const hold = new Hold(latest() + HOUR, (code) => ends.push(code));
  const later = latest() + 2 * HOUR;
  hold.renewed(later);
  hold.renewed(latest() + HOUR);
  assert.equal(hold.deadline, later);
  hold.end("revoked");
  hold.end("expired");
  hold.renewed(latest() + 3 * HOUR);
  assert.deepEqual([hold.holds(), hold.reason, hold.remaining(), ends], [false, "revoked", 0, ["revoked"]]);
  const over = new Hold(latest(), () => undefined);
  over.renewed(latest() + HOUR);
  assert.deepEqual([over.holds(), over.reason], [false, "expired"]);
  const released = new Hold(latest() + HOUR, () => undefined);
  released.end(RELEASED);
  assert.equal(released.reason, "not_held");
});

test("a loss is announced though nobody asks", async () => {
  assert.equal(await new Promise((resolve) => new Hold(latest() + 20, resolve)), "expired");
});

test("answers that are no grant", () => {
  const good = '"lock_token": "k", "authority": "a", "valid_for_ms": 5, "waited_ms": 0';
  const read = (text: string, shared = false): unknown =>
    readGrant(0, new Reply(200, parsed(text) ?? {}), { shared, permits: undefined });
  assert.ok(!(read(`{"fencing_token": 9007199254740991, ${good}}`) instanceof Fault));
  for (const text of [
    `{${good}}`,
    ...["0", "-1", "1.5", '"1"', "9007199254740992"].map((token) => `{"fencing_token": ${token}, ${good}}`),
    '{"fencing_token": 1, "lock_token": "k", "authority": "a", "waited_ms": 0}',
    '{"fencing_token": 1, "authority": "a", "valid_for_ms": 5, "waited_ms": 0}',
    `{"fencing_token": 1, ${good.replace("5", "-5")}}`,
  ]) {
    const fault = read(text);
    assert.ok(fault instanceof Fault && fault.unknown, text);
  }
  // Nobody could renew or release it.
  const reader = `"fencing_token": 34, ${good}`;
  assert.ok(read(`{${reader}}`, true) instanceof Fault);
  const { token, number } = read(`{"grant_id": 35, ${reader}}`, true) as Granted;
  assert.deepEqual([token, number], [34, 35]);
  for (const [status, text] of [
    [200, "[]"],
    [204, "{}"],
    [307, "{}"],
    [500, "<html>"],
    [404, "null"],
  ] as const) {
    const fault = Reply.read(status, text);
    assert.ok(fault instanceof Fault && fault.unknown, text);
  }
});

test("the table of codes, by what the client does", () => {
  type Kind = abstract new (...args: never[]) => PalisadeError;
  const rows: [number, string, "again" | "unknown" | Kind][] = [
    [503, "not_leader", "again"],
    [503, "unavailable", "again"],
    [408, "request_timeout", "again"],
    [504, "unknown_outcome", "unknown"],
    [500, "internal", "unknown"],
    [502, "of_a_later_server", "unknown"],
    [409, "held", LockHeld],
    [429, "queue_full", NotAcquired],
    [429, "too_many_locks", NotAcquired],
    [410, "expired", NotAcquired],
    [412, "stale", NotAcquired],
    [409, "abandoned", NotAcquired],
    [507, "tokens_exhausted", OperatorNeeded],
    [400, "invalid", Invalid],
    [409, "refused", Invalid],
    [403, "forbidden", Invalid],
    [418, "of_a_later_server", Invalid],
  ];
  for (const [status, code, does] of rows) {
    const reply = new Reply(status, { error: { code, message: "m" } });
    if (typeof does === "string") {
      assert.equal(reply.fault?.unknown, does === "unknown", code);
    } else {
      assert.equal(reply.fault, undefined, code);
      assert.ok(reply.error() instanceof does, code);
      assert.equal(reply.error().code, code);
    }
  }
  assert.equal(new Reply(503, { error: { code: "unavailable", message: 7 } }).code, "unavailable");
});

test("an error says its name and its kind", () => {
  const loss = new LeaseLost("expired", "orders", 7);
  assert.deepEqual([loss.name, loss.kind, loss.code, loss.token], ["LeaseLost", "lost", "expired", 7]);
  assert.match(loss.message, /"orders" \(fencing token 7\) is lost: no renewal was acknowledged in time/);
});

test("a leader is followed only where it is safe", () => {
  const not = (leader: string): Reply => new Reply(503, { error: { code: "not_leader", leader } });
  const endpoints = new Endpoints(["https://a:1", "https://b:1"]);
  assert.equal(endpoints.answered("https://a:1", not("http://c:1")), false);
  assert.equal(endpoints.current(), "https://b:1");
  assert.equal(endpoints.answered("https://b:1", not("https://c:1")), true);
  assert.equal(endpoints.current(), "https://c:1");
  endpoints.failed("https://c:1");
  assert.equal(endpoints.current(), "https://a:1");
});

test("a leader without TLS does not get the token", () => {
  const named = new Reply(503, { error: { code: "not_leader", leader: "http://a:1" } });
  for (const secret of [false, true]) {
    const endpoints = new Endpoints("http://127.0.0.1:1", secret);
    assert.equal(endpoints.answered("http://127.0.0.1:1", named), !secret);
    assert.equal(endpoints.current(), secret ? "http://127.0.0.1:1" : "http://a:1");
  }
});

test("a bearer token is for TLS and this machine only", () => {
  for (const kept of ["http://localhost:1", "http://127.9.9.9:1", "http://[::1]:1", "https://a"]) {
    assert.ok(new Endpoints(kept, true));
  }
  assert.throws(
    () => new Client({ urls: ["https://a", "http://10.0.0.1:1"], token: "pal_given" }),
    (error) => {
      assert.ok(error instanceof Invalid);
      assert.match(error.message, /not sent to http:\/\/10\.0\.0\.1:1 without TLS/);
      return !error.message.includes("pal_");
    },
  );
});

test("two servers that name each other are followed five times", () => {
  const endpoints = new Endpoints("http://a:1");
  let follows = 0;
  for (;;) {
    const at = endpoints.current();
    const leader = at === "http://a:1" ? "http://b:1" : "http://a:1";
    if (!endpoints.answered(at, new Reply(503, { error: { code: "not_leader", leader } }))) {
      break;
    }
    follows += 1;
    assert.ok(follows <= 5);
  }
  assert.equal(follows, 5);
});

test("addresses that are none are refused, without their passwords", () => {
  for (const bad of ["a:1", "ftp://a", "http://a/x", "http://a?x", "http://u:s3cret@a", "", "http://", "http://a,"]) {
    assert.throws(
      () => new Endpoints(bad),
      (error) => error instanceof Invalid && !error.message.includes("s3cret"),
      bad,
    );
  }
  assert.throws(() => new Endpoints([]), Invalid);
  assert.equal(new Endpoints("http://[::1]:7420/").current(), "http://[::1]:7420");
});

test("names are percent-encoded byte by byte", () => {
  assert.equal(lockPath("a/b c!'()*~._-%", "/renew"), "/v1/locks/a%2Fb%20c%21%27%28%29%2A~._-%25/renew");
});

test("events are read line by line", () => {
  const block = new Block();
  for (const line of [":", "event: missed", "id: 9", "unknown", 'data: {"missed":', "data: 5}"]) {
    block.take(line);
  }
  assert.deepEqual(block.event(block.revision), { kind: "missed", revision: 9, missed: 5 });
  for (const time of [undefined, "2026-05-23T10:00:00.000Z"]) {
    const change = new Block();
    const data = JSON.stringify({ resource_id: "orders", client_id: "a", fencing_token: 7, time });
    for (const line of ["event: expired", "id: 9", `data: ${data}`]) {
      change.take(line);
    }
    const said = { kind: "expired", revision: 9, lock: "orders", clientId: "a", token: 7, time };
    assert.deepEqual(change.event(change.revision), { ...said, reason: undefined, grantId: undefined });
  }
  const later = new Block();
  for (const line of ["event: of_a_later_server", "id: 10", 'data: {"fencing_token": 1}']) {
    later.take(line);
  }
  assert.equal(later.event(later.revision), undefined);
  assert.equal(later.revision, 10);
});
