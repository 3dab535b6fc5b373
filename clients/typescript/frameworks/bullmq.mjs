/**
 * A worker of BullMQ whose job adds 1 to the row with the queue's name: in one transaction it reads, and in another it writes.
 * Called by test/frameworks/bullmq.test.ts, which stops the whole process in between. Of the queue "bare" it claims nothing.
 *
 *     node bullmq.mjs DATABASE REDIS QUEUE
 *     prints "go?" with the numbers of starts and of attempts, waits for a line, and prints a line of JSON
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { URL } from "node:url";

import { Worker } from "bullmq";
import { rejection } from "palisade-client/fence";
import pg from "pg";

import { processor } from "./page-bullmq.mjs";

const [database, redis, queue] = process.argv.slice(2);
const { hostname: host, port } = new URL(redis);
const pool = new pg.Pool({ connectionString: database });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const print = (line) => process.stdout.write(`${line}\n`);
const transaction = (work) => (queue === "bare" ? () => work(pool) : processor(pool, work));

async function add(job) {
  let total;
  await transaction(async (db) => {
    ({ total } = (await db.query("SELECT total FROM counters WHERE name = $1", [queue])).rows[0]);
  })(job);
  print(`go? ${job.attemptsStarted} ${job.attemptsMade}`);
  await lines.next();
  await transaction((db) => db.query("UPDATE counters SET total = $1 WHERE name = $2", [total + 1, queue]))(job);
}

const worker = new Worker(
  queue,
  async (job, _token, signal) => {
    try {
      await add(job);
      print(JSON.stringify({ done: true, aborted: signal?.aborted ?? false }));
    } catch (error) {
      const { code, token, highest } = rejection(error) ?? {};
      print(JSON.stringify({ error: error.constructor.name, rejection: { code, token, highest } }));
      throw error;
    }
  },
  // real time: as short as BullMQ's locks are in a test.
  { connection: { host, port: Number(port) }, lockDuration: 1_000, stalledInterval: 200, maxStalledCount: 5 },
);
worker.on("error", (error) => print(`error ${error.message}`));
