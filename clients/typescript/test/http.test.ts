/** The fence over HTTP, behind a real `palisade gateway`. */
import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";

import { Invalid, LeaseLost } from "../src/index.js";
import { CLAIM, fencedFetch, headers, numbered, throwIfRejected } from "../src/fence/http.js";
import { Rejected, Stale } from "../src/fence/index.js";
import { folder, palisade, served, type Scope } from "./servers.js";

/** An API that knows nothing of fences, one number, and a gateway before it. */
async function gateway(t: Scope): Promise<{ url: string; writes: () => number }> {
  let [total, writes] = ["0", 0];
  const api = http.createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      if (request.method === "PUT") {
        total = Buffer.concat(parts).toString();
        writes += 1;
      }
      response.end(total);
    });
  });
  api.listen(0, "127.0.0.1");
  await once(api, "listening");
  t.after(() => {
    api.closeAllConnections();
    api.close();
  });
  const upstream = `http://127.0.0.1:${(api.address() as AddressInfo).port}`;
  const data = join(folder(), "gateway");
  const free = "127.0.0.1:0";
  const args = ["gateway", "--listen", free, "--admin", free, "--upstream", upstream, "--data", data];
  return { url: `${(await palisade(t, ...args)).url}/orders`, writes: () => writes };
}

test("a newer holder shuts the older one out", async (t) => {
  const { url, writes } = await gateway(t);
  const [older, newer] = [fencedFetch(7), fencedFetch(8)];
  assert.equal((await throwIfRejected(await older(url, { method: "PUT", body: "1" }))).status, 200);
  await throwIfRejected(await newer(url, { method: "POST", headers: CLAIM }));
  const refused = await older(url, { method: "PUT", body: "2" });
  await assert.rejects(
    throwIfRejected(refused),
    (error) => error instanceof Stale && error.message.includes("token 7 is stale: 7 < 8"),
  );
  assert.match(await refused.text(), /stale/);
  assert.equal(await (await throwIfRejected(await newer(url))).text(), "1");
  assert.equal(writes(), 1);
});

test("a numbered write is carried out once", async (t) => {
  const { url, writes } = await gateway(t);
  const api = fencedFetch({ token: 7, authority: "authority", lock: "orders" });
  for (let time = 0; time < 2; time += 1) {
    await throwIfRejected(await api(url, { method: "PUT", body: "1", headers: numbered(1) }));
  }
  assert.equal(writes(), 1);
  const reused = await api(url, { method: "PUT", body: "2", headers: numbered(1) });
  await assert.rejects(
    throwIfRejected(reused),
    (error) => error instanceof Rejected && error.code === "sequence_reused" && error.last === 1,
  );
  assert.throws(() => numbered(-1), Invalid);
});

test("a lease that was lost sends nothing", async (t) => {
  const { url, writes } = await gateway(t);
  const { client } = await served(t);
  const lease = await client.acquire("/");
  const api = fencedFetch(lease);
  await throwIfRejected(await api(url, { method: "PUT", body: "1" }));
  await lease.release();
  await assert.rejects(api(url, { method: "PUT", body: "2" }), LeaseLost);
  assert.equal(writes(), 1);
});

test("the headers are those of the holder", () => {
  assert.deepEqual(headers(7), { "X-Fencing-Token": "7" });
  assert.deepEqual(headers({ token: 7, authority: "a", lock: "l" }), {
    "X-Fencing-Token": "7",
    "X-Fencing-Authority": "a",
    "X-Fencing-Lock": "l",
  });
});

test("other errors are the service's", async () => {
  for (const body of ['{"error": {"code": "no_such_order"}}', '{"error": "stale"}', "stale", ""]) {
    const answer = await throwIfRejected(new Response(body, { status: 409 }));
    assert.equal(await answer.text(), body);
  }
});
