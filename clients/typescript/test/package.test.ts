/** The package as npm makes it, in a folder that has nothing else. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { join } from "node:path";
import { existsSync, symlinkSync, writeFileSync } from "node:fs";

import { folder, ROOT } from "./servers.js";

test("the package installs into an empty folder and has what it exports", () => {
  const here = folder();
  const run = (program: string, ...args: string[]): string =>
    execFileSync(program, args, { cwd: here, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
  const packed = run("npm", "pack", "--silent", "--ignore-scripts", join(ROOT, "clients/typescript")).trim();
  writeFileSync(join(here, "package.json"), '{ "private": true, "type": "module" }');
  // Offline: the client itself depends on nothing.
  run("npm", "install", "--silent", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", join(here, packed));
  writeFileSync(
    join(here, "use.js"),
    `import { Client, slotKey } from "palisade-client";
     import { Stale } from "palisade-client/fence";
     import { fencedFetch } from "palisade-client/fence/http";
     import { transact } from "palisade-client/fence/sqlite";
     import { MemoryServer } from "palisade-client/testing";
     console.log(slotKey("gpu", 2), typeof Client, typeof Stale, typeof fencedFetch, typeof transact);
     const lease = await new MemoryServer().client().acquire("orders");
     console.log(lease.token, await lease.release());`,
  );
  assert.equal(run("node", "use.js"), "gpu~2 function function function function\n1 released\n");
  assert.ok(existsSync(join(here, "node_modules/palisade-client/dist/index.d.ts")));

  // Its declarations are whole: the compiler looks into them, too, where a project does not turn that off.
  const modules = join(ROOT, "clients/typescript/node_modules");
  symlinkSync(join(modules, "@types"), join(here, "node_modules/@types"));
  const entries = ["", "/fence", "/fence/http", "/fence/sequencer", "/fence/sqlite", "/testing"];
  writeFileSync(join(here, "use.ts"), entries.map((entry) => `import "palisade-client${entry}";`).join("\n"));
  const flags = "--noEmit --strict --module nodenext --target es2022 --lib es2023,esnext.disposable --types node";
  run(process.execPath, join(modules, "typescript/bin/tsc"), ...flags.split(" "), "use.ts");
});
