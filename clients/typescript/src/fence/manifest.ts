/** The fence as object stores and DynamoDB store it, and the manifest around it: docs/reference/fence-formats.md. No I/O here. */
import { UnknownOutcome } from "../errors.js";
import { asNumber, asObject, asToken, parsed, type Json } from "../reply.js";
import { EMPTY, type FenceRecord } from "./rule.js";

/** How many puts a fence remembers. */
export const MAX_IDS = 64;

export interface StoredFence {
  readonly record: FenceRecord;
  /** Of the last puts, newest last: a writer that finds its own knows that its put took effect. */
  readonly ids: readonly string[];
}

export interface Manifest extends StoredFence {
  /** For each key the names of its parts. */
  readonly keys: ReadonlyMap<string, readonly string[]>;
}

export const NO_MANIFEST: Manifest = { record: EMPTY, ids: [], keys: new Map() };

export function encode({ keys, ...fence }: Manifest): string {
  const sorted = [...keys].sort(([one], [other]) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
  const named = sorted.map(([key, parts]) => `${JSON.stringify(key)}:${JSON.stringify(parts)}`).join();
  return `{"fence":${encodeFence(fence)},"keys":{${named}}}`;
}

export function encodeFence({ record, ids }: StoredFence): string {
  const { authority, lock, token, written, sequence, digest, result } = record;
  const recorded = `{"digest":${digest === undefined ? "null" : String(BigInt.asIntN(64, digest))},"result":${
    result === undefined ? "null" : JSON.stringify([...result])
  }}`;
  const guard = [
    `"authority":${json(authority)}`,
    `"lock":${json(lock)}`,
    `"token":${json(token)}`,
    `"written":${json(written)}`,
    `"sequence":${json(sequence)}`,
    `"recorded":${recorded}`,
  ].join();
  // Not as one object: a number of JavaScript does not hold a digest, and an object has an order of its own.
  return `{"format":1,"guard":{${guard}},"ids":${JSON.stringify(ids)}}`;
}

/** Throws for anything that no fence writes. */
export function decode(text: string): Manifest {
  const whole = object(parsed(exact(text)), ["fence", "keys"]);
  const keys = asObject(whole["keys"]);
  if (keys === undefined) {
    throw new Error("keys is not an object");
  }
  return {
    ...readFence(whole["fence"]),
    keys: new Map(Object.entries(keys).map(([key, parts]) => [key, texts(parts)])),
  };
}

/** Throws for anything that no fence writes. */
export function decodeFence(text: string): StoredFence {
  return readFence(parsed(exact(text)));
}

function readFence(value: unknown): StoredFence {
  const fence = object(value, ["format", "guard", "ids"]);
  if (fence["format"] !== 1) {
    throw new Error(`format ${JSON.stringify(fence["format"])}; only 1 is known`);
  }
  const guard = object(fence["guard"], ["authority", "lock", "token", "written", "sequence", "recorded"]);
  const recorded = object(guard["recorded"], ["digest", "result"]);
  if (typeof guard["written"] !== "boolean") {
    throw new Error("written is not true or false");
  }
  const record: FenceRecord = {
    authority: optional(guard["authority"], asName),
    lock: optional(guard["lock"], asName),
    token: optional(guard["token"], asToken),
    written: guard["written"],
    sequence: optional(guard["sequence"], asNumber),
    digest: optional(recorded["digest"], asDigest),
    result: optional(recorded["result"], asBytes),
  };
  return { record, ids: texts(fence["ids"]) };
}

/** Whether the put `id` on top of `base` is in this later state's history; throws if that is too short. */
export function tookEffect(later: StoredFence, id: string, base: StoredFence | undefined): boolean {
  if (later.ids.includes(id)) {
    return true;
  }
  const last = base?.ids.at(-1);
  if (last === undefined ? later.ids.length < MAX_IDS : later.ids.includes(last)) {
    return false;
  }
  throw new UnknownOutcome("unknown_outcome", "too many other writes happened to know whether this one took effect");
}

/** Writes the digest as a text, because a number of JavaScript would round it. A text in JSON has no bare quotes. */
function exact(text: string): string {
  return text.replace(/("recorded"\s*:\s*\{\s*"digest"\s*:\s*)(-?\d+)/, '$1"$2"');
}

function json(value: string | number | boolean | undefined): string {
  return value === undefined ? "null" : JSON.stringify(value);
}

function object(value: unknown, names: readonly string[]): Json {
  const found = asObject(value);
  if (found === undefined || Object.keys(found).sort().join() !== [...names].sort().join()) {
    throw new Error(`it is not an object with ${names.join(", ")}`);
  }
  return found;
}

function optional<T>(value: unknown, read: (value: unknown) => T | undefined): T | undefined {
  if (value === null) {
    return undefined;
  }
  const found = read(value);
  if (found === undefined) {
    throw new Error(`${JSON.stringify(value)} is out of range`);
  }
  return found;
}

function asName(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function asDigest(value: unknown): bigint | undefined {
  return typeof value === "string" && /^-?\d{1,19}$/.test(value) ? BigInt.asUintN(64, BigInt(value)) : undefined;
}

function asBytes(value: unknown): Uint8Array | undefined {
  const fits = Array.isArray(value) && value.every((byte) => Number.isInteger(byte) && byte >= 0 && byte <= 255);
  return fits ? Uint8Array.from(value as number[]) : undefined;
}

function texts(value: unknown): string[] {
  if (!Array.isArray(value) || !value.every((text) => typeof text === "string")) {
    throw new Error(`${JSON.stringify(value)} is not a list of texts`);
  }
  return value;
}
