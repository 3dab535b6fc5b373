// The usual lock over ioredis, commanded as the drivers of the holder suite are: node ioredis.cjs PORT
const { createInterface } = require("node:readline");
const { randomUUID } = require("node:crypto");
const { Redis } = require("ioredis");

const RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

async function main() {
  const client = new Redis(Number(process.argv[2]));
  client.defineCommand("free", { numberOfKeys: 1, lua: RELEASE });
  console.log(JSON.stringify({ event: "hello", client: "ioredis" }));
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, do: verb, lock, count } = JSON.parse(line);
    const before = process.hrtime.bigint();
    if (verb !== "pairs") throw new Error(`no command ${verb}`);
    for (let pair = 0; pair < count; pair++) {
      const value = randomUUID();
      if ((await client.set(lock, value, "PX", 15000, "NX")) !== "OK") throw new Error("not free");
      if ((await client.free(lock, value)) !== 1) throw new Error("not held");
    }
    console.log(JSON.stringify({ id, ok: true, took_ms: Number(process.hrtime.bigint() - before) / 1e6 }));
  }
  client.disconnect();
}

main();
