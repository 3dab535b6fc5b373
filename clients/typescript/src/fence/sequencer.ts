/**
 * Sequencers: fencing tokens that the authority has signed, checked for a resource of your own, without asking anybody.
 *
 * ```ts
 * const keys = new Keys(jwks); // the text of the authority's /.well-known/jwks.json
 * const sequencer = keys.check(text, "orders", { writes: true });
 * await claim(db, "orders", sequencer, { maxJump: null });
 * ```
 *
 * A holder gets `text` from `lease.sequencer()`. It does not expire: the fence still compares its token with the highest
 * one, and no bound of a jump applies to it. When the authority's keys change, make new `Keys`.
 *
 * @packageDocumentation
 */
import { isUtf8 } from "node:buffer";
import { createPublicKey, verify, type KeyObject } from "node:crypto";

import { Invalid, PalisadeError } from "../errors.js";
import { slotKey } from "../lease.js";
import { checkKind, checkOptions, checkText } from "../options.js";
import { asObject, asToken, parsed, type Json } from "../reply.js";
import type { Pass } from "./holder.js";

/** The header of a request that carries a sequencer. */
export const HEADER = "X-Fencing-Sequencer";
/** The longest sequencer that is looked at, in bytes. */
export const MAX_BYTES = 4_096;

const MODES = ["exclusive", "shared", "permits"] as const;
/** The mode of a grant. */
export type Mode = (typeof MODES)[number];

/** The content of a sequencer whose signature was verified. A fence accepts it like a lease. */
export interface Sequencer extends Pass {
  readonly authority: string;
  readonly lock: string;
  readonly mode: Mode;
  /** Of a semaphore, rising; none for other locks. */
  readonly slots: readonly number[];
  /** The grant's principal; undefined where the authority does not know it. */
  readonly principal: string | undefined;
}

/** Why a sequencer is not believed. */
export type BadSequencerCode = "bad_sequencer" | "wrong_authority" | "wrong_lock";

/** The sequencer is not believed here, and nothing changed. The message says why. */
export class BadSequencer extends PalisadeError {
  readonly kind = "rejected";
  override readonly code: BadSequencerCode;

  constructor(code: BadSequencerCode, message: string) {
    super(code, message);
    this.code = code;
  }
}

/**
 * Throws `BadSequencer` (`wrong_lock`) unless it is for this resource: the one with the lock's name, or for permits one of
 * `LOCK~SLOT`. Without this check, a holder of any lock could raise every fence.
 */
export function checkCovers({ lock, mode, slots }: Sequencer, resource: string): void {
  const held = mode === "permits" ? slots.map((slot) => slotKey(lock, slot)) : [lock];
  if (!held.includes(resource)) {
    throw new BadSequencer(
      "wrong_lock",
      `the sequencer is for ${held.join(", ")}, and this resource is ${resource}: acquire that lock`,
    );
  }
}

/** The public keys of one authority. */
export class Keys {
  /** The authority whose keys these are. */
  readonly issuer: string;
  readonly #keys = new Map<string, KeyObject>();

  /**
   * Reads the text of the authority's /.well-known/jwks.json. Keys of other kinds than Ed25519 are left out. Throws
   * `Invalid` for any other text.
   */
  constructor(jwks: string) {
    checkKind("what Keys takes", jwks, typeof jwks === "string", "the text of /.well-known/jwks.json");
    const set = object(jwks.trim());
    const listed: unknown = set?.["keys"];
    if (set === undefined || !Array.isArray(listed)) {
      throw badKeys("this is not a set of keys");
    }
    const issuer = set["issuer"];
    if (!isName(issuer)) {
      throw badKeys(`issuer is ${JSON.stringify(issuer)}, which is not the name of an authority`);
    }
    this.issuer = issuer;
    for (const each of listed as unknown[]) {
      this.#add(asObject(each));
    }
    if (this.#keys.size === 0) {
      throw badKeys("it has no key for Ed25519");
    }
  }

  #add(key: Json | undefined): void {
    if (key === undefined) {
      throw badKeys("this is not a set of keys");
    }
    const { kty, crv, kid, x } = key;
    if (kty !== "OKP" || crv !== "Ed25519") {
      return;
    }
    if (typeof kid !== "string") {
      throw badKeys("a key has no kid");
    }
    if (typeof x !== "string" || decoded(x)?.length !== 32) {
      throw badKeys(`x of the key ${JSON.stringify(kid)} is not 32 bytes`);
    }
    if (this.#keys.has(kid)) {
      throw badKeys(`two keys are called ${JSON.stringify(kid)}`);
    }
    this.#keys.set(kid, createPublicKey({ key: { kty, crv, x }, format: "jwk" }));
  }

  /**
   * Checks a sequencer that was presented at a resource: that the authority issued it, that it is for this resource, and
   * that a reader does not write. Throws `BadSequencer`.
   */
  check(text: string, resource: string, options: { readonly writes: boolean }): Sequencer {
    checkText("the name of a resource", resource);
    checkOptions("check", options, ["writes"]);
    const { writes } = options;
    checkKind("the option writes", writes, typeof writes === "boolean", "true or false");
    const sequencer = this.verify(text);
    checkCovers(sequencer, resource);
    if (writes && sequencer.mode === "shared") {
      throw bad("the sequencer is a reader's (mode shared), and this request writes");
    }
    return sequencer;
  }

  /**
   * Checks that the authority issued it, and returns its content. `checkCovers` checks that it is for the resource at hand.
   * Throws `BadSequencer`.
   */
  verify(text: string): Sequencer {
    if (typeof (text as unknown) !== "string") {
      throw malformed("it is missing, or no text");
    }
    if (text.length > MAX_BYTES) {
      throw malformed(`it is longer than ${MAX_BYTES} bytes`);
    }
    const parts = text.split(".");
    const [header, payload, signature] = parts.map(decoded);
    if (parts.length !== 3 || header === undefined || payload === undefined || signature === undefined) {
      throw malformed("it must have three parts in base64url, with dots between them");
    }
    const signed = text.slice(0, text.lastIndexOf("."));
    // The algorithm is that of the key, and never taken from the sequencer.
    if (!verify(null, Buffer.from(signed), this.#named(header), signature)) {
      throw bad("the sequencer's signature is wrong: the authority did not issue it");
    }
    return this.#read(payload);
  }

  /** The key that a header names. */
  #named(header: Buffer): KeyObject {
    const found = isUtf8(header) ? object(header.toString()) : undefined;
    const { alg, kid, typ, ...others } = found ?? {};
    const hasAll = typeof alg === "string" && typeof kid === "string" && typeof typ === "string";
    if (!hasAll || Object.keys(others).length > 0) {
      throw malformed("its header must have alg, kid and typ, once each");
    }
    // "none" is an algorithm, too.
    if (alg !== "EdDSA") {
      throw bad(`the sequencer's algorithm is ${short(alg)}: only EdDSA is accepted`);
    }
    if (typ !== "palisade-sequencer") {
      throw malformed("its typ is not palisade-sequencer");
    }
    const key = this.#keys.get(kid);
    if (key === undefined) {
      throw bad(
        `the sequencer names the key ${short(kid)}, which is not known here: get the authority's ` +
          "/.well-known/jwks.json again",
      );
    }
    return key;
  }

  /** Reads the payload, whose signature was verified. */
  #read(payload: Buffer): Sequencer {
    const text = isUtf8(payload) ? payload.toString() : "";
    const { iss, lock, mode, token, slots = [], sub, ...others } = object(text) ?? {};
    if (
      Object.keys(others).length > 0 ||
      typeof iss !== "string" ||
      !isMode(mode) ||
      !Array.isArray(slots) ||
      !(sub === undefined || sub === null || typeof sub === "string") ||
      hasOtherNumbers(text)
    ) {
      throw malformed("its payload is not that of a sequencer");
    }
    if (iss !== this.issuer) {
      throw new BadSequencer(
        "wrong_authority",
        `authority ${iss.slice(0, 64)} issued the sequencer, and the keys here belong to ${this.issuer}`,
      );
    }
    if (!slots.every(isRising) || slots.length > 0 !== (mode === "permits")) {
      throw malformed("its slots do not fit its mode");
    }
    if (!isName(lock)) {
      throw malformed("its lock is not a name");
    }
    const found = asToken(token);
    if (found === undefined) {
      throw malformed("its token is out of range");
    }
    return { authority: iss, lock, mode, token: found, slots, principal: sub ?? undefined };
  }
}

/** Base64url in its one spelling; Node takes many. */
function decoded(part: string): Buffer | undefined {
  const found = Buffer.from(part, "base64url");
  return found.toString("base64url") === part ? found : undefined;
}

/** The parts of a text that is JSON: strings, marks, and words and numbers. */
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/** A JSON object in which no member stands twice: two readers could take different ones, and `JSON.parse` takes the last. */
function object(text: string): Json | undefined {
  const found = text.startsWith("{") ? parsed(text) : undefined;
  const open: Set<unknown>[] = [];
  let last = "";
  for (const [token] of found === undefined ? [] : text.matchAll(TOKENS)) {
    if (token === "{" || token === "[") {
      open.push(new Set());
    } else if (token === "}" || token === "]") {
      open.pop();
    } else if (token === ":") {
      const members = open.at(-1);
      const name: unknown = JSON.parse(last);
      if (members?.has(name) === true) {
        return undefined;
      }
      members?.add(name);
    }
    last = token;
  }
  return found;
}

/** Whether there is a number that is not written in digits alone. For `JSON.parse`, 34.0 is 34. */
function hasOtherNumbers(text: string): boolean {
  return (text.match(TOKENS) ?? []).some((token) => /^[-\d]/.test(token) && !/^\d+$/.test(token));
}

function isRising(slot: unknown, at: number, all: readonly unknown[]): slot is number {
  return typeof slot === "number" && slot < 2 ** 32 && slot > (at === 0 ? 0 : Number(all[at - 1]));
}

function isMode(value: unknown): value is Mode {
  return MODES.some((mode) => mode === value);
}

function isName(value: unknown): value is string {
  return typeof value === "string" && /^[ -~]{1,255}$/.test(value);
}

/** The start of a caller's text, for a message. */
function short(text: string): string {
  return JSON.stringify(text.slice(0, 64));
}

function bad(message: string): BadSequencer {
  return new BadSequencer("bad_sequencer", message);
}

function malformed(why: string): BadSequencer {
  return bad(`the sequencer is malformed: ${why}`);
}

function badKeys(why: string): Invalid {
  return new Invalid(`${why}; it should be what the authority has at /.well-known/jwks.json`);
}
