/** Tests of a whole process: paused past its lease, at its end, and with errors that nobody awaits. */
import assert from "node:assert/strict";
import { fork, spawn } from "node:child_process";
import cluster from "node:cluster";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { folder, serve, served, until } from "./servers.js";

const INDEX = new URL("../src/index.js", import.meta.url).href;

interface Child {
  readonly kill: (signal: NodeJS.Signals) => void;
  readonly say: (word: string) => void;
  readonly next: () => Promise<string>;
  readonly ended: Promise<number | null>;
}

/** Runs a program that has `client`, `print` and `word`, which is the next line of its input. */
function run(url: string, program: string): Child {
  const text = `
    import { Client, LeaseLost } from ${JSON.stringify(INDEX)};
    import { createInterface } from "node:readline";
    process.on("unhandledRejection", (error) => { console.log("unhandled", error); process.exit(3); });
    const print = (line) => console.log(line);
    const lines = createInterface({ input: process.stdin });
    const words = lines[Symbol.asyncIterator]();
    const word = async () => (await words.next()).value;
    const client = new Client({ urls: ${JSON.stringify(url)}, patienceMs: 500 });
    ${program}`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", text], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    kill: (signal) => child.kill(signal),
    say: (one) => child.stdin.write(`${one}\n`),
    next: async () => String((await lines.next()).value),
    ended: once(child, "exit").then(([code]) => code as number | null),
  };
}

test("a process that was paused past its lease sees the loss before it writes", async (t) => {
  const { client, server } = await served(t);
  const child = run(
    server.url,
    `const lease = await client.acquire("orders", { ttlMs: 2_000 });
     print("held " + lease.token);
     await word();
     try { lease.check(); print("WRITES " + lease.signal.aborted); } catch (error) { print(error.code); }
     print(String(lease.signal.aborted));
     print((await lease.lost).code);
     await client.close(); lines.close();`,
  );
  assert.match(await child.next(), /^held/);
  child.kill("SIGSTOP");
  const next = await client.acquire("orders", { waitMs: 60_000 });
  // The word is there before the process goes on, so that nothing but the clock can tell it.
  child.say("go");
  child.kill("SIGCONT");
  assert.deepEqual([await child.next(), await child.next(), await child.next()], ["expired", "true", "expired"]);
  assert.equal(await child.ended, 0);
  next.check();
  await next.release();
});

test("a process ends when its leases are released, also without close", async (t) => {
  const { server } = await served(t);
  const child = run(
    server.url,
    `lines.close();
     await (await client.acquire("orders")).release();
     for await (const event of client.watch("", { after: 0 })) { print(event.kind); break; }`,
  );
  assert.equal(await child.next(), "granted");
  assert.equal(await child.ended, 0);
});

test("a process ends after close, whatever is still under way", async (t) => {
  const { client, server } = await served(t);
  const other = await client.acquire("taken");
  const child = run(
    server.url,
    `lines.close();
     const lease = await client.acquire("orders", { ttlMs: 3_600_000 });
     const waiting = client.acquire("taken").catch((error) => print("waiting: " + error.name));
     const watching = client.watch("").next().catch((error) => print("watching: " + error.name));
     // real time: it may wait and watch by then, or not.
     setTimeout(async () => { await client.close(); lease.check(); print("closed"); }, 100);`,
  );
  const said = [await child.next(), await child.next(), await child.next()];
  assert.ok(said.includes("closed"), said.join());
  assert.ok(said.includes("waiting: Invalid"), said.join());
  assert.equal((await client.show("taken")).waiters, 0);
  assert.ok(said.includes("watching: Invalid"), said.join());
  assert.equal(await child.ended, 0);
  await other.release();
});

test("a held lease keeps the process running, and is renewed", async (t) => {
  const { client, server } = await served(t);
  const child = run(
    server.url,
    `lines.close(); const lease = await client.acquire("orders", { ttlMs: 2_000 }); print("held");
     process.once("SIGUSR2", async () => { lease.check(); print(await lease.release()); });`,
  );
  assert.equal(await child.next(), "held");
  const before = (await client.show("orders")).holder?.token;
  // real time: several renewals.
  const end = performance.now() + 4_000;
  await until(() => performance.now() > end);
  assert.equal((await client.show("orders")).holder?.token, before);
  child.kill("SIGUSR2");
  assert.equal(await child.next(), "released");
  assert.equal(await child.ended, 0);
});

test("no rejection is left unhandled when the server goes away", async (t) => {
  const server = await serve(t);
  const child = run(
    server.url,
    `const lease = await client.acquire("orders", { ttlMs: 500 });
     const cancel = new AbortController();
     const watch = client.watch("", { signal: cancel.signal });
     const first = watch.next().catch(() => undefined);
     print("held");
     await word();
     const lost = await lease.lost;
     const gone = await client.acquire("other", { waitMs: 0 }).catch((error) => error);
     const released = await lease.release().catch((error) => error);
     cancel.abort();
     await first;
     await client.close();
     print([lost.code, gone.kind, released.kind ?? released].join(" "));
     lines.close();`,
  );
  assert.equal(await child.next(), "held");
  server.process.kill("SIGKILL");
  await once(server.process, "exit");
  child.say("go");
  assert.match(await child.next(), /^expired (unavailable|unknown_outcome) (unavailable|unknown_outcome)$/);
  assert.equal(await child.ended, 0);
});

/** Prints the events of its own client, and leaves the lease held. */
const ANOTHER = `
  import { Client } from ${JSON.stringify(INDEX)};
  export async function hold(url, lock, told) {
    const lease = await new Client({ urls: url }).acquire(lock, { ttlMs: 1_000 });
    told(lease.token);
    await lease.release();
    const kept = await new Client({ urls: url }).acquire(lock, { ttlMs: 1_000 });
    told(kept.token);
    return kept;
  }
`;

/** Memory is not shared, so each has clients and grants of its own, and its end leaves those of the others alone. */
for (const kind of ["worker", "cluster", "fork"] as const) {
  test(`beside a lease of its parent: a ${kind} has its own, and its end takes nobody's`, async (t) => {
    const { client, server } = await served(t);
    const mine = await client.acquire("mine", { ttlMs: 2_000 });
    const place = folder();
    const program = join(place, "other.mjs");
    writeFileSync(join(place, "hold.mjs"), ANOTHER);
    const send = kind === "worker" ? "parentPort.postMessage" : "process.send";
    const port = kind === "worker" ? 'import { parentPort } from "node:worker_threads";' : "";
    writeFileSync(
      program,
      `import { hold } from "./hold.mjs"; ${port}
       await hold(${JSON.stringify(server.url)}, "own", (token) => ${send}(token));`,
    );
    const [told, end] = other(kind, program);
    const [first, second] = [await told(), await told()];
    assert.ok(first > mine.token && second > first);
    await end();
    // It ended without a release: only its own lease is left to expire.
    const next = await client.acquire("own", { waitMs: 60_000 });
    assert.ok(next.token > second);
    mine.check();
    assert.equal((await client.show("mine")).holder?.token, mine.token);
    await next.release();
    assert.equal(await mine.release(), "released");
  });
}

function other(kind: "worker" | "cluster" | "fork", program: string): [() => Promise<number>, () => Promise<unknown>] {
  const tokens: number[] = [];
  const take = (token: unknown): unknown => tokens.push(Number(token));
  const told = async (): Promise<number> => {
    await until(() => tokens.length > 0);
    return tokens.shift() ?? 0;
  };
  if (kind === "worker") {
    const worker = new Worker(program);
    worker.on("message", take);
    return [told, () => worker.terminate()];
  }
  if (kind === "cluster") {
    cluster.setupPrimary({ exec: program });
    const worker = cluster.fork();
    worker.on("message", take);
    return [
      told,
      () => {
        worker.process.kill("SIGKILL");
        return once(worker, "exit");
      },
    ];
  }
  const child = fork(program);
  child.on("message", take);
  return [
    told,
    () => {
      child.kill("SIGKILL");
      return once(child, "exit");
    },
  ];
}

test("a lease and a client are not sent to a worker by mistake", async (t) => {
  const { client } = await served(t);
  const lease = await client.acquire("orders");
  assert.throws(() => structuredClone(lease), { name: "DataCloneError" });
  await lease.release();
});
