import assert from "node:assert/strict";
import { once } from "node:events";
import { renameSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { test } from "node:test";
import { inspect } from "node:util";

import { Client, Invalid, LeaseLost, LockHeld, Unavailable } from "../src/index.js";
import { onBoth } from "./both.js";
import { connect, folder, served, until } from "./servers.js";

onBoth("a lock is acquired, shown, denied to others and released", async ({ client }) => {
  const lease = await client.acquire("a b/c", { ttlMs: 10_000, metadata: "nightly", clientId: "worker" });
  assert.ok(lease.token >= 1 && lease.authority.length === 32 && lease.held);
  assert.ok(lease.remainingMs > 5_000 && lease.remainingMs < 10_000);
  const { holder } = await client.show("a b/c");
  assert.deepEqual([holder?.clientId, holder?.token, holder?.metadata], ["worker", lease.token, "nightly"]);
  // Also in the same process: each acquire is a client of its own.
  await assert.rejects(client.acquire("a b/c", { waitMs: 0 }), (error) => {
    assert.ok(error instanceof LockHeld);
    assert.equal(error.holder?.clientId, "worker");
    assert.ok((error.retryAfterMs ?? 0) > 0);
    return true;
  });
  assert.equal(await client.tryAcquire("a b/c"), undefined);
  assert.equal(await lease.release(), "released");
  assert.equal(await lease.release(), "already_released");
  assert.throws(() => {
    lease.check();
  }, LeaseLost);
  assert.ok(lease.signal.aborted);
  const next = await client.acquire("a b/c");
  assert.ok(next.token > lease.token);
  await next.release();
});

onBoth("a waiting acquire is granted when the lock is free", async ({ client }) => {
  const first = await client.acquire("orders");
  const second = client.acquire("orders", { waitMs: 60_000 });
  await until(async () => (await client.show("orders")).waiters === 1);
  await first.release();
  await (await second).release();
});

onBoth("a loss aborts the signal, resolves the promise and says why", async ({ client }) => {
  const lease = await client.acquire("orders", { ttlMs: 1_000 });
  await client.breakLock("orders", lease.token, "the test");
  const loss = await lease.lost;
  assert.deepEqual([loss.code, loss.token, loss.lock], ["revoked", lease.token, "orders"]);
  assert.ok(lease.signal.aborted && lease.signal.reason instanceof LeaseLost);
  assert.equal(lease.remainingMs, 0);
  assert.equal(await lease.release(), "over");
});

onBoth("a second acquire with the same client id takes the lock over", async ({ client }) => {
  const first = await client.acquire("orders", { clientId: "me", ttlMs: 1_000 });
  const second = await client.acquire("orders", { clientId: "me" });
  assert.equal((await first.lost).code, "superseded");
  second.check();
  await second.release();
});

onBoth("a server that is silent ends the lease at its deadline", async ({ client, stop, resume }) => {
  const lease = await client.acquire("orders", { ttlMs: 1_000 });
  stop();
  const loss = await lease.lost;
  resume();
  assert.equal(loss.code, "expired");
});

onBoth("an event loop that is blocked past the lease sees the loss before anything else", async ({ client }) => {
  const lease = await client.acquire("orders", { ttlMs: 3_000 });
  // real time: the lease has to end meanwhile.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_100);
  assert.throws(() => {
    lease.check();
  }, LeaseLost);
  assert.equal((await lease.lost).code, "expired");
});

onBoth("withLock releases, and tells a loss as such", async ({ client }) => {
  assert.equal(await client.withLock("orders", {}, (lease) => lease.lock), "orders");
  const mistake = new Error("a mistake");
  await assert.rejects(
    client.withLock("orders", {}, () => {
      throw mistake;
    }),
    mistake,
  );
  assert.equal((await client.show("orders")).holder, undefined);
  const work = client.withLock("orders", { ttlMs: 1_000 }, async (lease) => {
    await client.breakLock("orders", lease.token, "the test");
    await once(new EventTarget(), "never", { signal: lease.signal });
  });
  await assert.rejects(work, LeaseLost);
});

onBoth("await using releases at the end of the scope", async ({ client }) => {
  {
    await using lease = await client.acquire("orders");
    lease.check();
  }
  assert.equal((await client.show("orders")).holder, undefined);
});

onBoth("readers share a token, are named by their grant ids, and keep a writer out", async ({ client }) => {
  const one = await client.acquire("report", { shared: true, ttlMs: 1_000 });
  const other = await client.acquire("report", { shared: true });
  assert.ok(one.shared && one.token === other.token && one.grantId !== other.grantId);
  assert.equal(await client.tryAcquire("report"), undefined);
  const shown = await client.show("report");
  assert.deepEqual([shown.readerCount, shown.readers.map(({ grantId }) => grantId)], [2, [one.grantId, other.grantId]]);
  await client.breakLock("report", one.grantId, "the test");
  assert.equal((await one.lost).code, "revoked");
  other.check();
  assert.equal(await other.downgrade(), other);
  await other.release();
});

onBoth("a semaphore is shown and resized", async ({ client }) => {
  const both = await client.acquire("gpu", { permits: { count: 2, of: 2 } });
  const shown = await client.show("gpu");
  assert.deepEqual([shown.permits, shown.readers.map(({ slots }) => slots)], [2, [[1, 2]]]);
  for (const of of [0, 65]) {
    await assert.rejects(client.resize("gpu", of), Invalid);
  }
  await client.resize("gpu", 3);
  const third = await client.acquire("gpu", { permits: { count: 1, of: 3 } });
  assert.deepEqual(third.slots, [3]);
  await assert.rejects(client.acquire("gpu", { permits: { count: 1, of: 2 } }), Invalid);
  await assert.rejects(client.acquire("gpu", { shared: true, permits: { count: 1, of: 3 } }), Invalid);
  await assert.rejects(both.downgrade(), Invalid);
  both.check();
});

onBoth("a writer becomes a reader in one step, and what it was is over without a loss", async ({ client }) => {
  const writer = await client.acquire("report", { metadata: "nightly" });
  assert.ok(!writer.shared && writer.grantId === writer.token);
  let lost = false;
  void writer.lost.then(() => {
    lost = true;
  });
  const waiting = client.acquire("report", { waitMs: 60_000 });
  await until(async () => (await client.show("report")).waiters === 1);
  const reader = await writer.downgrade();
  assert.ok(!writer.held && writer.signal.aborted && reader.shared && reader.token > writer.token);
  assert.equal((await client.show("report")).holder?.metadata, "nightly");
  await writer.release();
  reader.check();
  await reader.release();
  await (await waiting).release();
  assert.ok(!lost);
  await assert.rejects(writer.downgrade(), LeaseLost);
});

onBoth("a downgrade that is cancelled leaves no lock behind", async ({ client, stop, resume }) => {
  const writer = await client.acquire("report");
  stop();
  const cancel = new AbortController();
  const reader = writer.downgrade({ signal: cancel.signal });
  assert.ok(!writer.held);
  cancel.abort();
  await assert.rejects(reader, { name: "AbortError" });
  resume();
  await until(async () => (await client.show("report")).holder === undefined);
});

onBoth("a cancelled acquire leaves the queue, and rejects with the signal's reason", async ({ client }) => {
  const lease = await client.acquire("orders");
  const cancel = new AbortController();
  const waiting = client.acquire("orders", { waitMs: 3_600_000, signal: cancel.signal });
  await until(async () => (await client.show("orders")).waiters === 1);
  cancel.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  await until(async () => (await client.show("orders")).waiters === 0);
  lease.check();
  await assert.rejects(client.acquire("other", { signal: cancel.signal }), { name: "AbortError" });
  assert.equal((await client.show("other")).holder, undefined);
  await lease.release();
});

onBoth("a grant that meets the abort is given back", async ({ client }) => {
  for (let round = 0; round < 20; round += 1) {
    const cancel = new AbortController();
    const acquire = client.acquire("orders", { signal: cancel.signal, waitMs: 60_000 });
    // real time: it may be under way or not, and ends all the same.
    setTimeout(() => {
      cancel.abort();
    }, round / 4);
    const made = await acquire.catch(() => undefined);
    await made?.release();
  }
  await (await client.acquire("orders", { waitMs: 60_000, ttlMs: 1_000 })).release();
});

onBoth("list and watch", async ({ client }) => {
  const leases = [];
  for (const name of ["a/1", "a/2", "b"]) {
    leases.push(await client.acquire(name));
  }
  const names = [];
  for await (const { lock, holder } of client.list("a/")) {
    assert.ok(holder !== undefined);
    names.push(lock);
  }
  assert.deepEqual(names, ["a/1", "a/2"]);
  const seen = [];
  for await (const event of client.watch("a/", { after: 0 })) {
    assert.equal(event.kind, "granted");
    const age = Date.now() - Date.parse(event.time ?? "");
    assert.ok(Math.abs(age) < 3_600_000, event.time);
    seen.push(event.lock);
    if (seen.length === 2) {
      break;
    }
  }
  assert.deepEqual(seen, ["a/1", "a/2"]);
  for (const lease of leases) {
    await lease.release();
  }
});

onBoth("a watch ends with its signal, and with its client", async ({ client }) => {
  const end = new AbortController();
  const next = client.watch("", { signal: end.signal }).next();
  // real time: it may be under way or not, and ends all the same.
  setTimeout(() => {
    end.abort();
  }, 20);
  await assert.rejects(next, { name: "AbortError" });
  const other = client.watch("").next();
  // real time: it may be under way or not, and ends all the same.
  setTimeout(() => void client.close(), 20);
  await assert.rejects(other, Invalid);
});

onBoth("a watch of another authority says that something was missed", async ({ client }) => {
  const lease = await client.acquire("orders");
  for await (const event of client.watch("", { after: 2 ** 40 })) {
    assert.equal(event.kind, "missed");
    break;
  }
  await lease.release();
});

test("nobody there is unavailable", async (t) => {
  // Half of it is the first attempt's, which has to hear the refusal.
  const client = connect(t, { urls: "http://127.0.0.1:1", patienceMs: 2_000 });
  await assert.rejects(client.acquire("orders", { waitMs: 0 }), {
    name: "Unavailable",
    message: /http:\/\/127\.0\.0\.1:1: .*ECONNREFUSED.*\. Is a server running there\? .*`palisade serve`/,
  });
  await assert.rejects(client.status(), Unavailable);
});

test("bad arguments are named", async (t) => {
  const client = connect(t, { urls: "http://127.0.0.1:1" });
  for (const [options, says] of [
    [{ ttlMs: 50 }, /ttlMs is 50: whole milliseconds, 100 to 86400000, are allowed/],
    [{ ttlMs: 1_000.5 }, /ttlMs is 1000\.5/],
    [{ ttlMs: NaN }, /ttlMs is NaN/],
    [{ waitMs: -1 }, /waitMs is -1/],
    [{ lockDelayMs: NaN }, /lockDelayMs is NaN/],
    [{ atLeastForMs: -1 }, /atLeastForMs is -1/],
    [{ metadata: "x".repeat(257) }, /has 257 bytes; 0 /],
  ] as const) {
    await assert.rejects(client.acquire("orders", options), (error) => {
      assert.ok(error instanceof Invalid);
      assert.match(error.message, says);
      return true;
    });
  }
  for (const name of [undefined, 5, ["a", 5]] as unknown as string[]) {
    await assert.rejects(client.acquire(name), { name: "Invalid", message: /name of a lock is needed/ });
  }
  for (const name of ["", ".", "..", "ä", "a\n", "x".repeat(256)]) {
    await assert.rejects(client.show(name), Invalid);
  }
  for (const options of [{ patienceMs: 0 }, { marginMs: -1 }, { token: "a b" }, { token: "a", tokenFile: "b" }]) {
    assert.throws(() => new Client(options), Invalid);
  }
  assert.throws(() => new Client({ tls: { ca: "no certificate", cert: "none" } }), Invalid);
});

test("a closed client says so", async (t) => {
  const client = connect(t, {});
  await client.close();
  await client.close();
  await assert.rejects(client.acquire("orders"), Invalid);
});

test("the lease key is not printed", async (t) => {
  let key = "";
  const { server } = await served(t);
  const front = http.createServer((request, response) => {
    request.pipe(
      http.request(server.url + (request.url ?? ""), { method: request.method, headers: request.headers }, (answer) => {
        const parts: Buffer[] = [];
        answer.on("data", (part: Buffer) => parts.push(part));
        answer.on("end", () => {
          const text = Buffer.concat(parts).toString();
          key = /"lock_token":"(\w+)"/.exec(text)?.[1] ?? key;
          const nonce = answer.headers["palisade-nonce"];
          response.writeHead(answer.statusCode ?? 0, { "Palisade-Nonce": nonce }).end(text);
        });
      }),
    );
  });
  front.listen(0, "127.0.0.1");
  await once(front, "listening");
  t.after(() => {
    front.closeAllConnections();
    front.close();
  });
  const client = connect(t, { urls: `http://127.0.0.1:${(front.address() as { port: number }).port}` });
  const lease = await client.acquire("orders");
  assert.equal(key.length, 32);
  for (const text of [String(lease), inspect(lease, { depth: 9, showHidden: true }), JSON.stringify(lease)]) {
    assert.ok(!text.includes(key), text);
  }
  await lease.release();
});

test("the bearer token comes from the option, the file or the environment", async (t) => {
  const asked: (string | undefined)[] = [];
  const server = http.createServer((request, response) => {
    asked.push(request.headers.authorization);
    response
      .writeHead(401, { "Palisade-Nonce": request.headers["palisade-nonce"] })
      .end('{"error": {"code": "unauthenticated", "message": "a token is needed"}}');
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const urls = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const file = join(folder(), "token");
  writeFileSync(file, "of-the-file\n");
  process.env["PALISADE_TOKEN"] = "of-the-environment";
  t.after(() => {
    delete process.env["PALISADE_TOKEN"];
  });
  for (const options of [{ urls, token: "given" }, { urls, tokenFile: file }, { urls }]) {
    await assert.rejects(connect(t, options).status(), (error) => {
      assert.ok(error instanceof Invalid);
      assert.equal(error.code, "unauthenticated");
      return true;
    });
  }
  assert.deepEqual(asked, ["Bearer given", "Bearer of-the-file", "Bearer of-the-environment"]);
});

test("a bearer token that is replaced in its file is taken without a restart", async (t) => {
  let counts = "one";
  const server = http.createServer((request, response) => {
    const known = request.headers.authorization === `Bearer ${counts}`;
    response.setHeader("Palisade-Nonce", request.headers["palisade-nonce"] ?? "");
    response.writeHead(known ? 200 : 401).end(known ? "{}" : '{"error": {"code": "unauthenticated", "message": "no"}}');
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const urls = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const file = join(folder(), "token");
  // As Kubernetes does: the new file takes the old one's place.
  const replace = (text: string): void => {
    writeFileSync(`${file}.fresh`, text);
    renameSync(`${file}.fresh`, file);
  };
  replace("one\n");
  const [client, fixed] = [connect(t, { urls, tokenFile: file }), connect(t, { urls, token: "one" })];
  await Promise.all([client.status(), fixed.status()]);
  replace("two\n");
  counts = "two";
  await client.status();
  // A control: a client that does not read the file again is refused.
  await assert.rejects(fixed.status(), Invalid);
  // While the file cannot be used, the last token stays.
  replace("two words");
  await client.status();
  rmSync(file);
  await client.status();
});
