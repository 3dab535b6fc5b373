/** Mode update: the API, and the fence's treatment of the tokens. */
import assert from "node:assert/strict";

import { Stale } from "../src/fence/index.js";
import { presented } from "../src/fence/holder.js";
import { decide, EMPTY } from "../src/fence/rule.js";
import { Invalid, LeaseLost, LockHeld } from "../src/index.js";
import { onBoth } from "./both.js";
import { until } from "./servers.js";

onBoth("a reader becomes the writer, and a reader again", async ({ client }) => {
  const reader = await client.acquire("report", { update: true, clientId: "me", metadata: "why" });
  assert.deepEqual([reader.shared, reader.update], [true, true]);
  const writer = await reader.upgrade({ waitMs: 0 });
  assert.deepEqual([writer.shared, writer.update, writer.clientId], [false, false, "me"]);
  assert.ok(writer.token > reader.token && !reader.held && reader.signal.aborted);
  assert.throws(() => {
    reader.check();
  }, /released/);
  await assert.rejects(reader.upgrade(), LeaseLost);
  const again = await writer.downgrade();
  assert.deepEqual([again.shared, again.update], [true, false]);
  assert.ok(again.token > writer.token);
  assert.equal(await reader.release(), "over");
  assert.equal(await again.release(), "released");
  assert.equal((await client.show("report")).holder, undefined);
});

onBoth("what readers send late is refused after the writer claimed", async ({ client }) => {
  const reader = await client.acquire("report", { update: true });
  const { token, authority } = reader;
  const late = { token, authority, lock: "report" };
  const claimed = decide(EMPTY, late, { kind: "claim" }).record;
  const writer = await reader.upgrade({ waitMs: 0 });
  // A control: until the writer claims, nothing refuses it.
  decide(claimed, late, { kind: "write" });
  const raised = decide(claimed, presented(writer), { kind: "claim" }).record;
  assert.throws(() => decide(raised, late, { kind: "write" }), Stale);
  assert.throws(() => presented(reader), LeaseLost);
  await writer.release();
});

onBoth("a denial names a reader that was in the way, and the reader goes on", async ({ client }) => {
  const slow = await client.acquire("report", { shared: true, clientId: "slow" });
  const reader = await client.acquire("report", { update: true });
  await assert.rejects(reader.upgrade({ waitMs: 50 }), (error) => {
    assert.ok(error instanceof LockHeld);
    assert.equal(error.holder?.clientId, "slow");
    return true;
  });
  reader.check();
  await slow.release();
  await (await reader.upgrade()).release();
});

onBoth("a wrong upgrade is named and changes nothing", async ({ client }) => {
  for (const [options, says] of [
    [{ shared: true, update: true }, /shared or for update/],
    [{ update: true, permits: { count: 1, of: 2 } }, /shared lock or for permits/],
  ] as const) {
    await assert.rejects(
      client.acquire("report", options),
      (error) => error instanceof Invalid && says.test(error.message),
    );
  }
  await assert.rejects(client.acquire(["a", "b"], { update: true }), /leave out shared, update/);
  const plain = await client.acquire("report", { shared: true });
  await assert.rejects(plain.upgrade(), /update: true/);
  plain.check();
  const reader = await client.acquire("report", { update: true });
  await assert.rejects(reader.upgrade({ waitMs: -1 }), /0 to /);
  // The release ends it.
  const ended = assert.rejects(reader.upgrade(), LeaseLost);
  await until(async () => (await client.show("report")).waiters === 1);
  await assert.rejects(reader.upgrade(), /under way already/);
  reader.check();
  await reader.release();
  await ended;
  await plain.release();
  assert.equal((await client.show("report")).holder, undefined);
});

onBoth("a signal ends the upgrade, and the reader goes on", async ({ client }) => {
  const beside = await client.acquire("report", { shared: true });
  const reader = await client.acquire("report", { update: true });
  const cancel = new AbortController();
  const waiting = reader.upgrade({ signal: cancel.signal });
  await until(async () => (await client.show("report")).waiters === 1);
  cancel.abort(new Error("no longer wanted"));
  await assert.rejects(waiting, /no longer wanted/);
  await until(async () => (await client.show("report")).waiters === 0);
  reader.check();
  assert.equal(await reader.release(), "released");
  await beside.release();
});

onBoth("a reader that is revoked ends its upgrade with the loss", async ({ client }) => {
  const beside = await client.acquire("report", { shared: true });
  const reader = await client.acquire("report", { update: true });
  const revoked = (error: unknown): boolean => error instanceof LeaseLost && error.code === "revoked";
  const ended = assert.rejects(reader.upgrade({ waitMs: 60_000 }), revoked);
  await until(async () => (await client.show("report")).waiters === 1);
  await client.breakLock("report", reader.grantId, "the test");
  await ended;
  assert.equal((await reader.lost).code, "revoked");
  await beside.release();
});
