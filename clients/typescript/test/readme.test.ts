/** Every example of the README: the first one as a reader runs it, the others on real servers. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";

import { CreateBucketCommand, S3Client } from "@aws-sdk/client-s3";
import { Redis } from "ioredis";
import pg from "pg";

import { Client } from "../src/index.js";
import { addOrder, follow, pay, presentSigned, report, takeApples, withoutServer } from "./examples.js";
import { binary, folder, palisade, postgres, redis, ROOT, s3, serve, served } from "./servers.js";

const PACKAGE = join(ROOT, "clients/typescript");
const blocks = [...readFileSync(join(PACKAGE, "README.md"), "utf8").matchAll(/^```(\w+)\n(.*?)^```/gms)];
const [shell = ""] = blocks.filter(([, language]) => language === "sh").map(([, , text]) => text ?? "");
const examples = blocks.filter(([, language]) => language === "ts").map(([, , text]) => text ?? "");

test("from npm install to a fenced write, in a folder of its own", async (t) => {
  const [build, install, fence] = shell.trim().split("\n");
  // clients/check has run the first command; the second one is run from here, so that `..` is a checkout.
  assert.equal(build, "npm ci --prefix ../palisade/clients/typescript");
  const place = folder();
  symlinkSync(ROOT, join(place, "palisade"));
  const project = join(place, "shop");
  mkdirSync(project);
  writeFileSync(join(project, "package.json"), '{ "type": "module" }');
  const [npm, ...given] = install?.split(" ") ?? [];
  assert.deepEqual([npm, ...given], ["npm", "install", "../palisade/clients/typescript", "pg"]);
  // Without scripts: npm would build the checkout again, while other tests read what is built.
  const flags = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"];
  const built = () => statSync(join(PACKAGE, "dist/index.js")).mtimeMs;
  const before = built();
  execFileSync("npm", [...given, ...flags], { cwd: project, stdio: "ignore" });
  assert.equal(built(), before);

  const url = await postgres(t);
  const db = new pg.Client(url);
  await db.connect();
  await db.query("CREATE TABLE orders (total int)");
  await db.query("INSERT INTO orders VALUES (41)");
  const [program, ...args] = fence?.split(" ") ?? [];
  assert.equal(program, "palisade");
  const { PATH } = process.env;
  execFileSync(binary(), args, { env: { PATH, PALISADE_FENCE_URL: url }, stdio: "ignore" });

  const example = examples[0] ?? "";
  const lines = (shell + example).split("\n").filter((line) => line.trim() !== "");
  // The first line builds the checkout; the count begins with `npm install`.
  assert.ok(lines.length - 1 < 10, `${lines.length - 1} lines`);
  // `Pool` and the end of the program are the reader's own.
  const whole = `import { Pool } from "pg";
    ${example}
    const [client, pool] = [new Client(), new Pool({ connectionString: process.env.SHOP_URL })];
    await order(client, pool);
    await pool.end();
    await client.close();`;
  const javascript = whole.replace("(client: Client, pool: Pool)", "(client, pool)");
  assert.notEqual(javascript, whole);
  writeFileSync(join(project, "main.js"), javascript);
  const server = await serve(t);
  execFileSync(process.execPath, ["main.js"], { cwd: project, env: { PATH, PALISADE_URL: server.url, SHOP_URL: url } });
  assert.deepEqual((await db.query("SELECT total FROM orders")).rows, [{ total: 42 }]);
  const { rows } = await db.query("SELECT token, lock FROM palisade_fence WHERE resource = 'orders'");
  assert.deepEqual(rows, [{ token: "1", lock: "orders" }]);

  // It is typed: the compiler finds every entry point of the package, and the wrong argument.
  const entries = ["", "/fence", "/fence/http", "/fence/ioredis", "/fence/pg", "/fence/s3", "/fence/sequencer"];
  entries.push("/fence/sqlite", "/testing");
  const check = entries
    .map((entry, number) => `import * as n${number} from "palisade-client${entry}"; void n${number};`)
    .join("\n");
  writeFileSync(join(project, "main.ts"), `import type { Pool } from "pg";\n${example}${check}`);
  writeFileSync(join(project, "wrong.ts"), example.replace('"orders", {', "7, {"));
  symlinkSync(join(PACKAGE, "node_modules/@types"), join(project, "node_modules/@types"));
  const compile = (file: string): void => {
    const flags = [
      "--noEmit",
      "--strict",
      "--module",
      "nodenext",
      "--target",
      "es2022",
      "--lib",
      "es2023,esnext.disposable",
    ];
    execFileSync(join(PACKAGE, "node_modules/.bin/tsc"), [...flags, "--skipLibCheck", file], {
      cwd: project,
      stdio: "pipe",
    });
  };
  compile("main.ts");
  assert.throws(() => {
    compile("wrong.ts");
  });
  await db.end();
});

test("the other examples are those that run here", () => {
  const text = readFileSync(join(PACKAGE, "test/examples.ts"), "utf8");
  assert.ok(examples.length >= 6);
  for (const example of examples.slice(1)) {
    assert.ok(text.includes(example), example);
  }
});

test("the other examples run", async (t) => {
  const { client, server } = await served(t);
  process.env["PALISADE_URL"] = server.url;
  const parts: number[] = [];
  await report((part, signal) => {
    parts.push(part);
    assert.ok(!signal.aborted);
    return Promise.resolve();
  });
  assert.deepEqual(parts, [1, 2, 3]);
  await client.withLock("invoices", {}, (lease) => presentSigned(server.url, lease));

  await withoutServer();
  await client.withLock("db-primary", { clientId: "node-1", metadata: "10.0.0.7:5432" }, async () => {
    const observer = new Client();
    const said: string[] = [];
    const log = (text: string): void => {
      said.push(text);
      void observer.close();
    };
    await assert.rejects(follow(observer, { log }), { message: /the client is closed/ });
    assert.deepEqual(said, ["node-1 leads at 10.0.0.7:5432"]);
  });

  const cache = new Redis(await redis(t));
  await client.withLock("stock", {}, (lease) => takeApples(cache, lease));
  assert.equal(await cache.get("{stock}:apples"), "7");
  cache.disconnect();

  const credentials = { accessKeyId: "test", secretAccessKey: "test" };
  const store = new S3Client({ endpoint: await s3(t), region: "us-east-1", forcePathStyle: true, credentials });
  await store.send(new CreateBucketCommand({ Bucket: "bucket" }));
  await client.withLock("orders", {}, (lease) => addOrder(store, lease));

  let paid = 0;
  const service = http.createServer((request, response) => {
    paid += Number(request.method === "PUT");
    response.end("{}");
  });
  service.listen(0, "127.0.0.1");
  await once(service, "listening");
  const upstream = `http://127.0.0.1:${(service.address() as AddressInfo).port}`;
  const free = "127.0.0.1:0";
  const data = join(folder(), "gateway");
  const args = ["--listen", free, "--admin", free, "--upstream", upstream, "--data", data];
  const { url } = await palisade(t, "gateway", ...args);
  await client.withLock("/", {}, (lease) => pay(`${url}/orders/17`, lease));
  assert.equal(paid, 1);
  service.closeAllConnections();
  service.close();
});
