/**
 * A worker of BullMQ whose job adds 1 to the row with the job's name: in one transaction it reads, and in another it writes.
 * Called by test/frameworks/bullmq.test.ts, which stops the whole process in between.
 *
 *     node bullmq.mjs DATABASE REDIS QUEUE fenced|bare
 *     prints "go?" with the attempt, waits for a line, and prints a line of JSON as holder.mjs does
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { URL } from "node:url";

import { Worker } from "bullmq";
import { rejection } from "palisade/fence";
import { transact } from "palisade/fence/pg";
import pg from "pg";

const [database, redis, queue, fenced] = process.argv.slice(2);
const { hostname: host, port } = new URL(redis);
const pool = new pg.Pool({ connectionString: database });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const print = (line) => process.stdout.write(`${line}\n`);

async function add(job, signal) {
  const resource = `bullmq:${job.queueName}:${job.id}`;
  const attempt = { token: job.attemptsStarted, authority: "bullmq", lock: resource };
  const transaction = (work) => (fenced === "fenced" ? transact(pool, resource, attempt, work) : work(pool));
  const total = await transaction(
    async (db) => (await db.query("SELECT total FROM counters WHERE name = $1", [queue])).rows[0].total,
  );
  print(`go? ${job.attemptsStarted} ${job.attemptsMade}`);
  await lines.next();
  await transaction((db) => db.query("UPDATE counters SET total = $1 WHERE name = $2", [total + 1, queue]));
  return signal?.aborted;
}

const worker = new Worker(
  queue,
  async (job, token, signal) => {
    try {
      print(JSON.stringify({ done: true, aborted: await add(job, signal) }));
    } catch (error) {
      const refused = rejection(error);
      print(JSON.stringify({ error: error.constructor.name, message: error.message, rejection: refused?.code }));
      throw error;
    }
  },
  { connection: { host, port: Number(port) }, lockDuration: 1_000, stalledInterval: 200, maxStalledCount: 5 },
);
worker.on("error", (error) => print(`error ${error.message}`));
