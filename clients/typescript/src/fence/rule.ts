/**
 * The decision of every fence, without I/O: the stored record, the presented operation, and the answer.
 *
 * The repository's `vectors/fence.json` has the same decision as data; a test compares the two. Carry an admitted
 * operation out and store the next record in one atomic, durable step, and only then answer.
 */
import { checkOptions } from "../options.js";
import { refused } from "../refusals.js";
import { Rejected, Stale } from "./errors.js";
import type { Pass } from "./holder.js";

/**
 * The default bound on how far a token may be above the highest one: the most by which a restore raises the token
 * counter until 2032.
 */
export const MAX_JUMP = 2 ** 46;

/** The record that a resource stores. */
export interface FenceRecord {
  readonly authority: string | undefined;
  readonly lock: string | undefined;
  readonly token: number | undefined;
  /** Whether something was written under that token, and the highest number of such a write. */
  readonly written: boolean;
  readonly sequence: number | undefined;
  /** Of the write with that number: 0 – 2^64 − 1. */
  readonly digest: bigint | undefined;
  readonly result: Uint8Array | undefined;
}

/** Nothing was ever presented. */
export const EMPTY: FenceRecord = {
  authority: undefined,
  lock: undefined,
  token: undefined,
  written: false,
  sequence: undefined,
  digest: undefined,
  result: undefined,
};

/** A write may have a number and a digest of its content. */
export interface Operation {
  readonly kind: "claim" | "read" | "write";
  readonly sequence?: number | undefined;
  readonly digest?: bigint | undefined;
}

/** One rule for the whole life of a resource. */
export interface Rule {
  /** One write for each grant, for records that are published once. */
  readonly strict?: boolean;
  /** How far one token is believed; null believes any. The default is 2^46. */
  readonly maxJump?: number | null;
}

/** Throws `TypeError` for a value that is not a rule: a wrong name would silently mean the default. @internal */
export function checkRule(rule: Rule): void {
  checkOptions("the rule of a fence", rule, ["strict", "maxJump"]);
}

/** `record` is the record that the resource stores from now on. */
export interface Admitted {
  readonly record: FenceRecord;
  /** The write was carried out before, nothing changes, and the answer is the recorded result. */
  readonly repeat: boolean;
}

/** Throws `Rejected`, after which nothing may change. `pass` is undefined for a write by code without a token. */
export function decide(record: FenceRecord, pass: Pass | undefined, operation: Operation, rule: Rule = {}): Admitted {
  if (pass === undefined) {
    if (record.token !== undefined) {
      throw new Rejected("tokenless", { highest: record.token });
    }
    return { record, repeat: false };
  }
  own(record, pass);
  const highest = record.token ?? 0;
  if (pass.token < highest) {
    throw new Stale(pass.token, highest);
  }
  if (pass.token === highest) {
    if (operation.kind === "write" && record.written && isRepeat(record, operation, rule)) {
      return { record, repeat: true };
    }
    return { record: after(bound(record, pass), operation), repeat: false };
  }
  const maxJump = rule.maxJump === undefined ? MAX_JUMP : rule.maxJump;
  if (maxJump !== null && pass.token - highest > maxJump) {
    throw new Rejected("jump", { highest: record.token, bound: maxJump });
  }
  const raised = { ...EMPTY, token: pass.token, authority: record.authority, lock: record.lock };
  return { record: after(bound(raised, pass), operation), repeat: false };
}

/** As `decide`, for a resource whose refusals are reported. `helper`: what the caller called. @internal */
export function judged(
  [resource, helper]: readonly [string, string],
  ...[record, pass, operation, rule]: Parameters<typeof decide>
): Admitted {
  try {
    return decide(record, pass, operation, rule);
  } catch (error) {
    throw refused(pass, resource, helper, error);
  }
}

/** A token of another authority or lock is no number to compare. */
function own(record: FenceRecord, pass: Pass): void {
  if (record.authority !== undefined && pass.authority !== record.authority) {
    throw new Rejected("wrong_authority", { authority: record.authority });
  }
  if (record.lock !== undefined && pass.lock !== record.lock) {
    throw new Rejected("wrong_lock", { lock: record.lock });
  }
}

/** The same holder writes again: only its own earlier writes count. */
function isRepeat(record: FenceRecord, { sequence, digest }: Operation, rule: Rule): boolean {
  const last = record.sequence;
  if (sequence !== undefined && sequence === last) {
    if (digest !== record.digest) {
      throw new Rejected("sequence_reused", { last });
    }
    return true;
  }
  if (rule.strict === true) {
    throw new Rejected("already_written");
  }
  if (sequence !== undefined && last !== undefined && sequence < last) {
    throw new Rejected("sequence_stale", { last });
  }
  return false;
}

function bound(record: FenceRecord, pass: Pass): FenceRecord {
  return { ...record, authority: record.authority ?? pass.authority, lock: record.lock ?? pass.lock };
}

function after(record: FenceRecord, { kind, sequence, digest }: Operation): FenceRecord {
  if (kind !== "write") {
    return record;
  }
  return sequence === undefined
    ? { ...record, written: true }
    : { ...record, written: true, sequence, digest, result: undefined };
}
