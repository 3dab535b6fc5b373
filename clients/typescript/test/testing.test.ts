/** The levers of the double. That it answers as the program does is shown by the tests that run on both. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test, type TestContext } from "node:test";

import { LeaseLost, LockHeld, Unavailable, UnknownOutcome, type Client, type ClientOptions } from "../src/index.js";
import { MemoryServer } from "../src/testing/index.js";

function made(t: TestContext, options: ClientOptions = {}): { server: MemoryServer; client: Client } {
  const server = new MemoryServer();
  const client = server.client(options);
  t.after(() => client.close());
  return { server, client };
}

test("a lease is ended by the test", async (t) => {
  for (const [code, end] of [
    ["expired", "expire"],
    ["revoked", "revoke"],
  ] as const) {
    const { server, client } = made(t);
    const lease = await client.acquire("orders", { ttlMs: 200 });
    server[end]("orders");
    assert.equal((await lease.lost).code, code);
    assert.equal(server.holder("orders"), undefined);
  }
});

test("another client has the lock", async (t) => {
  const { server, client } = made(t);
  const held = server.hold("orders", "somebody");
  await assert.rejects(client.acquire("orders", { waitMs: 0 }), (error) => {
    assert.ok(error instanceof LockHeld);
    assert.deepEqual([error.holder?.clientId, error.holder?.token], ["somebody", held.token]);
    return true;
  });
  assert.throws(() => server.hold("orders", "a third"), /"orders" is not free: held by "somebody"/);
  const waiting = client.acquire("orders");
  held.release();
  held.release();
  const lease = await waiting;
  assert.deepEqual(server.tokens("orders"), [held.token, lease.token]);
  const holder = server.holder("orders");
  assert.deepEqual([holder?.clientId, holder?.token], [lease.clientId, lease.token]);
  // The test's own is ended by it, too.
  const other = server.hold("other");
  server.revoke("other");
  assert.equal(server.holder("other"), undefined);
  other.release();
  assert.equal(other.token, lease.token + 1);
});

test("a server that is down", async (t) => {
  const { server, client } = made(t, { patienceMs: 1_000 });
  const lease = await client.acquire("orders");
  server.down();
  await assert.rejects(client.tryAcquire("other"), Unavailable);
  lease.check();
  server.up();
  assert.equal(await lease.release(), "released");
});

// A control for tests with `stall`: the deadline ends the lease, and nothing else does.
test("a server that does not answer", async (t) => {
  const { server, client } = made(t, { patienceMs: 1_000 });
  const short = await client.acquire("orders", { ttlMs: 500 });
  const long = await client.acquire("long", { ttlMs: 3_600_000 });
  server.stall();
  const loss = await short.lost;
  assert.ok(loss instanceof LeaseLost && loss.code === "expired");
  long.check();
  await assert.rejects(client.tryAcquire("other"), UnknownOutcome);
  server.up();
  assert.equal(await long.release(), "released");
});

test("tokens rise by one over all locks, and the queue is in the order of arrival", async (t) => {
  const { server, client } = made(t);
  const first = await client.acquire("a");
  const second = await client.acquire("b");
  const order: string[] = [];
  const waiting = ["one", "two", "three"].map(async (clientId) => {
    const lease = await client.acquire("a", { clientId });
    order.push(clientId);
    await lease.release();
    return lease.token;
  });
  await first.release();
  assert.deepEqual([first.token, second.token, ...(await Promise.all(waiting))], [1, 2, 3, 4, 5]);
  assert.deepEqual(order, ["one", "two", "three"]);
  assert.deepEqual(server.tokens("a"), [1, 3, 4, 5]);
  assert.deepEqual(server.tokens("never"), []);
});

test("what the environment says about servers has no effect", async (t) => {
  process.env["PALISADE_URL"] = "no address";
  process.env["PALISADE_TOKEN"] = "no token";
  t.after(() => {
    delete process.env["PALISADE_URL"];
    delete process.env["PALISADE_TOKEN"];
  });
  const { client } = made(t, { urls: "http://192.0.2.1:1" });
  await (await client.acquire("orders")).release();
  assert.equal((await client.status()).version, "memory");
});

test("a program whose clients are closed ends, also with a watch and a stalled server", async () => {
  const index = new URL("../src/testing/index.js", import.meta.url).href;
  const program = `
    import { MemoryServer } from ${JSON.stringify(index)};
    const server = new MemoryServer();
    const client = server.client({ patienceMs: 1_000 });
    await client.acquire("orders", { ttlMs: 3_600_000 });
    const watching = client.watch("").next().catch((error) => error.name);
    const waiting = client.acquire("orders").catch((error) => error.name);
    // real time: both are under way by then, or not.
    setTimeout(async () => {
      server.stall();
      await client.close();
      console.log(await watching, await waiting);
    }, 20);`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let printed = "";
  child.stdout.on("data", (part: Buffer) => (printed += part.toString()));
  assert.deepEqual(await once(child, "close"), [0, null]);
  assert.equal(printed, "Invalid Invalid\n");
});
