/** A lease says that it is in danger, wanted or lost before its next renewal would. Rules N-… of the holder suite. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Invalid, type Lease, type LeaseLost, type Notice } from "../src/index.js";
import { MemoryServer } from "../src/testing/index.js";
import { onBoth } from "./both.js";
import { hear } from "./examples.js";
import { connect, listening, ROOT, serve, until, type Scope } from "./servers.js";

/** Long enough that no renewal says anything in a test. */
const LONG = { ttlMs: 60_000 };

/** The notices of a lease from now on. */
function told(lease: Lease): Notice[] {
  const notices: Notice[] = [];
  lease.listen((notice) => notices.push(notice));
  return notices;
}

function kinds(notices: readonly Notice[]): string[] {
  return notices.map(({ kind }) => kind);
}

async function untilKinds(notices: readonly Notice[], ...wanted: string[]): Promise<void> {
  await until(() => notices.length >= wanted.length);
  assert.deepEqual(kinds(notices), wanted);
}

// The control hears of it from its next renewal, after a third of its fifteen seconds.
onBoth("a break is heard at once", async ({ client, again }) => {
  const heard = await client.acquire("orders", LONG);
  const notices = told(heard);
  const late = await again({ notices: false }).acquire("late", { ttlMs: 15_000 });
  await sleep(500); // real time: it listens by now
  const began = performance.now();
  await client.breakLock("late", late.token, "maintenance");
  await client.breakLock("orders", heard.token, "maintenance");
  const loss = await heard.lost;
  const took = performance.now() - began;
  await late.lost;
  assert.ok(took < (performance.now() - began) / 2, `${took} ms`);
  assert.deepEqual([loss.code, loss.reason], ["revoked", "maintenance"]);
  assert.match(loss.message, /an operator revoked it \(maintenance\)/);
  await until(() => notices.length > 0);
  assert.deepEqual(notices, [{ kind: "lost", why: "revoked", reason: "maintenance" }]);
  assert.equal(heard.wanted(), 0);
});

onBoth("a holder hears that others wait and that they left", async ({ client, again }) => {
  const lease = await client.acquire("orders", LONG);
  const notices = told(lease);
  assert.equal(lease.wanted(), 0);
  const other = again();
  const asks = [other.tryAcquire("orders", { waitMs: 2_000 }), other.tryAcquire("orders", { waitMs: 2_000 })];
  await until(() => lease.wanted() === 2);
  const late = told(lease);
  await until(() => late.length === 1);
  // Registered late, it is told of the present.
  assert.deepEqual(late, [{ kind: "wanted", waiters: 2 }]);
  assert.deepEqual(await Promise.all(asks), [undefined, undefined]);
  await until(() => lease.wanted() === 0);
  await until(() => notices.at(-1)?.kind === "unwanted" && late.length > 1);
});

onBoth("without notices a renewal says who waits", async ({ again }) => {
  const lease = await again({ notices: false }).acquire("orders", { ttlMs: 900 });
  const next = again().acquire("orders");
  await until(() => lease.wanted() === 1);
  await lease.release();
  assert.equal(lease.wanted(), 0);
  await (await next).release();
});

onBoth("one of several locks ends all", async ({ client }) => {
  const lease = await client.acquire(["a", "b"], LONG);
  await client.breakLock("b", lease.token);
  const loss = await lease.lost;
  assert.deepEqual([loss.code, loss.lock], ["revoked", "b"]);
  await until(async () => (await client.show("a")).holder === undefined);
});

onBoth("a superseded lease hears of it", async ({ client }) => {
  const old = await client.acquire("orders", { ...LONG, clientId: "me" });
  await sleep(300); // real time: it listens by now
  await client.acquire("orders", { ...LONG, clientId: "me" });
  assert.equal((await old.lost).code, "superseded");
});

onBoth("an upgrade is no loss", async ({ client }) => {
  const reader = await client.acquire("orders", { ...LONG, update: true });
  const notices = told(reader);
  await sleep(300); // real time: it listens by now
  const writer = await reader.upgrade();
  await sleep(300); // real time: a notice would be here
  assert.deepEqual(notices, []);
  writer.check();
  assert.equal(await writer.release(), "released");
});

for (const notices of [true, false]) {
  test(`a suspended lease says so before it is lost (notices: ${notices})`, async (t) => {
    const server = new MemoryServer();
    const client = server.client({ notices });
    t.after(() => client.close());
    const lease = await client.acquire("orders", { ttlMs: 1_500 });
    const all = told(lease);
    server.down();
    await untilKinds(all, "suspended");
    const [first] = all;
    assert.ok(first?.kind === "suspended" && first.remainingMs > 0 && first.remainingMs < 1_500);
    lease.check();
    const late = told(lease);
    await untilKinds(late, "suspended");
    server.up();
    await untilKinds(all, "suspended", "restored");
    server.down();
    assert.equal((await lease.lost).code, "expired");
    for (const each of [all, late]) {
      await untilKinds(each, "suspended", "restored", "suspended", "lost");
    }
    await untilKinds(told(lease), "lost");
  });
}

test("a release is told nobody", async (t) => {
  const client = new MemoryServer().client();
  t.after(() => client.close());
  const lease = await client.acquire("orders");
  const before = told(lease);
  await lease.release();
  const after = told(lease);
  await sleep(300); // real time: a notice would be here
  assert.deepEqual([before, after, lease.wanted()], [[], [], 0]);
});

test("callbacks that fail and take long disturb nothing", async (t) => {
  const server = new MemoryServer();
  const client = server.client();
  t.after(() => client.close());
  const warnings: string[] = [];
  const warned = ({ message }: Error): unknown => warnings.push(message);
  process.on("warning", warned);
  t.after(() => process.off("warning", warned));
  const lease = await client.acquire("orders", { ttlMs: 600 });
  const slow: string[] = [];
  const goOn = new AbortController();
  lease.listen(() => {
    throw new Error("thrown");
  });
  lease.listen(() => Promise.reject(new Error("rejected")));
  lease.listen(async ({ kind }) => {
    slow.push(kind);
    await sleep(60_000, undefined, { signal: goOn.signal }).catch(() => undefined); // real time: until the test ends it
  });
  const others = told(lease);
  server.down();
  await untilKinds(others, "suspended");
  server.up();
  await sleep(2_000); // real time: a lease that nobody renews is over
  lease.check();
  await untilKinds(others, "suspended", "restored");
  server.revoke("orders");
  await untilKinds(others, "suspended", "restored", "lost");
  // Of what changed while it ran it is told the latest.
  assert.deepEqual(slow, ["suspended"]);
  goOn.abort();
  await until(() => slow.length === 2);
  assert.deepEqual(slow, ["suspended", "lost"]);
  assert.ok(warnings.some((text) => /at the notice suspended: Error: thrown/.test(text)));
  assert.ok(warnings.some((text) => /at the notice restored: Error: rejected/.test(text)));
});

interface Body {
  readonly grants: readonly { readonly resource_id: string; readonly fencing_token: number }[];
  readonly wait_ms: number;
}
type Answer = readonly [status: number, text: string, hasNonce?: boolean];
type Answers = (body: Body, response: http.ServerResponse) => Answer | Promise<Answer | undefined> | undefined;

const refused = (status: number, code: string): Answer => [status, JSON.stringify({ error: { code, message: "m" } })];
const saying = (notices: readonly object[]): Answer => [200, JSON.stringify({ notices })];

/** A server that grants everything, whose answers to a listen are given. It counts them. */
async function answering(t: Scope, answers: Answers): Promise<{ url: string; listens: Body[] }> {
  const listens: Body[] = [];
  let token = 0;
  const answer = (path: string, body: Body, response: http.ServerResponse): ReturnType<Answers> => {
    const [, , , lock = "", verb] = path.split("/");
    if (lock === "gone") {
      return undefined;
    }
    const { fencing_token, lease_duration_ms = 3_000 } = body as unknown as Record<string, number>;
    const about = { resource_id: decodeURIComponent(lock), authority: "a", valid_for_ms: lease_duration_ms };
    if (path === "/v1/listen") {
      listens.push(body);
      return answers(body, response);
    }
    token += verb === "acquire" ? 1 : 0;
    const granted = { lock_acquired: true, lock_token: "k", fencing_token: token, waited_ms: 0 };
    const other = verb === "release" ? { fencing_token, released: true } : { fencing_token };
    return [200, JSON.stringify({ ...about, ...(verb === "acquire" ? granted : other) })];
  };
  const server = http.createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      const body = JSON.parse(Buffer.concat(parts).toString() || "{}") as Body;
      void Promise.resolve(answer(request.url ?? "", body, response)).then((found) => {
        if (found === undefined) {
          return request.socket.destroy();
        }
        const [status, text, hasNonce = true] = found;
        const nonce = hasNonce ? { "Palisade-Nonce": request.headers["palisade-nonce"] } : {};
        return response.writeHead(status, nonce as http.OutgoingHttpHeaders).end(text);
      });
    });
  });
  return { url: await listening(t, server), listens };
}

const broken: Readonly<Record<string, Answers>> = {
  "nothing, at once": () => saying([]),
  "another grant": () => saying([{ resource_id: "x", fencing_token: 1, event: "ended", how: "revoked" }]),
  busy: () => refused(429, "busy"),
  unavailable: () => refused(503, "unavailable"),
  "a proxy's": () => [504, "<html>", false],
  "no answer": () => undefined,
  "the same again": ({ grants: [grant] }) => saying([{ ...grant, lock_token: undefined, event: "wanted", waiters: 3 }]),
};

suite("a listen that fails backs off and suspends nothing", { concurrency: true }, () => {
  for (const [name, answers] of Object.entries(broken)) {
    test(name, async (t) => {
      const { url, listens } = await answering(t, answers);
      const lease = await connect(t, { urls: url }).acquire("orders");
      const notices = told(lease);
      await until(() => listens.length > 0);
      await sleep(3_000); // real time: so long it is counted
      // Pauses of half a second, one, and two, each at least by half.
      assert.ok(listens.length >= 2 && listens.length <= 8, `${listens.length} requests`);
      lease.check();
      assert.ok(!kinds(notices).some((kind) => kind === "suspended" || kind === "lost"));
    });
  }
});

// The control: only answers without news are answered with a pause that grows.
test("news is followed by a short pause", async (t) => {
  let waiters = 0;
  const { url, listens } = await answering(t, ({ grants: [grant] }) => {
    waiters += 1;
    return saying([{ ...grant, lock_token: undefined, event: "wanted", waiters }]);
  });
  await connect(t, { urls: url }).acquire("orders");
  await until(() => listens.length > 0);
  await sleep(3_000); // real time: so long it is counted
  assert.ok(listens.length > 8 && listens.length <= 61, `${listens.length} requests`);
});

test("an older server is asked once", async (t) => {
  let answer = refused(404, "not_found");
  const { url, listens } = await answering(t, () => answer);
  const client = connect(t, { urls: url, patienceMs: 1_000 });
  const lease = await client.acquire("orders", { ttlMs: 3_000 });
  await until(() => listens.length > 0);
  const beside = await client.acquire("beside", { ttlMs: 3_000 });
  await sleep(2_500); // real time: several renewals
  assert.equal(listens.length, 1);
  // It is replaced by one that knows them: the connections break.
  answer = refused(429, "busy");
  await client.show("gone").catch(() => undefined);
  await until(() => listens.length > 1);
  assert.ok(lease.held && beside.held);
});

test("a request that is ended too early gets shorter", async (t) => {
  const { url, listens } = await answering(t, async () => {
    await sleep(1_500); // real time: as a proxy that ends requests by then
    return [504, "<html>", false];
  });
  await connect(t, { urls: url }).acquire("orders");
  await until(() => listens.length >= 4);
  assert.deepEqual(
    listens.slice(0, 4).map(({ wait_ms }) => wait_ms),
    [20_000, 10_000, 5_000, 2_500],
  );
});

test("a new lease is named while the request waits", async (t) => {
  const never = new Promise<undefined>(() => undefined);
  const { url, listens } = await answering(t, () => never);
  const client = connect(t, { urls: url });
  const began = performance.now();
  for (let number = 0; number < 40; number += 1) {
    await client.acquire(`lock-${number}`, LONG);
    await sleep(20); // real time: they come one after the other
  }
  await until(() => listens.at(-1)?.grants.length === 40);
  // Requests are ended at most once in a tenth of a second.
  assert.ok(listens.length >= 2 && listens.length <= (performance.now() - began) / 100 + 1, `${listens.length}`);
});

test("a thousand leases are ten requests", async (t) => {
  const never = new Promise<undefined>(() => undefined);
  const { url, listens } = await answering(t, () => never);
  const client = connect(t, { urls: url });
  // Not all of them at once: each would wait for all the others' answers.
  for (let first = 0; first < 1_000; first += 100) {
    await Promise.all(Array.from({ length: 100 }, (_, number) => client.acquire(`lock-${first + number}`, LONG)));
  }
  const named = (): Set<string> => new Set(listens.flatMap(({ grants }) => grants.map(({ resource_id: it }) => it)));
  await until(() => named().size === 1_000);
  assert.ok(listens.every(({ grants }) => grants.length <= 100));
  assert.ok(listens.filter(({ grants }) => grants.length === 100).length >= 10);
});

test("a short lease causes no request, and a client can do without", async (t) => {
  const { url, listens } = await answering(t, () => saying([]));
  const client = connect(t, { urls: url });
  for (let number = 0; number < 20; number += 1) {
    await (await client.acquire("orders")).release().catch(() => undefined);
  }
  await connect(t, { urls: url, notices: false }).acquire("off");
  await sleep(300); // real time: a request would be here
  assert.deepEqual(listens, []);
  // The control.
  await client.acquire("kept");
  await until(() => listens.length > 0);
});

test("a lost lease has the operator's reason, and a listener is a function", async (t) => {
  const server = new MemoryServer();
  const client = server.client();
  t.after(() => client.close());
  const lease = await client.acquire("orders", LONG);
  assert.throws(() => {
    lease.listen(5 as never);
  }, TypeError);
  assert.throws(() => server.client({ notices: 1 as never }), TypeError);
  await sleep(300); // real time: it listens by now
  server.revoke("orders", "maintenance");
  const loss: LeaseLost = await lease.lost;
  assert.equal(loss.reason, "maintenance");
  await client.close();
  await assert.rejects(client.acquire("orders"), Invalid);
});

test("a program ends while it listens", async (t) => {
  const never = new Promise<undefined>(() => undefined);
  const { url, listens } = await answering(t, () => never);
  const from = JSON.stringify(new URL("../src/index.js", import.meta.url).href);
  const program = `
    import { Client } from ${from};
    const client = new Client({ urls: ${JSON.stringify(url)} });
    const lease = await client.acquire("orders", { ttlMs: 60000 });
    await new Promise((resolve) => setTimeout(resolve, 1000)); // real time: the first request waits by now
    const left = client.acquire("other", { ttlMs: 60000 });
    process.stdin.once("data", async () => {
      process.stdin.destroy();
      (await left).release();
      await lease.release();
      console.log("released");
    });`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  await until(() => listens.at(-1)?.grants.length === 2);
  child.stdin.write("\n");
  const began = performance.now();
  assert.deepEqual(await ended, [0, null]);
  // The request would wait for twenty seconds.
  assert.ok(performance.now() - began < 10_000);
});

test("the page's example runs", async (t) => {
  const page = readFileSync(join(ROOT, "docs/use/notices.md"), "utf8");
  const [, example = ""] = /^```ts\n(.*?)^```/ms.exec(page) ?? [];
  const [imports = "", ...code] = example.trimEnd().split("\n");
  assert.equal(imports, 'import { Client, type Notice } from "palisade-client";');
  assert.ok(readFileSync(join(ROOT, "clients/typescript/test/examples.ts"), "utf8").includes(code.join("\n")));
  process.env["PALISADE_URL"] = (await serve(t)).url;
  await hear();
});
