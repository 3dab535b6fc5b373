/** Certificates, also such that are replaced while a client runs: real servers with TLS, of one CA and then of another. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, readFileSync, renameSync } from "node:fs";
import https from "node:https";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";

import { Client, Invalid, Unavailable, UnknownOutcome, type TlsOptions } from "../src/index.js";
import { binary, connect, folder, serve, type Running, type Scope } from "./servers.js";

/** A CA with a certificate for a server and one for a client. */
function authority(): string {
  const place = folder();
  for (const subject of ["127.0.0.1", "me"]) {
    execFileSync(binary(), ["auth", "cert", "--dir", place, subject], { stdio: "ignore" });
  }
  return place;
}

/** A server that asks for the client's certificate, too. */
async function secured(t: Scope, ca: string): Promise<Running> {
  const own = ["--tls-cert", join(ca, "127.0.0.1.pem"), "--tls-key", join(ca, "127.0.0.1.key")];
  return serve(t, ...own, "--tls-client-ca", join(ca, "ca.pem"));
}

/** The files of a client that reads them once. */
function read(place: string): TlsOptions {
  const [ca, cert, key] = ["ca.pem", "me.pem", "me.key"].map((name) => readFileSync(join(place, name)));
  return { ca, cert, key };
}

function files(place: string): TlsOptions {
  return { caFile: join(place, "ca.pem"), certFile: join(place, "me.pem"), keyFile: join(place, "me.key") };
}

test("certificates: both sides prove who they are", async (t) => {
  const place = authority();
  const server = await secured(t, place);
  assert.match(server.url, /^https:/);
  for (const tls of [read(place), files(place)]) {
    const client = connect(t, { urls: server.url, tls });
    await (await client.acquire("orders")).release();
  }
  const { ca, cert, key } = read(place);
  for (const tls of [{ ca }, { cert, key }]) {
    const stranger = connect(t, { urls: server.url, tls, patienceMs: 1_000 });
    await assert.rejects(
      stranger.acquire("orders", { waitMs: 0 }),
      (error) => error instanceof Unavailable || error instanceof UnknownOutcome,
    );
  }
  // A certificate that nobody vouches for: nothing was sent.
  const suspicious = connect(t, { urls: server.url, tls: { cert, key }, patienceMs: 1_000 });
  await assert.rejects(suspicious.acquire("orders", { waitMs: 0 }), Unavailable);
});

test("a new connection has what is in the files", async (t) => {
  const [old, fresh, mine] = [authority(), authority(), folder()];
  // As Kubernetes does: the new file takes the old one's place.
  const take = (from: string, ...names: string[]): void => {
    for (const name of names) {
      copyFileSync(join(from, name), join(mine, "next"));
      renameSync(join(mine, "next"), join(mine, name));
    }
  };
  const end = async ({ process }: Running): Promise<void> => {
    process.kill("SIGKILL");
    await once(process, "exit");
  };
  take(old, "ca.pem", "me.pem", "me.key");
  const [first, second, third] = await Promise.all([secured(t, old), secured(t, old), secured(t, fresh)]);
  const urls = [first.url, second.url, third.url];
  const client = connect(t, { urls, tls: files(mine) });
  const readsOnce = connect(t, { urls, tls: read(mine), patienceMs: 1_000 });
  assert.equal((await client.status()).authority, (await readsOnce.status()).authority);
  // One of two files is replaced: the old pair stays in use.
  take(fresh, "me.pem");
  await end(first);
  const { authority: oldOne } = await client.status();
  assert.equal((await readsOnce.status()).authority, oldOne);
  take(fresh, "me.key", "ca.pem");
  await end(second);
  assert.notEqual((await client.status()).authority, oldOne);
  // A control: a client that reads its files once is refused, and trusts nobody there.
  await assert.rejects(readsOnce.status());
});

/** A server that knows who a connection belongs to for its first answers only, as if its certificate were over. */
async function forgetful(t: Scope, knows: number): Promise<{ urls: string; tls: TlsOptions; asked: string[] }> {
  const ca = authority();
  const [cert, key] = [readFileSync(join(ca, "127.0.0.1.pem")), readFileSync(join(ca, "127.0.0.1.key"))];
  const answers = new WeakMap<object, number>();
  const asked: string[] = [];
  const server = https.createServer({ cert, key }, (request, response) => {
    const before = answers.get(request.socket) ?? 0;
    answers.set(request.socket, before + 1);
    asked.push(request.url ?? "");
    response.setHeader("Palisade-Nonce", request.headers["palisade-nonce"] ?? "");
    if (before >= knows) {
      response.statusCode = 401;
      response.end('{"error": {"code": "unauthenticated", "message": "the client certificate has expired"}}');
    } else if (request.url?.startsWith("/v1/watch") === true) {
      response.end('id: 7\nevent: missed\ndata: {"missed": 2}\n\n');
    } else {
      response.end('{"resource_id": "orders", "holder": null, "waiters": 0}');
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const urls = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { urls, tls: { caFile: join(ca, "ca.pem") }, asked };
}

test("a connection whose certificate is over is replaced", async (t) => {
  const { urls, tls, asked } = await forgetful(t, 1);
  const client = connect(t, { urls, tls });
  await client.show("orders");
  await client.show("orders");
  for await (const event of client.watch()) {
    assert.equal(event.kind, "missed");
    break;
  }
  const shown = "/v1/locks/orders";
  assert.deepEqual(asked, [shown, shown, shown, "/v1/watch?prefix=", "/v1/watch?prefix="]);
  // A control: a caller that is unknown on a new connection, too, gets the error after one more attempt.
  const stranger = await forgetful(t, 0);
  const unknown = connect(t, { urls: stranger.urls, tls: stranger.tls });
  await assert.rejects(unknown.show("orders"), { name: "Invalid", code: "unauthenticated", message: /expired/ });
  assert.deepEqual(stranger.asked, [shown, shown]);
});

test("files that cannot be used are named", () => {
  const ca = authority();
  const cases: [TlsOptions, RegExp][] = [
    [{ caFile: join(ca, "nobody.pem") }, /nobody\.pem/],
    [{ certFile: join(ca, "me.pem"), keyFile: join(ca, "127.0.0.1.key") }, /mismatch/],
    [{ ca: "a", caFile: "b" }, /ca and caFile/],
  ];
  for (const [tls, says] of cases) {
    assert.throws(() => new Client({ tls }), { name: "Invalid", message: says });
  }
  assert.throws(() => new Client({ tls: { keyFile: 5 } as unknown as TlsOptions }), {
    name: "TypeError",
    message: /tls\.keyFile is the path of a file, and not 5/,
  });
  assert.throws(() => new Client({ tls: { ca: "no certificate", cert: "none" } }), Invalid);
});
