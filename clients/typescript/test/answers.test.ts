/** Answers of other requests, and addresses at which nothing answers as it should. */
import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { suite, test } from "node:test";

import { Client, Invalid, UnknownOutcome } from "../src/index.js";
import { Fault } from "../src/reply.js";
import { Backoff } from "../src/retry.js";
import { connect, listening, serve, until, type Scope } from "./servers.js";

/** An answer on its way. */
interface Told {
  nonce: string | undefined;
  status: number;
  body: Record<string, unknown>;
}

type Lie = (answer: Told, asked: Record<string, unknown>) => void;

/** A server that grants everything, and may change an answer on its way. */
class Liar {
  url = "";
  lie: Lie = () => undefined;
  readonly connections = new Set<number | undefined>();
  readonly verbs: string[] = [];
  readonly #nonces = new Set<string | undefined>();

  static async start(t: Scope): Promise<Liar> {
    const liar = new Liar();
    const server = http.createServer((request, response) => {
      const parts: Buffer[] = [];
      request.on("data", (part: Buffer) => parts.push(part));
      request.on("end", () => {
        liar.#answer(request, response, Buffer.concat(parts).toString());
      });
    });
    liar.url = await listening(t, server);
    return liar;
  }

  #answer(request: http.IncomingMessage, response: http.ServerResponse, text: string): void {
    const path = (request.url ?? "").split("/");
    const verb = path.at(-1) ?? "";
    const about = { resource_id: path[3], authority: "a", fencing_token: 7 };
    const bodies: Record<string, object> = {
      acquire: { ...about, lock_acquired: true, lock_token: "k", valid_for_ms: 30_000, waited_ms: 0 },
      renew: { ...about, valid_for_ms: 30_000 },
      release: { ...about, released: true },
      abandon: { request_id: path[3] },
    };
    const nonce = request.headers["palisade-nonce"] as string | undefined;
    const told: Told = { nonce, status: 200, body: { ...(bodies[verb] ?? { ...about, waiters: 0 }) } };
    if (this.#nonces.has(nonce)) {
      refuse(told, 400, "invalid");
    }
    this.#nonces.add(nonce);
    this.connections.add(request.socket.remotePort);
    this.verbs.push(verb);
    this.lie(told, (text === "" ? {} : JSON.parse(text)) as Record<string, unknown>);
    const headers = told.nonce === undefined ? {} : { "Palisade-Nonce": told.nonce };
    response.writeHead(told.status, headers).end(JSON.stringify(told.body));
  }
}

function field(name: string, value: unknown): Lie {
  return (answer) => {
    answer.body[name] = value;
  };
}

function refuse(answer: Told, status: number, code: string, more: object = {}): void {
  answer.status = status;
  answer.body = { error: { code, message: "m", ...more } };
}

const grants: Record<string, Lie> = {
  "another lock": field("resource_id", "other"),
  "no lock": field("resource_id", undefined),
  "a renewal": field("lock_acquired", undefined),
  "a denial": field("lock_acquired", false),
  "no nonce": (answer) => (answer.nonce = undefined),
  "another nonce": (answer) => (answer.nonce = "AAAAAAAAAAAAAAAAAAAAAA"),
  "a grant that waits": (answer) => (answer.status = 202),
  "a redirect": (answer) => {
    answer.status = 302;
    answer.nonce = undefined;
  },
  "another denial": (answer) => {
    refuse(answer, 409, "held");
    answer.body["resource_id"] = "other";
  },
  "a proxy's refusal": (answer) => {
    refuse(answer, 403, "forbidden");
    answer.nonce = undefined;
  },
};

// At the same time, because each is repeated for as long as the client's patience lasts.
suite("a grant of another request is not believed", { concurrency: true }, () => {
  for (const [name, lie] of Object.entries(grants)) {
    test(name, async (t) => {
      const liar = await Liar.start(t);
      // Long enough that the first answer comes in time on a busy machine.
      const client = connect(t, { urls: liar.url, patienceMs: 2_000 });
      liar.lie = lie;
      await assert.rejects(client.acquire("orders", { waitMs: 0 }), UnknownOutcome);
      // A control: without a lie it is granted.
      liar.lie = () => undefined;
      const lease = await client.acquire("orders", { waitMs: 0 });
      assert.equal(lease.token, 7);
      await lease.release();
    });
  }
});

suite("a stray answer ends its connection", () => {
  const lies: Record<string, Lie> = { nonce: (answer) => (answer.nonce = "late"), lock: field("resource_id", "other") };
  for (const [name, lie] of Object.entries(lies)) {
    test(`by its ${name}`, async (t) => {
      const liar = await Liar.start(t);
      const client = connect(t, { urls: liar.url });
      liar.lie = (answer, asked) => {
        if (liar.verbs.length <= 3) {
          lie(answer, asked);
        }
      };
      assert.equal((await client.show("orders")).lock, "orders");
      // A control: a good answer keeps its connection.
      await client.show("orders");
      assert.deepEqual([liar.verbs.length, liar.connections.size], [5, 4]);
    });
  }
});

let before: string | undefined = "first";
const renewals: Record<string, Lie> = {
  "another lock": field("resource_id", "other"),
  "another token": field("fencing_token", 8),
  "another authority": field("authority", "b"),
  "no authority": field("authority", undefined),
  "a grant": field("lock_acquired", true),
  "a release": field("released", true),
  "no nonce": (answer) => (answer.nonce = undefined),
  // Also the answers to the same lease's earlier requests.
  "late by one": (answer) => ([before, answer.nonce] = [answer.nonce, before]),
  "the end of another grant": (answer) => {
    refuse(answer, 410, "expired", { fencing_token: 8 });
  },
};

/** There is time for two renewals, also on a machine that does much else. */
const TTL_MS = 3_000;

suite("a renewal of another request does not move the deadline", { concurrency: true }, () => {
  for (const [name, lie] of Object.entries(renewals)) {
    test(name, async (t) => {
      const liar = await Liar.start(t);
      const client = connect(t, { urls: liar.url, patienceMs: 500 });
      liar.lie = field("valid_for_ms", TTL_MS);
      const lease = await client.acquire("orders", { ttlMs: TTL_MS });
      liar.lie = lie;
      assert.equal((await lease.lost).code, "expired");
      assert.ok(liar.verbs.filter((verb) => verb === "renew").length >= 2);
    });
  }
  test("a control: its own does", async (t) => {
    const liar = await Liar.start(t);
    const client = connect(t, { urls: liar.url });
    liar.lie = field("valid_for_ms", TTL_MS);
    const lease = await client.acquire("orders", { ttlMs: TTL_MS });
    liar.lie = () => undefined;
    await until(() => {
      lease.check();
      return lease.remainingMs > 10_000;
    });
    await lease.release();
  });
});

test("a wait is polled: with the same request id, and less to wait", async (t) => {
  const liar = await Liar.start(t);
  const client = connect(t, { urls: liar.url });
  const asked: Record<string, unknown>[] = [];
  liar.lie = (answer, request) => {
    if ("wait_ms" in request && asked.push(request) < 4) {
      answer.status = 202;
      answer.body = { resource_id: "orders", lock_acquired: false, waiting: true };
    }
  };
  const lease = await client.acquire("orders", { waitMs: 60_000 });
  // Three answers that come at once are not asked for in a loop: 10 ms lie between them, by a clock with a grain of 10 ms.
  assert.ok(lease.waitedMs >= 20 && lease.waitedMs < 60_000, String(lease.waitedMs));
  // An address that did not answer yet may be dead.
  assert.deepEqual(
    asked.map((request) => request["poll_ms"]),
    [1_000, 10_000, 10_000, 10_000],
  );
  assert.equal(new Set(asked.map((request) => request["request_id"])).size, 1);
  assert.ok(Number(asked[3]?.["wait_ms"]) < Number(asked[0]?.["wait_ms"]));
  await lease.release();
});

type Serve = (connection: net.Socket) => void;

/** Takes everything and answers nothing. */
const silent: Serve = (connection) => connection.resume();

/** Sends the head of an answer and never its body. */
const halfOpen: Serve = (connection) => {
  connection.once("data", (request: Buffer) => {
    const nonce = /palisade-nonce: \S+/i.exec(request.toString())?.[0] ?? "";
    connection.write(`HTTP/1.1 200 OK\r\nContent-Length: 100\r\n${nonce}\r\n\r\n{`);
  });
};

/** Sends a byte at a time: each of them comes in time, and the answer never does. */
const slow: Serve = (connection) => {
  connection.resume();
  connection.write("HTTP/1.1 200 OK\r\nX-Long: ");
  // real time: its own slowness.
  const bytes = setInterval(() => connection.write("x"), 50);
  connection.on("close", () => {
    clearInterval(bytes);
  });
};

/** A stand-in for an address at which nothing answers as it should. */
async function address(t: Scope, serve: Serve): Promise<string> {
  const open = new Set<net.Socket>();
  const server = net.createServer((connection) => {
    open.add(connection);
    connection.on("error", () => undefined);
    serve(connection);
  });
  t.after(() => {
    for (const connection of open) {
      connection.destroy();
    }
  });
  return listening(t, server);
}

suite("an address that is silent is left in time", { concurrency: true }, () => {
  for (const [name, serving] of Object.entries({ silent, halfOpen, slow })) {
    for (const many of [1, 2]) {
      test(`${name}: ${many} of ${many + 1}`, async (t) => {
        const server = await serve(t);
        const urls = [await address(t, serving), await address(t, serving), server.url].slice(2 - many);
        const client = connect(t, { urls, patienceMs: 2_000 });
        // The control has no good address, and gives up when the wait and the patience are over. It is not closed, because
        // that would wait for its patience.
        const control = new Client({ urls: urls.slice(0, many), patienceMs: 2_000 });
        const over = new AbortController();
        const gaveUp = control.acquire("orders", { waitMs: 3_000, signal: over.signal }).then(
          () => undefined,
          () => undefined,
        );
        const lease = await Promise.race([client.acquire("orders", { waitMs: 3_000 }), gaveUp]);
        assert.ok(lease !== undefined, "the control gave up first");
        over.abort();
        await lease.release();
        await connect(t, { urls, patienceMs: 2_000 }).show("orders");
        if (serving === halfOpen) {
          return; // A stream that is open and silent is left after 45 s.
        }
        for await (const event of connect(t, { urls, patienceMs: 2_000 }).watch("", { after: 0 })) {
          assert.equal(event.kind, "granted");
          break;
        }
      });
    }
  }
});

test("an address with another program is left", async (t) => {
  const server = await serve(t);
  const programs: http.RequestListener[] = [
    (request, response) => response.writeHead(302, { Location: server.url + String(request.url) }).end(),
    (_, response) => response.writeHead(502).end("<html>Bad gateway</html>"),
    (request, response) =>
      response
        .writeHead(503, { "Palisade-Nonce": request.headers["palisade-nonce"] })
        .end('{"error": {"code": "unavailable", "message": "m"}}'),
  ];
  for (const program of programs) {
    const other = await listening(t, http.createServer(program));
    const lease = await connect(t, { urls: [other, server.url] }).acquire("orders");
    await lease.release();
    // A control: alone, it is reported.
    await assert.rejects(connect(t, { urls: other, patienceMs: 200 }).show("orders"));
  }
});

test("what JavaScript passes by mistake is refused, and named", async (t) => {
  const liar = await Liar.start(t);
  const client = connect(t, { urls: liar.url });
  const refused = async (call: (client: never) => unknown, says: RegExp): Promise<void> => {
    await assert.rejects(
      () => Promise.resolve(client as never).then(call),
      (error) => {
        assert.ok(error instanceof TypeError, String(error));
        assert.match(error.message, says);
        return true;
      },
    );
  };
  type Any = Record<string, (...given: unknown[]) => unknown>;
  const acquire =
    (...given: unknown[]) =>
    (one: Any) =>
      one["acquire"]?.(...given);
  await refused(acquire("x", { ttl: 10 }), /acquire has no option ttl: did you mean ttlMs\?/);
  await refused(acquire("x", { waitMS: 10 }), /did you mean waitMs\?/);
  await refused(acquire("x", { wait: 10 }), /did you mean waitMs\?/);
  await refused(acquire("x", { client_id: "a" }), /did you mean clientId\?/);
  await refused(acquire("x", { nonsense: 1 }), /has no option nonsense: there are ttlMs, /);
  await refused(acquire("x", 10_000), /takes an object of options \(ttlMs, .*\), and not 10000/);
  await refused(acquire("x", null), /and not null/);
  await refused(acquire("x", { shared: "yes" }), /shared is true or false, and not 'yes'/);
  await refused(acquire("x", { clientId: 7 }), /clientId is a text, and not 7/);
  await refused(acquire("x", { permits: 2 }), /permits is \{ count, of \}/);
  await refused(acquire("x", { permits: { count: 1, total: 2 } }), /permits is \{ count, of \}/);
  await refused(acquire("x", { signal: new AbortController() }), /signal is an AbortSignal/);
  await refused((one: Any) => one["tryAcquire"]?.("x", { ttl: 10 }), /tryAcquire has no option ttl/);
  await refused((one: Any) => one["withLock"]?.("x", () => 1), /withLock\(lock, options, work\)/);
  await refused((one: Any) => one["withLock"]?.("x", { ttl: 5 }, () => 1), /no option ttl/);
  await refused(
    (one: Any) => one["watch"]?.("x", { afterRevision: 5 }),
    /watch has no option afterRevision: did you mean after\?/,
  );
  await refused((one: Any) => one["watch"]?.("x", { after: "5" }), /after is '5'/);
  await refused(() => new Client({ url: liar.url } as object), /new Client has no option url: did you mean urls\?/);
  await refused(() => new Client(liar.url as never), /new Client takes an object of options/);
  assert.deepEqual(liar.verbs, []);
  await assert.rejects(client.acquire("x", { ttlMs: 10 }), Invalid);
  // A control, also with an option that is undefined.
  const lease = await client.acquire("x", { ttlMs: 10_000, waitMs: undefined as never });
  await refused(() => lease.upgrade({ wait: 5 } as object), /upgrade has no option wait: did you mean waitMs\?/);
  await refused(() => lease.downgrade({ ttlMs: 5 } as object), /downgrade has no option ttlMs/);
  await lease.release();
});

test("a client that is closed lets its leases announce their loss", async (t) => {
  const liar = await Liar.start(t);
  const client = new Client({ urls: liar.url, patienceMs: 500 });
  liar.lie = field("valid_for_ms", 400);
  const lease = await client.acquire("orders");
  await client.close();
  const [loss] = await Promise.all([lease.lost, once(lease.signal, "abort")]);
  assert.equal(loss.code, "expired");
  await assert.rejects(lease.release(), Invalid);
});

// The last attempt of a call has the least time, and may get none at all on a busy machine.
test("a silent attempt does not hide what another one heard", async () => {
  const says = async (...faults: Fault[]): Promise<string> => {
    const pauses = new Backoff();
    for (const fault of faults.slice(0, -1)) {
      await pauses.pause(fault);
    }
    Object.assign(pauses, { until: 0 });
    return await pauses.pause(faults.at(-1) as Fault).then(
      () => "nothing",
      (error: unknown) => (error as Error).message,
    );
  };
  for (const unknown of [false, true]) {
    const heard = ["heard first", "heard last"].map((why) => new Fault(why, unknown)) as [Fault, Fault];
    const silent = ["silent first", "silent last"].map((why) => new Fault(why, unknown, true)) as [Fault, Fault];
    assert.match(await says(...heard), /heard last/);
    assert.match(await says(...silent), /silent first/);
    assert.match(await says(heard[0], silent[0]), /heard first/);
    assert.match(await says(silent[0], heard[1]), /heard last/);
  }
  // An unknown outcome outweighs a certain failure.
  assert.match(await says(new Fault("silent", true, true), new Fault("heard", false)), /silent/);
});
