/** The repository's test vectors, in the terms of this client. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

import type { Told } from "../src/fence/errors.js";
import type { Pass } from "../src/fence/holder.js";
import type { FenceRecord, Operation, Rule } from "../src/fence/rule.js";
import { ROOT } from "./servers.js";

type Text = Record<string, unknown>;

export interface Case {
  readonly text: string;
  readonly rule: Rule;
  readonly record: FenceRecord;
  readonly pass: Pass | undefined;
  readonly operation: Operation;
  readonly verdict: string;
  readonly told: Told;
  /**
   * The record that is stored afterwards: the one before, if the vector has no `next`.
   */
  readonly next: FenceRecord;
}

export function vectors(): Case[] {
  const cases = JSON.parse(readFileSync(join(ROOT, "vectors/fence.json"), "utf8")) as Text[];
  return cases.map((one) => {
    const asked = one["operation"] as Text;
    const before = record(one["record"] as Text);
    const { highest, last, bound, authority, lock } = one as Told;
    return {
      text: JSON.stringify(one),
      rule: { strict: one["mode"] === "strict", maxJump: (one["max_jump"] as number | undefined) ?? null },
      record: before,
      pass: asked["token"] === undefined ? undefined : (asked as unknown as Pass),
      operation: {
        kind: asked["kind"] as Operation["kind"],
        sequence: asked["sequence"] as number | undefined,
        digest: digest(asked["digest"]),
      },
      verdict: one["verdict"] as string,
      told: { highest, last, bound, authority, lock },
      next: one["next"] === undefined ? before : record(one["next"] as Text),
    };
  });
}

function record(value: Text): FenceRecord {
  const result = value["result"] as string | undefined;
  return {
    authority: value["authority"] as string | undefined,
    lock: value["lock"] as string | undefined,
    token: value["token"] as number | undefined,
    written: value["written"] === true,
    sequence: value["sequence"] as number | undefined,
    digest: digest(value["digest"]),
    result: result === undefined ? undefined : Uint8Array.from(Buffer.from(result)),
  };
}

function digest(value: unknown): bigint | undefined {
  return typeof value === "string" ? BigInt(value) : undefined;
}
