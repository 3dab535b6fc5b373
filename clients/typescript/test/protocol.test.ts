/**
 * The double answers every example of docs/reference/protocol.md, so a client sees no difference. The holder suite compares the
 * same examples with the program.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Authority } from "../src/testing/authority.js";
import { Wire } from "../src/testing/wire.js";
import { ROOT, until } from "./servers.js";

type Step = readonly [method: string, path: string, body: string];

interface Example {
  readonly line: number;
  readonly asked: Step;
  readonly status: number;
  readonly answer: string;
  readonly before: readonly Step[];
  readonly meanwhile: readonly Step[];
}

/** Values that differ from run to run, and the last ones are for people. */
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const FORMS: Readonly<Record<string, RegExp>> = {
  lock_token: /^[0-9a-f]{32}$/,
  authority: /^[0-9a-f]{32}$/,
  incarnation: /^[0-9a-f]{32}$/,
  acquired_at: INSTANT,
  time: INSTANT,
  version: /./,
  message: /./,
};
/** The double has no manual clock of its own. */
const NOT_OF_THE_DOUBLE = ["manual_clock"];

function examples(): Example[] {
  const lines = readFileSync(join(ROOT, "docs/reference/protocol.md"), "utf8").split("\n");
  const found: Example[] = [];
  let [before, meanwhile]: [Step[], Step[]] = [[], []];
  for (let at = 0; at < lines.length; at += 1) {
    const [, when, method = "", path = "", body = ""] =
      /^<!-- (run|while it waits): (\w+) (\S+)(?: (.*?))? -->$/.exec(lines[at]?.trim() ?? "") ?? [];
    if (when !== undefined) {
      (when === "run" ? before : meanwhile).push([method, path, body]);
    }
    if (lines[at] !== "```http") {
      continue;
    }
    const line = at + 1;
    const text: string[] = [];
    for (at += 1; lines[at] !== "```"; at += 1) {
      text.push(lines[at] ?? "");
    }
    const [asked = "", ...answered] = text.join("\n").split("\n\n");
    const [head = "", ...bodies] = asked.split("\n");
    const [status = "", ...answer] = answered.join("\n\n").split("\n");
    const [verb = "", target = ""] = head.split(" ");
    const made = { line, status: Number(status), answer: answer.join("\n"), before, meanwhile };
    found.push({ ...made, asked: [verb, target, bodies.join("\n")] });
    [before, meanwhile] = [[], []];
  }
  return found;
}

/** Sends the examples to a double whose clock stands still. */
class Runner {
  readonly authority = new Authority();
  readonly #wire = new Wire(this.authority);
  readonly #secrets = new Map<string, string>();
  #at = 1_000;

  constructor() {
    this.authority.now = () => this.#at;
  }

  async send([method, path, body]: Step): Promise<[number, string]> {
    let text = body;
    for (const [shown, real] of this.#secrets) {
      text = text.replaceAll(shown, real);
    }
    const asked = (text.trim() === "" ? {} : JSON.parse(text)) as Record<string, unknown>;
    if (path === "/v1/clock/advance") {
      this.#at += Number(asked["ms"]);
      this.authority.settle();
      this.authority.broadcast();
      return [200, "{}"];
    }
    const opened = this.#wire.open("", { method: method as "GET", path, body: asked });
    const { status, body: parts } = await opened.answer;
    let told = "";
    for await (const part of parts) {
      told += Buffer.from(part).toString();
      if (path.startsWith("/v1/watch") && told.split("\n\n").length > 2) {
        break;
      }
    }
    opened.destroy(new Error("the example is over"));
    return [status, told];
  }

  async #step(step: Step): Promise<void> {
    const [status, text] = await this.send(step);
    assert.equal(status, 200, `${step.join(" ")}: ${text}`);
  }

  async run({ asked, before, meanwhile }: Example): Promise<[number, string]> {
    for (const step of before) {
      await this.#step(step);
    }
    const answer = this.send(asked);
    if (meanwhile.length > 0) {
      await until(() => this.authority.queue.length > 0);
    }
    for (const step of meanwhile) {
      await this.#step(step);
    }
    return answer;
  }

  differences(at: string, shown: unknown, real: unknown): string[] {
    const name = at.split(".").at(-1) ?? "";
    const form = FORMS[name];
    if (form !== undefined) {
      if (name === "lock_token") {
        this.#secrets.set(String(shown), String(real));
      }
      return form.test(String(real)) ? [] : [`${at} is ${String(real)}`];
    }
    if (Array.isArray(shown) && Array.isArray(real) && shown.length === real.length) {
      return shown.flatMap((one, number) => this.differences(at, one, real[number]));
    }
    if (isObject(shown) && isObject(real)) {
      const keys = new Set([...Object.keys(shown), ...Object.keys(real)]);
      return [...keys].flatMap((key) => {
        if (key in shown && key in real) {
          return this.differences(`${at}.${key}`, shown[key], real[key]);
        }
        const where = key in shown ? "page" : "answer";
        return NOT_OF_THE_DOUBLE.includes(key) ? [] : [`${at}.${key} is only in the ${where}`];
      });
    }
    const [was, is] = [JSON.stringify(shown), JSON.stringify(real)];
    return was === is ? [] : [`${at} is ${is}, the page has ${was}`];
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The objects of an answer, and the lines around those of a watch. */
function objects(path: string, text: string): unknown[] {
  const lines = path.startsWith("/v1/watch") ? text.trim().split("\n") : [`data: ${text.replaceAll("\n", " ")}`];
  return lines.map((line) => (line.startsWith("data: ") ? (JSON.parse(line.slice(6)) as unknown) : line));
}

async function compared(all: readonly Example[]): Promise<string[]> {
  const runner = new Runner();
  const found: string[] = [];
  for (const one of all) {
    const [status, text] = await runner.run(one);
    const [, path] = one.asked;
    const differences =
      status === one.status
        ? runner.differences("", objects(path, one.answer), objects(path, text))
        : [`status ${status}, the page has ${one.status}: ${text}`];
    found.push(...differences.map((difference) => `protocol.md:${one.line}: ${difference}`));
  }
  return found;
}

test("the double answers the examples of the protocol", async () => {
  const all = examples();
  assert.ok(all.length >= 15, `${all.length} examples`);
  assert.deepEqual(await compared(all), []);
});

test("a control: an answer that the page does not have is found", async () => {
  const all = examples().map((one) => ({
    ...one,
    answer: one.answer.replace('"valid_for_ms": 10000', '"valid_for_ms": 9999'),
  }));
  assert.ok((await compared(all)).some((found) => found.includes("valid_for_ms is 10000, the page has 9999")));
});
