/** Tests that run against the program, so that what they show is true, and against the double, so that it does the same. */
import { test, type TestContext } from "node:test";

import type { Client, ClientOptions } from "../src/index.js";
import { MemoryServer } from "../src/testing/index.js";
import { connect, serve } from "./servers.js";

/** A client with a server of its own. */
export interface Served {
  readonly client: Client;
  /** Another client of the same server. */
  readonly again: (options?: ClientOptions) => Client;
  /** From stop to resume the server answers nothing. */
  readonly stop: () => void;
  readonly resume: () => void;
}

async function program(t: TestContext): Promise<Served> {
  const server = await serve(t);
  const again = (options: ClientOptions = {}): Client => connect(t, { ...options, urls: server.url });
  return {
    client: again(),
    again,
    stop: () => {
      server.process.kill("SIGSTOP");
    },
    resume: () => {
      server.process.kill("SIGCONT");
    },
  };
}

function double(t: TestContext): Served {
  const server = new MemoryServer();
  const again = (options: ClientOptions = {}): Client => {
    const client = server.client(options);
    t.after(() => client.close());
    return client;
  };
  return {
    client: again(),
    again,
    stop: () => {
      server.stall();
    },
    resume: () => {
      server.up();
    },
  };
}

export function onBoth(name: string, run: (served: Served, t: TestContext) => Promise<void>): void {
  test(`${name} (program)`, async (t) => run(await program(t), t));
  test(`${name} (double)`, (t) => run(double(t), t));
}
