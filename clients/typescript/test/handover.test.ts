import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import http from "node:http";
import { test, type TestContext } from "node:test";

import { Invalid, LockHeld, Unavailable, type Client } from "../src/index.js";
import { onBoth } from "./both.js";
import { connect, served, until } from "./servers.js";

const INDEX = new URL("../src/index.js", import.meta.url).href;
const FORM = "palisade-lease/1.";

function fields(text: string): Record<string, unknown> {
  assert.ok(text.startsWith(FORM));
  return JSON.parse(Buffer.from(text.slice(FORM.length), "base64url").toString()) as Record<string, unknown>;
}

async function isFree(client: Client, lock: string): Promise<boolean> {
  return (await client.show(lock)).holder === undefined;
}

onBoth("a lease that is handed over is held by the adopter alone", async ({ client, again }) => {
  const first = await client.acquire("orders", { ttlMs: 20_000, clientId: "me", metadata: "why" });
  let announced = false;
  void first.lost.then(() => {
    announced = true;
  });
  const text = first.export();
  const handedOver = { name: "LeaseLost", code: "handed_over", message: /it was handed over/ };
  assert.throws(() => {
    first.check();
  }, handedOver);
  assert.ok(!first.held && first.signal.aborted);
  await assert.rejects(first.release(), handedOver);
  await assert.rejects(first.releasePart("orders"), handedOver);
  assert.throws(() => first.export(), handedOver);
  // The end of a scope.
  await first[Symbol.asyncDispose]();
  assert.equal((await client.show("orders")).holder?.token, first.token);
  const second = await again().adopt(`${text}\n`);
  second.check();
  const named = ({ token, authority, lock, clientId, grantId }: typeof first): unknown => [
    token,
    authority,
    lock,
    clientId,
    grantId,
  ];
  assert.deepEqual(named(second), named(first));
  assert.ok(second.remainingMs > 15_000 && second.remainingMs < 20_000);
  assert.equal(await second.release(), "released");
  assert.ok(await isFree(client, "orders"));
  // A lease that is over is not adopted.
  await assert.rejects(client.adopt(text), { name: "LeaseLost", code: "not_held" });
  assert.throws(() => second.export(), { name: "LeaseLost", code: "not_held" });
  assert.ok(!announced);
});

onBoth("several locks are handed over without those that were given up", async ({ client, again }) => {
  const three = await client.acquire(["a", "b", "c"]);
  await three.releasePart("a");
  const other = again();
  const rest = await other.adopt(three.export());
  assert.deepEqual([rest.locks, rest.token], [["b", "c"], three.token]);
  await rest.release();
  assert.ok((await isFree(client, "b")) && (await isFree(client, "c")));
  // If one of several is over, the others are useless.
  const two = await client.acquire(["a", "b"]);
  const text = two.export();
  await client.breakLock("b", two.token, "the test");
  await assert.rejects(other.adopt(text), { name: "LeaseLost", code: "revoked", lock: "b" });
  await until(() => isFree(client, "a"));
});

onBoth("permits and readers are handed over", async ({ client, again }) => {
  const other = again();
  const permits = await other.adopt((await client.acquire("gpu", { permits: { count: 2, of: 3 } })).export());
  assert.deepEqual(permits.slotKeys, ["gpu~1", "gpu~2"]);
  await permits.release();
  await client.acquire("report", { shared: true });
  const reader = await other.adopt((await client.acquire("report", { update: true })).export());
  assert.ok(reader.update && reader.grantId !== reader.token);
  await assert.rejects(reader.upgrade({ waitMs: 0 }), LockHeld);
  await reader.release();
});

onBoth("a lease whose upgrade is under way is not handed over", async ({ client }) => {
  const beside = await client.acquire("report", { shared: true });
  const reader = await client.acquire("report", { update: true });
  const upgrade = reader.upgrade({ waitMs: 60_000 });
  await until(async () => (await client.show("report")).waiters === 1);
  assert.throws(() => reader.export(), { name: "Invalid", message: /an upgrade of "report" is under way/ });
  await beside.release();
  await (await upgrade).release();
});

/** Holds the lock in a scope, prints a text, and ends. */
async function exporter(url: string, exports: boolean): Promise<string> {
  const program = `
    import { Client } from ${JSON.stringify(INDEX)};
    const client = new Client({ urls: ${JSON.stringify(url)} });
    await client.withLock("orders", { ttlMs: 20_000 }, (lease) => {
      console.log(${exports ? "lease.export()" : '"kept"'});
    });
    await client.close();`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let printed = "";
  child.stdout.on("data", (part: Buffer) => (printed += part.toString()));
  const [code] = (await once(child, "close")) as [number];
  assert.equal(code, 0);
  return printed;
}

test("a lease of a process that ended is adopted", async (t) => {
  const { client, server } = await served(t);
  const lease = await client.adopt(await exporter(server.url, true));
  assert.equal(await client.tryAcquire("orders"), undefined);
  assert.equal(await lease.release(), "released");
  // A control: a scope that did not export releases its lock.
  await exporter(server.url, false);
  assert.ok(await isFree(client, "orders"));
});

type Told = Record<string, unknown>;

/** A server that answers as it is told: with a good answer that has these fields instead, or with another status. */
async function liar(t: TestContext): Promise<{ url: string; asked: string[]; say(lie: Told, status?: number): void }> {
  const asked: string[] = [];
  let lie: Told = {};
  let status = 200;
  const server = http.createServer((request, response) => {
    const verb = request.url?.split("/").at(-1) ?? "";
    asked.push(verb);
    const good = { resource_id: "orders", fencing_token: 7, authority: "a", valid_for_ms: 15_000 };
    const more = verb === "acquire" ? { lock_acquired: true, lock_token: "s3cret", waited_ms: 0 } : {};
    request.resume();
    const body = verb === "acquire" || status === 200 ? { ...good, ...more, ...(verb === "acquire" ? {} : lie) } : lie;
    response
      .writeHead(verb === "acquire" ? 200 : status, { "Palisade-Nonce": request.headers["palisade-nonce"] })
      .end(JSON.stringify(body));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const say = (told: Told, as = 200): void => {
    [lie, status] = [told, as];
  };
  return { url, asked, say };
}

// The clocks of two machines differ, so nothing that the exporter's clock said reaches the adopter.
test("an exported lease has no deadline, and counts from its first renewal that is acknowledged", async (t) => {
  const server = await liar(t);
  const client = connect(t, { urls: server.url, patienceMs: 1_000 });
  const text = (await client.acquire("orders", { ttlMs: 15_000, clientId: "me" })).export();
  assert.deepEqual(fields(text), {
    lock: "orders",
    authority: "a",
    fencing_token: 7,
    lock_token: "s3cret",
    ttl_ms: 15_000,
    client_id: "me",
  });
  // The server renewed it for one second only, long after.
  server.say({ valid_for_ms: 1_000 });
  const second = await client.adopt(text);
  assert.ok(second.remainingMs <= 1_000);
  // Without an acknowledged renewal nothing is held.
  for (const [lie, status] of [
    [{ fencing_token: 8 }, 200],
    [{ authority: "b" }, 200],
    [{ valid_for_ms: null }, 200],
    [{ error: { code: "unavailable", message: "away" } }, 503],
  ] as const) {
    server.say(lie, status);
    await assert.rejects(client.adopt(text), Unavailable);
  }
  // A control: with the deadline of the exporter an adopter would hold now.
  server.say({ error: { code: "expired", message: "over" } }, 410);
  await assert.rejects(client.adopt(text), { name: "LeaseLost", code: "expired" });
  assert.ok(!server.asked.includes("release"));
});

test("an adoption ends with its signal and with its client, and holds nothing", async (t) => {
  const server = await liar(t);
  const client = connect(t, { urls: server.url, patienceMs: 60_000 });
  const text = (await client.acquire("orders")).export();
  server.say({ error: { code: "unavailable", message: "away" } }, 503);
  const cancel = new AbortController();
  const adoption = client.adopt(text, { signal: cancel.signal });
  cancel.abort();
  await assert.rejects(adoption, { name: "AbortError" });
  const other = client.adopt(text);
  await Promise.all([assert.rejects(other, Invalid), client.close()]);
});

test("a text that is no lease is refused, and not printed", async (t) => {
  const client = connect(t, { urls: "http://127.0.0.1:1", patienceMs: 1 });
  const good = {
    lock: "orders",
    authority: "a",
    fencing_token: 7,
    lock_token: "s3cret",
    ttl_ms: 15_000,
    client_id: "me",
  };
  const text = (changes: Told): string =>
    FORM + Buffer.from(JSON.stringify({ ...good, ...changes })).toString("base64url");
  const wrong = ["", "s3cret", "palisade-lease/2.e30", `${FORM}*`, `${FORM}bnVsbA`, `${FORM}e30`];
  for (const [name, values] of Object.entries({
    lock: ["", "ä", null, 7],
    authority: ["", 7],
    fencing_token: [0, -1, 2 ** 53, "7"],
    lock_token: ["", null],
    ttl_ms: [0, 99, 86_400_001, "15000", null],
    client_id: ["", null],
    parts: [[], ["a", "b"], ["orders", "orders"], "orders"],
    mode: ["shared", "upgrade"],
    slots: [[0], [2, 1], [1]],
    metadata: ["x".repeat(257), 7],
  })) {
    wrong.push(...values.map((value) => text({ [name]: value })));
  }
  for (const each of wrong) {
    await assert.rejects(client.adopt(each), (error) => {
      assert.ok(error instanceof Invalid, `${each}: ${String(error)}`);
      assert.ok(!error.message.includes("s3cret"));
      return true;
    });
  }
  await assert.rejects(client.adopt(7 as unknown as string), TypeError);
  await assert.rejects(client.adopt(text({ of_a_later_version: 1 })), Unavailable);
});

onBoth("a try asks once, unless a wait is given", async ({ client }) => {
  const lease = await client.tryAcquire("orders");
  assert.ok(lease !== undefined);
  const before = performance.now();
  assert.equal(await client.tryAcquire("orders"), undefined);
  assert.equal(await client.tryAcquire(["a", "orders"]), undefined);
  // real time: two waits of 30 s, which an acquire has, would take a minute.
  assert.ok(performance.now() - before < 30_000);
  const patient = client.tryAcquire("orders", { waitMs: 60_000 });
  await until(async () => (await client.show("orders")).waiters === 1);
  await lease.release();
  await (await patient)?.release();
});
