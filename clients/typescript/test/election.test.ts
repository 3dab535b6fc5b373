import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { test } from "node:test";

import { Invalid, LeaseLost, type Leader } from "../src/index.js";
import { onBoth } from "./both.js";
import { connect, serve } from "./servers.js";

async function next(election: AsyncGenerator<Leader | undefined>): Promise<Leader | undefined> {
  const found = await election.next();
  assert.ok(found.done !== true);
  return found.value;
}

onBoth("an observer sees the present leader, and each change", async ({ client }) => {
  const election = client.observe("primary");
  assert.equal(await next(election), undefined);
  const leads = await client.acquire("primary", { clientId: "node-1", metadata: "starting" });
  assert.deepEqual(await next(election), { clientId: "node-1", token: leads.token, value: "starting" });
  for (const value of ["10.0.0.7:5432", ""]) {
    await leads.proclaim(value);
    const wanted = { clientId: "node-1", token: leads.token, value: value === "" ? undefined : value };
    assert.deepEqual(await next(election), wanted);
    assert.deepEqual(await client.leader("primary"), wanted);
  }
  // Locks beside it are no changes of it.
  await client.acquire("primary/other");
  await client.breakLock("primary", leads.token, "the test");
  assert.equal(await next(election), undefined);
  // A former leader announces nothing.
  await assert.rejects(leads.proclaim("x"), LeaseLost);
  const second = await client.acquire("primary", { clientId: "node-2" });
  assert.deepEqual(await next(election), { clientId: "node-2", token: second.token, value: undefined });
  assert.ok(second.token > leads.token);
  await election.return();
  assert.ok((await election.next()).done);
});

onBoth("a loss is found by a proclamation", async ({ client }) => {
  const leads = await client.acquire("primary", { ttlMs: 3_600_000 });
  await client.breakLock("primary", leads.token, "the test");
  // The next renewal would be in twenty minutes.
  await assert.rejects(leads.proclaim("x"), { name: "LeaseLost", code: "revoked" });
  assert.equal((await leads.lost).code, "revoked");
});

onBoth("only a leader has a value", async ({ client }) => {
  const reader = await client.acquire("report", { shared: true });
  const permit = await client.acquire("gpu", { permits: { count: 1, of: 2 } });
  for (const lease of [reader, permit]) {
    await assert.rejects(lease.proclaim("x"), Invalid);
    assert.equal(await client.leader(lease.lock), undefined);
  }
  await assert.rejects((await client.acquire(["a", "b"])).proclaim("x"), Invalid);
  const leads = await client.acquire("primary");
  await assert.rejects(leads.proclaim("x".repeat(257)), Invalid);
  await assert.rejects(leads.proclaim(7 as unknown as string), TypeError);
  await assert.rejects(client.leader(".."), Invalid);
  assert.throws(() => client.observe(".."), Invalid);
  assert.throws(() => client.observe("primary", { after: 1 } as object), TypeError);
});

onBoth("an observation ends with its signal", async ({ client }) => {
  const end = new AbortController();
  const election = client.observe("primary", { signal: end.signal });
  await next(election);
  const waiting = election.next();
  end.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

onBoth("a watch passes proclamations", async ({ client }) => {
  const leads = await client.acquire("primary");
  await leads.proclaim("x");
  const seen = [];
  for await (const event of client.watch("primary", { after: 0 })) {
    seen.push(event.kind);
    if (seen.length === 2) {
      break;
    }
  }
  assert.deepEqual(seen, ["granted", "proclaimed"]);
});

test("a watch passes what an operator opened", async (t) => {
  const server = await serve(t);
  const client = connect(t, { urls: server.url });
  const lease = await client.acquire("nightly", { atLeastForMs: 3_600_000 });
  await lease.release();
  const opened = await fetch(`${server.url}/v1/locks/nightly/open`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: '{"reason": "the job failed"}',
  });
  assert.equal(opened.status, 200);
  const events = [];
  for await (const event of client.watch("nightly", { after: 0 })) {
    events.push(event);
    if (event.kind === "opened") {
      break;
    }
  }
  assert.deepEqual(
    events.map(({ kind }) => kind),
    ["granted", "released", "opened"],
  );
  const last = events.at(-1);
  assert.ok(last?.kind === "opened");
  assert.deepEqual([last.reason, last.token, last.clientId], ["the job failed", lease.token, ""]);
});

// While its connection is broken, an observer may miss leaders, and never the last one.
test("an observer goes on after a broken connection", async (t) => {
  const { url } = await serve(t);
  const { port } = new URL(url);
  const open = new Set<net.Socket>();
  const front = net.createServer((near) => {
    const far = net.connect(Number(port), "127.0.0.1");
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      open.add(socket);
      socket.on("error", () => undefined);
      socket.on("close", () => {
        open.delete(socket);
        other.destroy();
      });
      socket.pipe(other);
    }
  });
  front.listen(0, "127.0.0.1");
  await once(front, "listening");
  t.after(() => front.close());
  const direct = connect(t, { urls: url });
  const observer = connect(t, { urls: `http://127.0.0.1:${(front.address() as net.AddressInfo).port}` });
  const election = observer.observe("primary");
  await next(election);
  for (let round = 0; round < 3; round += 1) {
    for (const socket of open) {
      socket.destroy();
    }
    await (await direct.acquire("primary", { clientId: "short" })).release();
    const leads = await direct.acquire("primary");
    let before = 0;
    for (;;) {
      const leader = await next(election);
      if (leader !== undefined) {
        assert.ok(leader.token > before, `${leader.token} after ${before}`);
        before = leader.token;
      }
      if (before === leads.token) {
        break;
      }
    }
    await leads.release();
    assert.equal(await next(election), undefined);
  }
  await election.return();
});
