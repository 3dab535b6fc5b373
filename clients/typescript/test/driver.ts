/** The driver of the holder suite (clients/holder-suite/README.md). */
import { createInterface } from "node:readline";

import { earliest } from "../src/clock.js";
import { Client, LeaseLost, PalisadeError, type Lease, type Permits, type TlsOptions } from "../src/index.js";

interface Command {
  readonly id: number;
  readonly do: string;
  readonly urls: string[];
  readonly patience_ms: number;
  readonly tls?: { readonly ca: string; readonly cert: string; readonly key: string };
  readonly as: string;
  readonly lock: string;
  readonly also?: string[];
  readonly ttl_ms: number;
  readonly wait_ms: number;
  readonly client_id?: string;
  readonly mode?: string;
  readonly permits?: Permits;
  readonly lock_delay_ms?: number;
  readonly at_least_for_ms?: number;
  readonly grant: string;
  readonly target: number;
  readonly prefix: string;
  readonly token: number;
  readonly reason: string;
  readonly count: number;
  readonly notices?: boolean;
  readonly text: string;
}

type Answer = Record<string, unknown>;

let client: Client | undefined;
const leases = new Map<string, Lease>();
const acquires = new Map<number, AbortController>();

function say(message: Answer): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

function lease(name: string): Lease {
  const found = leases.get(name);
  if (found === undefined) {
    throw new Error(`there is no grant ${name}`);
  }
  return found;
}

function cancellable(command: Command): AbortSignal {
  const cancel = new AbortController();
  acquires.set(command.id, cancel);
  return cancel.signal;
}

async function acquire(command: Command): Promise<Answer> {
  const signal = cancellable(command);
  const made = await connected().acquire(command.also === undefined ? command.lock : [command.lock, ...command.also], {
    ttlMs: command.ttl_ms,
    waitMs: command.wait_ms,
    signal,
    shared: command.mode === "shared",
    update: command.mode === "update",
    ...(command.permits === undefined ? {} : { permits: command.permits }),
    lockDelayMs: command.lock_delay_ms ?? 0,
    atLeastForMs: command.at_least_for_ms ?? 0,
    ...(command.client_id === undefined ? {} : { clientId: command.client_id }),
  });
  return taken(command, made);
}

function taken(command: Command, made: Lease): Answer {
  leases.set(command.as, made);
  void made.lost.then(({ code, token }) => {
    say({ event: "lost", grant: command.as, token, code, at_ms: earliest() });
  });
  made.listen((notice) => {
    const { remainingMs: remaining_ms, ...more } = { remainingMs: undefined, ...notice };
    say({ event: "notice", grant: command.as, ...more, remaining_ms, at_ms: earliest() });
  });
  const before = earliest();
  const { token, grantId, authority, remainingMs, slots, slotKeys } = made;
  const named = { token, grant_id: grantId, slots, slot_keys: slotKeys, authority };
  return { ...named, before_ms: before, remaining_ms: remainingMs };
}

function identity({ tls }: Command): { tls?: TlsOptions } {
  return tls === undefined ? {} : { tls: { caFile: tls.ca, certFile: tls.cert, keyFile: tls.key } };
}

function connected(): Client {
  if (client === undefined) {
    throw new Error("connect comes first");
  }
  return client;
}

/** For proof/costs. */
async function timed(count: number, work: () => unknown): Promise<Answer> {
  const before = performance.now();
  for (let number = 0; number < count; number += 1) {
    const pending = work();
    if (pending instanceof Promise) {
      await pending;
    }
  }
  return { took_ms: performance.now() - before };
}

async function watch(command: Command): Promise<void> {
  for await (const event of connected().watch(command.prefix, { after: 0 })) {
    const token = event.kind === "missed" ? null : event.token;
    say({ event: "change", watch: command.as, kind: event.kind, revision: event.revision ?? null, token });
  }
}

async function carryOut(command: Command): Promise<Answer> {
  switch (command.do) {
    case "connect":
      client = new Client({
        urls: command.urls,
        patienceMs: command.patience_ms,
        notices: command.notices ?? false,
        ...identity(command),
      });
      return {};
    case "acquire":
      return acquire(command);
    case "downgrade":
      return taken(command, await lease(command.grant).downgrade());
    case "upgrade": {
      const signal = cancellable(command);
      return taken(command, await lease(command.grant).upgrade({ waitMs: command.wait_ms, signal }));
    }
    case "export":
      return { text: lease(command.grant).export() };
    case "adopt":
      return taken(command, await connected().adopt(command.text));
    case "cancel":
      acquires.get(command.target)?.abort();
      return {};
    case "check": {
      const before_ms = earliest();
      try {
        lease(command.grant).check();
        return { before_ms };
      } catch (error) {
        return { ok: false, before_ms, code: (error as LeaseLost).code };
      }
    }
    case "checks": {
      const held = lease(command.grant);
      return timed(command.count, () => {
        held.check();
      });
    }
    case "pairs":
      return timed(command.count, async () => (await connected().acquire(command.lock)).release());
    case "remaining":
      return { before_ms: earliest(), remaining_ms: lease(command.grant).remainingMs };
    case "wanted":
      return { waiters: lease(command.grant).wanted() };
    case "release": {
      const held = lease(command.grant);
      return { result: await ("lock" in command ? held.releasePart(command.lock) : held.release()) };
    }
    case "clock":
      return { now_ms: earliest() };
    case "show": {
      const { holder, waiters } = await connected().show(command.lock);
      return { token: holder?.token ?? null, waiters };
    }
    case "list": {
      const locks: string[] = [];
      for await (const { lock } of connected().list(command.prefix)) {
        locks.push(lock);
      }
      return { locks };
    }
    case "break":
      await connected().breakLock(command.lock, command.token, command.reason);
      return {};
    case "watch":
      void watch(command);
      return {};
    default:
      throw new Error(`an unknown command: ${command.do}`);
  }
}

async function answer(command: Command): Promise<void> {
  try {
    say({ id: command.id, ok: true, ...(await carryOut(command)) });
  } catch (error) {
    if (error instanceof PalisadeError) {
      say({ id: command.id, ok: false, code: error.code, message: error.message });
    } else if (acquires.get(command.id)?.signal.aborted === true) {
      say({ id: command.id, ok: false, code: "cancelled" });
    } else {
      throw error;
    }
  }
}

say({
  event: "hello",
  client: "typescript",
  wire: "http",
  can: [
    "addresses",
    "cancel",
    "delays",
    "handover",
    "list",
    "notices",
    "permits",
    "sets",
    "shared",
    "tls",
    "update",
    "watch",
  ],
});
createInterface({ input: process.stdin })
  .on("line", (line) => void answer(JSON.parse(line) as Command))
  .on("close", () => process.exit(0));
