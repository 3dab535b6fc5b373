/** Real servers for the tests, on free ports, in temporary folders. */
import assert from "node:assert/strict";
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import type { Server as HttpServer } from "node:http";
import { createServer, type Server } from "node:net";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";
import { createConnection } from "mysql2/promise";
import pg from "pg";

import { Client, type ClientOptions } from "../src/index.js";

/** Where something is put off until a test, or a file of tests, has ended. */
export interface Scope {
  after(end: () => unknown): void;
}

/** The scope of a whole file of tests, made at its top. The last to begin ends first. */
export function wholeFile(): Scope {
  const ends: (() => unknown)[] = [];
  after(async () => {
    for (const end of ends.reverse()) {
      await end();
    }
  });
  return { after: (end) => ends.push(end) };
}

/** The repository; this file is compiled to clients/typescript/build/test. */
export const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));

export function found(path: string, advice: string): string {
  assert.ok(existsSync(path), `${path} is missing: ${advice}`);
  return path;
}

export function binary(): string {
  const path = process.env["PALISADE_BINARY"] ?? join(ROOT, "target/debug/palisade");
  return found(path, "run `cargo build -p palisade`, or set PALISADE_BINARY");
}

const folders: string[] = [];

/** A folder that is removed when this process ends: by then no program that a test started writes there. */
export function folder(): string {
  const made = mkdtempSync(join(tmpdir(), "palisade-typescript-"));
  if (folders.push(made) === 1) {
    process.once("exit", () => {
      for (const each of folders) {
        rmSync(each, { recursive: true, force: true });
      }
    });
  }
  return made;
}

/** Starts a program that is ended with the test. */
export function start(t: Scope, program: string, args: string[], signal: NodeJS.Signals = "SIGTERM"): ChildProcess {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "ignore"], cwd: "/" });
  t.after(async () => {
    child.kill("SIGCONT");
    if (child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      await once(child, "exit");
    }
  });
  return child;
}

export interface Running {
  readonly url: string;
  readonly process: ChildProcess;
}

/** Starts a program of palisade that says where it listens. */
export async function palisade(t: Scope, ...args: string[]): Promise<Running> {
  const child = start(t, binary(), args);
  assert.ok(child.stdout);
  for await (const line of createInterface({ input: child.stdout })) {
    const url = /https?:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0];
    if (url !== undefined) {
      child.stdout.resume();
      return { url, process: child };
    }
  }
  throw new Error(`palisade ${args.join(" ")} ended before it listened`);
}

export async function serve(t: Scope, ...args: string[]): Promise<Running> {
  return palisade(t, "serve", "--listen", "127.0.0.1:0", "--data", join(folder(), "data"), ...args);
}

export function connect(t: Scope, options: ClientOptions): Client {
  const client = new Client(options);
  t.after(() => client.close());
  return client;
}

/** A client and its server. */
export async function served(t: Scope): Promise<{ client: Client; server: Running }> {
  const server = await serve(t);
  return { client: connect(t, { urls: server.url }), server };
}

/** A PostgreSQL with the fence. */
export async function postgres(t: Scope): Promise<string> {
  const versions = existsSync("/usr/lib/postgresql") ? readdirSync("/usr/lib/postgresql") : [];
  const version = versions.sort((one, other) => Number(one) - Number(other)).at(-1);
  assert.ok(version !== undefined, "PostgreSQL is missing: install the Debian package postgresql");
  const programs = `/usr/lib/postgresql/${version}/bin`;
  const place = folder();
  // PostgreSQL does not run as root.
  const asUser = process.getuid?.() === 0 ? ["--reuid=postgres", "--regid=postgres", "--clear-groups"] : undefined;
  if (asUser !== undefined) {
    const id = (flag: string): number => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }));
    chownSync(place, id("-u"), id("-g"));
  }
  const command = (program: string, ...args: string[]): [string, string[]] =>
    asUser === undefined ? [join(programs, program), args] : ["setpriv", [...asUser, join(programs, program), ...args]];
  const data = join(place, "data");
  const [initdb, made] = command("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync");
  execFileSync(initdb, made, { cwd: "/", stdio: "ignore" });
  const port = await freePort();
  const settings = ["listen_addresses=127.0.0.1", `port=${port}`, "fsync=off", "statement_timeout=30s"];
  const flags = settings.flatMap((setting) => ["-c", setting]);
  // SIGINT: with SIGTERM it would wait for clients that are still connected.
  const child = start(t, ...command("postgres", "-D", data, "-k", place, ...flags), "SIGINT");
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`;
  await ready(child, async () => {
    const db = new pg.Client(url);
    await db.connect();
    await db.end();
  });
  execFileSync(binary(), ["fence", "install", "postgres", "--url", url], { stdio: "ignore" });
  return url;
}

/** A MariaDB with the fence. */
export async function mariadb(t: Scope): Promise<string> {
  const install = found("/usr/bin/mariadb-install-db", "install the Debian package mariadb-server");
  const place = folder();
  const shared = [
    "--no-defaults",
    `--user=${userInfo().username}`,
    `--datadir=${join(place, "data")}`,
    `--tmpdir=${place}`,
  ];
  execFileSync(install, [...shared, "--auth-root-authentication-method=normal", "--skip-test-db"], { stdio: "ignore" });
  const first = join(place, "init.sql");
  writeFileSync(
    first,
    "CREATE DATABASE palisade;\nCREATE USER 'palisade'@'%';\nGRANT ALL ON *.* TO 'palisade'@'%' WITH GRANT OPTION;\n",
  );
  const port = await freePort();
  const flags = [`--port=${port}`, `--socket=${join(place, "socket")}`, `--pid-file=${join(place, "pid")}`];
  const network = ["--bind-address=127.0.0.1", "--skip-name-resolve", `--init-file=${first}`];
  const child = start(t, "/usr/sbin/mariadbd", [...shared, ...flags, ...network]);
  const url = `mysql://palisade@127.0.0.1:${port}/palisade`;
  await ready(child, async () => {
    await (await createConnection(url)).end();
  });
  execFileSync(binary(), ["fence", "install", "mysql", "--url", url], { stdio: "ignore" });
  return url;
}

/** A Redis with the fence's functions. */
export async function redis(t: Scope): Promise<string> {
  const program = found("/usr/bin/redis-server", "install the Debian package redis-server (7 or later)");
  const port = await freePort();
  const child = start(t, program, ["--port", String(port), "--bind", "127.0.0.1", "--dir", folder(), "--save", ""]);
  const url = `redis://127.0.0.1:${port}`;
  await ready(child, async () => {
    const one = new Redis(url, { lazyConnect: true, retryStrategy: () => null });
    one.on("error", () => undefined);
    try {
      await one.connect();
      await one.ping();
    } finally {
      one.disconnect();
    }
  });
  execFileSync(binary(), ["fence", "install", "redis", "--url", url], { stdio: "ignore" });
  return url;
}

/** An S3 of moto. */
export async function s3(t: Scope): Promise<string> {
  const path = process.env["PALISADE_MOTO"] ?? join(ROOT, "target/clients/python/bin/moto_server");
  const program = found(path, "run clients/check, which installs moto, or set PALISADE_MOTO");
  const port = await freePort();
  const child = start(t, program, ["-H", "127.0.0.1", "-p", String(port)]);
  const url = `http://127.0.0.1:${port}`;
  await ready(child, async () => {
    await (await fetch(url)).arrayBuffer();
  });
  return url;
}

async function ready(child: ChildProcess, isReady: () => Promise<void>): Promise<void> {
  const end = performance.now() + 60_000;
  for (;;) {
    try {
      await isReady();
      return;
    } catch (error) {
      assert.ok(child.exitCode === null, `${child.spawnfile} ended with ${String(child.exitCode)}`);
      assert.ok(performance.now() < end, `${child.spawnfile} does not answer: ${String(error)}`);
      await sleep(50); // real time: asked again, up to a deadline
    }
  }
}

/** Listens on a free port until the end of the test. */
export async function listening(t: Scope, server: Server | HttpServer): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    if ("closeAllConnections" in server) {
      server.closeAllConnections();
    }
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as { port: number }).port}`;
}

async function freePort(): Promise<number> {
  const taken = createServer().listen(0, "127.0.0.1");
  await once(taken, "listening");
  const address = taken.address();
  taken.close();
  assert.ok(typeof address === "object" && address !== null);
  return address.port;
}

/** Waits until something is so. */
export async function until(isSo: () => Promise<boolean> | boolean): Promise<void> {
  for (const end = performance.now() + 60_000; !(await isSo());) {
    assert.ok(performance.now() < end, "it never became so");
    await sleep(5); // real time: asked again, up to a deadline
  }
}

let names = 0;
export function unique(name: string): string {
  names += 1;
  return `${name}-${process.pid}-${names}`;
}
