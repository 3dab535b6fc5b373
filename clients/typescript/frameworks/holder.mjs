/**
 * A holder's work through a framework, told by lines on its input: it adds 1 to the row NAME, and waits at "go?" for the next
 * line. Called by test/frameworks/frameworks.test.ts, which stops the whole process there.
 *
 *     node holder.mjs FRAMEWORK DATABASE PALISADE      then lines: MODE NAME, "go", MODE NAME, "go" …
 *     answers: "go?", then a line of JSON: { done: true }, or the framework's error and the refusal that it contains
 */
import { createInterface } from "node:readline";
import process from "node:process";

import { Client } from "palisade-client";
import { rejection } from "palisade-client/fence";

const [framework, database, palisade] = process.argv.slice(2);
const { open } = await import(framework);
// When it goes on, the fence refuses it, and not a notice.
const client = new Client({ urls: palisade, notices: false });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const word = async () => (await lines.next()).value;
const print = (line) => process.stdout.write(`${line}\n`);
const go = async () => {
  print("go?");
  await word();
};

/** The row and the lock. */
let name;

const modes = {
  /** Two transactions: it is stopped in the second one, before it claims. */
  before: async (db, lease) => {
    const total = await db.transaction(async (tx) => {
      await tx.claim(name, lease);
      return tx.read(name);
    });
    await db.transaction(async (tx) => {
      await go();
      await tx.claim(name, lease);
      await tx.write(name, total + 1);
    });
  },
  /** One transaction: it is stopped with its claim. */
  inside: (db, lease) =>
    db.transaction(async (tx) => {
      // real time: as long as the transaction may be idle.
      await tx.claim(name, { ...lease, remainingMs: 2_000 });
      const total = await tx.read(name);
      await go();
      await tx.write(name, total + 1);
    }),
  /** The control: the same without a claim. */
  bare: (db) =>
    db.transaction(async (tx) => {
      const total = await tx.read(name);
      await go();
      await tx.write(name, total + 1);
    }),
  /** A write to a table with triggers, by code that forgot the claim. */
  forgotten: (db) => db.transaction((tx) => tx.write(name, 1, "orders")),
  /** The connection is ended from outside before the commit. */
  commit: (db, lease) =>
    db.transaction(async (tx) => {
      await tx.claim(name, lease);
      await tx.write(name, 7);
      await go();
    }),
  /** The refusal is caught inside the transaction, and the work goes on. */
  caught: (db, lease) =>
    db.transaction(async (tx) => {
      const stale = { token: 1, authority: lease.authority, lock: lease.lock };
      await tx.claim(name, stale).catch(() => undefined);
    }),
  /** The framework's example of docs/use/node.md. */
  page: async ({ native }) => {
    const { order } = await import(framework.replace(/[^/]+$/, (file) => `page-${file}`));
    await order(client, ...native);
  },
  /** All connections are in use. */
  exhausted: async (db) => {
    let free;
    const held = new Promise((resolve) => {
      free = resolve;
    });
    const both = [0, 1].map(() => db.transaction(() => held));
    // The second one fails, and the first one goes on after it.
    const failed = await Promise.race(both).catch((error) => error);
    free();
    await Promise.allSettled(both);
    throw failed;
  },
};

for (let line = await word(); line !== undefined; line = await word()) {
  const [mode, row] = line.split(" ");
  name = row;
  const db = await open(database, mode === "exhausted" ? { most: 1, waitMs: 200 } : {});
  try {
    await client.withLock(name, { ttlMs: 60_000, waitMs: 60_000 }, ({ token, authority, lock }) =>
      // Without the check of the lease, which would refuse what comes too late here: the database decides.
      modes[mode](db, { token, authority, lock }),
    );
    print('{ "done": true }');
  } catch (error) {
    const { code, message } = error;
    const refused = rejection(error);
    const { token, highest } = refused ?? {};
    const found = refused && { code: refused.code, token, highest };
    print(JSON.stringify({ error: error.constructor.name, code, message, rejection: found }));
  }
  await db.close();
}
await client.close();
