/**
 * S3-compatible object stores, with your own client of `@aws-sdk/client-s3`.
 *
 * ```ts
 * const store = await Store.open(new S3Client(), "bucket", "fenced"); // tests that the store honours conditional puts
 * const orders = store.resource("orders");
 * await orders.claim(lease); // first: raises the fence
 * const total = Number((await orders.read(lease, "/total"))?.toString() ?? 0);
 * await orders.put(lease, "/total", String(total + 1));
 * ```
 *
 * A resource has one small object, `ROOT/resources/RESOURCE/fence.json`, the only one that is ever changed: it holds the
 * fence and names the immutable objects `data/TOKEN-ID` of each key. It is replaced by a conditional put, which is check
 * and effect in one step. The format is that of the Rust fence: holders in all languages share a resource. Do not put a
 * cache in front of the bucket, and re-arm the fence after an older manifest was restored.
 *
 * @packageDocumentation
 */
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { crc32 } from "node:zlib";

import {
  DeleteObjectCommand,
  GetObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  type S3Client,
} from "@aws-sdk/client-s3";

import { Invalid, OperatorNeeded, Unavailable, UnknownOutcome } from "../errors.js";
import { checkKind, checkOptions, checkText, shapeOf } from "../options.js";
import { FenceLost, Rejected } from "./errors.js";
import { checkResource, checkSequence, presented, type Holder, type Pass } from "./holder.js";
import { decode, encode, MAX_IDS, NO_MANIFEST, tookEffect, type Manifest } from "./manifest.js";
import { checkRule, decide, EMPTY, judged, type Operation, type Rule } from "./rule.js";

const ATTEMPTS = 32;
const SAME_PUT_TRIES = 5;
const MAX_PARTS = 1_000;
const KINDS = { put: 1, append: 2, delete: 3 } as const;
const CHANGED: ReadonlySet<string> = new Set(["PreconditionFailed", "412"]);
const MISSING: ReadonlySet<string> = new Set(["NoSuchKey", "NotFound", "404"]);

type Condition = { IfMatch: string } | { IfNoneMatch: "*" } | Record<string, never>;

interface Effect {
  readonly kind: keyof typeof KINDS;
  readonly key: string;
  readonly content: Uint8Array;
}

interface Seen {
  readonly manifest: Manifest;
  readonly etag: string;
}

export interface WriteOptions {
  /** The number of this write among those of the grant, 0 – 2^53 − 1, with which it is safe to repeat. */
  readonly sequence?: number;
}

export interface StoreOptions {
  readonly rule?: Rule;
  /** Whether to test that the store honours conditional puts; true unless you tested it before. */
  readonly probe?: boolean;
}

/** The fenced part of a bucket: everything below one root. */
export class Store {
  private constructor(
    private readonly client: S3Client,
    private readonly bucket: string,
    private readonly root: string,
    private readonly rule: Rule,
  ) {}

  /** Throws `OperatorNeeded` for a store that ignores the condition of a put: it would make the fence useless. */
  static async open(client: S3Client, bucket: string, root: string, options: StoreOptions = {}): Promise<Store> {
    checkKind("the client", client, typeof shapeOf(client)["send"] === "function", "an S3Client of @aws-sdk/client-s3");
    checkText("the bucket", bucket);
    checkText("the root", root);
    checkOptions("Store.open", options, ["rule", "probe"]);
    checkRule(options.rule ?? {});
    const store = new Store(client, bucket, root.replace(/^\/+|\/+$/g, ""), options.rule ?? {});
    if (options.probe !== false) {
      await store.#probe();
    }
    return store;
  }

  /** One resource; nothing is read or written yet. */
  resource(name: string): Resource {
    checkResource(name);
    return new Resource(this, name, `${this.root}/resources/${part(name)}`, this.rule);
  }

  /** The new version's ETag; undefined if the condition was false. @internal */
  async put(key: string, content: Uint8Array, condition: Condition): Promise<string | undefined> {
    try {
      const put = new PutObjectCommand({ Bucket: this.bucket, Key: key, Body: content, ...condition });
      const { ETag } = await this.client.send(put);
      return ETag ?? fail(`the store gave no ETag to ${key}`);
    } catch (error) {
      if (CHANGED.has(codeOf(error))) {
        return undefined;
      }
      throw error;
    }
  }

  /** Undefined if there is no such object. @internal */
  async get(key: string): Promise<{ content: Uint8Array; etag: string } | undefined> {
    try {
      const { Body, ETag } = await this.client.send(new GetObjectCommand({ Bucket: this.bucket, Key: key }));
      const content = (await Body?.transformToByteArray()) ?? fail(`the store gave no content for ${key}`);
      return { content, etag: ETag ?? fail(`the store gave no ETag for ${key}`) };
    } catch (error) {
      if (MISSING.has(codeOf(error))) {
        return undefined;
      }
      throw error;
    }
  }

  /** @internal */
  async isEmpty(prefix: string): Promise<boolean> {
    const list = new ListObjectsV2Command({ Bucket: this.bucket, Prefix: prefix, MaxKeys: 1 });
    return ((await this.client.send(list)).Contents ?? []).length === 0;
  }

  async #probe(): Promise<void> {
    const at = `${this.root}/probe/${freshId()}`;
    const text = Buffer.from("palisade");
    const ignores = (what: string): never => {
      throw new OperatorNeeded("refused", `this store ignores the condition of a put: ${what}`);
    };
    try {
      const first = await this.put(at, text, { IfNoneMatch: "*" });
      if (first === undefined || (await this.put(at, Buffer.from("2"), { IfNoneMatch: "*" })) !== undefined) {
        return ignores("create-if-absent");
      }
      const second = await this.put(at, Buffer.from("3"), { IfMatch: first });
      if (second === undefined || (await this.put(at, Buffer.from("4"), { IfMatch: first })) !== undefined) {
        ignores("replace-this-version");
      }
    } finally {
      await this.client.send(new DeleteObjectCommand({ Bucket: this.bucket, Key: at }));
    }
  }
}

/** Keys in the form of absolute paths, under one fence. Each method throws `Stale` if a newer holder has claimed. */
export class Resource {
  /** @internal */
  constructor(
    private readonly store: Store,
    readonly name: string,
    private readonly folder: string,
    private readonly rule: Rule,
  ) {}

  /** Raises the fence, before the first read. */
  async claim(holder: Holder): Promise<void> {
    await this.#carryOut(presented(holder), { kind: "claim" });
  }

  /** Reads in order to write; undefined if there is nothing. */
  async read(holder: Holder, key: string): Promise<Buffer | undefined> {
    checkKey(key);
    const pass = presented(holder);
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      const { manifest } = await this.#carryOut(pass, { kind: "read" });
      const parts = manifest.keys.get(key);
      const found = parts === undefined ? undefined : await this.#fetch(key, parts);
      if (found !== "replaced") {
        return found;
      }
    }
    throw this.#busy();
  }

  /** Replaces a key. True: this numbered write was carried out before. A holder of null has no token: refused. */
  async put(
    holder: Holder | null,
    key: string,
    content: Uint8Array | string,
    options?: WriteOptions,
  ): Promise<boolean> {
    return this.#write(holder, { kind: "put", key, content: bytes(content) }, options);
  }

  /** As `put`, at the end. A key takes 1,000 appends; then it must be put whole. */
  async append(
    holder: Holder | null,
    key: string,
    content: Uint8Array | string,
    options?: WriteOptions,
  ): Promise<boolean> {
    return this.#write(holder, { kind: "append", key, content: bytes(content) }, options);
  }

  /** As `put`; throws `Rejected` with the code `missing` if there is nothing to delete. */
  async delete(holder: Holder | null, key: string, options?: WriteOptions): Promise<boolean> {
    return this.#write(holder, { kind: "delete", key, content: new Uint8Array() }, options);
  }

  async #write(holder: Holder | null, effect: Effect, options: WriteOptions = {}): Promise<boolean> {
    checkKey(effect.key);
    checkOptions("a write", options, ["sequence"]);
    const { sequence } = options;
    checkSequence(sequence);
    const digest = sequence === undefined ? undefined : digestOf(effect);
    const pass = holder === null ? undefined : presented(holder);
    return (await this.#carryOut(pass, { kind: "write", sequence, digest }, effect)).repeat;
  }

  /** Decides on the manifest that was read and replaces it, again if another writer was faster. */
  async #carryOut(
    pass: Pass | undefined,
    operation: Operation,
    effect?: Effect,
  ): Promise<{ repeat: boolean; manifest: Manifest }> {
    const uploaded: string[] = [];
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      if (attempt > 0) {
        await sleep(Math.random() * 2 ** Math.min(attempt, 7));
      }
      const seen = await this.#load();
      if (seen === undefined) {
        await this.#first(pass);
        continue;
      }
      const { manifest } = seen;
      const helper = effect?.kind ?? operation.kind;
      const admitted = judged([this.name, helper], manifest.record, pass, operation, this.rule);
      if (admitted.repeat) {
        return { repeat: true, manifest };
      }
      let following: Manifest = { ...manifest, record: admitted.record };
      if (effect !== undefined) {
        following = await this.#place(following, pass, effect, uploaded);
      }
      const changed = effect !== undefined || encode(following) !== encode(manifest);
      if (!changed || (await this.#replace(seen, following))) {
        return { repeat: false, manifest };
      }
    }
    throw this.#busy();
  }

  async #load(): Promise<Seen | undefined> {
    const got = await this.store.get(`${this.folder}/fence.json`);
    if (got === undefined) {
      return undefined;
    }
    try {
      return { manifest: decode(Buffer.from(got.content).toString("utf8")), etag: got.etag };
    } catch (error) {
      throw new FenceLost(`${this.name}: its fence.json is damaged: ${String(error)}`);
    }
  }

  /** Creates the manifest, with the claim in it, before any data is uploaded. */
  async #first(pass: Pass | undefined): Promise<void> {
    if (!(await this.store.isEmpty(`${this.folder}/data/`))) {
      if ((await this.#load()) === undefined) {
        throw new FenceLost(`${this.name} has data and no fence: an operator must re-arm it with a floor`);
      }
      return;
    }
    const operation: Operation = { kind: pass === undefined ? "write" : "claim" };
    await this.#replace(undefined, { ...NO_MANIFEST, record: decide(EMPTY, pass, operation, this.rule).record });
  }

  /**
   * Whether the put took effect. While the base is still there the put may still arrive, so only repeating the same put
   * settles it; once the base is gone, the ids of the new manifest tell.
   */
  async #replace(seen: Seen | undefined, following: Manifest): Promise<boolean> {
    const id = freshId();
    const content = Buffer.from(encode({ ...following, ids: [...following.ids, id].slice(-MAX_IDS) }));
    const condition = seen === undefined ? { IfNoneMatch: "*" as const } : { IfMatch: seen.etag };
    let failed: Error | undefined;
    for (let tries = 0; tries <= SAME_PUT_TRIES; tries += 1) {
      failed = undefined;
      try {
        if ((await this.store.put(`${this.folder}/fence.json`, content, condition)) !== undefined) {
          return true;
        }
      } catch (error) {
        failed = error instanceof Error ? error : new Error(String(error));
      }
      const now = await this.#load();
      if (now !== undefined && now.etag !== seen?.etag) {
        return tookEffect(now.manifest, id, seen?.manifest);
      }
    }
    throw failed === undefined
      ? new UnknownOutcome("unknown_outcome", `${this.name}: the store refuses a put on the version that it shows`)
      : new UnknownOutcome("unknown_outcome", `${this.name}: ${failed.message}`, { cause: failed });
  }

  /** Uploads the new data once, and names it in the manifest. */
  async #place(
    manifest: Manifest,
    pass: Pass | undefined,
    { kind, key, content }: Effect,
    uploaded: string[],
  ): Promise<Manifest> {
    const keys = new Map(manifest.keys);
    if (kind === "delete") {
      if (!keys.delete(key)) {
        throw new Rejected("missing");
      }
      return { ...manifest, keys };
    }
    const before = kind === "append" ? (keys.get(key) ?? []) : [];
    if (before.length >= MAX_PARTS) {
      throw new Invalid(`${key} has ${before.length} parts, which is the limit: put it whole`);
    }
    if (uploaded.length === 0) {
      const name = `${pass?.token ?? 0}-${freshId()}`;
      await this.store.put(`${this.folder}/data/${name}`, content, {});
      uploaded.push(name);
    }
    return { ...manifest, keys: keys.set(key, [...before, ...uploaded]) };
  }

  async #fetch(key: string, parts: readonly string[]): Promise<Buffer | "replaced"> {
    const whole: Uint8Array[] = [];
    for (const name of parts) {
      const got = await this.store.get(`${this.folder}/data/${name}`);
      if (got === undefined) {
        const now = (await this.#load())?.manifest.keys.get(key);
        if (now?.join() === parts.join()) {
          throw new FenceLost(`${this.name}: data of ${key} is gone`);
        }
        return "replaced";
      }
      whole.push(got.content);
    }
    return Buffer.concat(whole);
  }

  #busy(): Unavailable {
    return new Unavailable("unavailable", `${this.name}: other writers were faster ${ATTEMPTS} times`);
  }
}

/** The same in every language of this repository: docs/reference/fence-formats.md. */
function digestOf({ kind, key, content }: Effect): bigint {
  const sum = crc32(Buffer.concat([Buffer.from(key), Uint8Array.of(KINDS[kind]), content]));
  return (BigInt(sum) << 32n) | BigInt.asUintN(32, BigInt(content.length));
}

function checkKey(key: string): void {
  checkText("a key", key);
  const segments = key.slice(1).split("/");
  // eslint-disable-next-line no-control-regex -- they are what is refused
  const controls = /[\u0000-\u001f\u007f-\u009f]/.test(key);
  const odd = segments.some((segment) => segment === "" || segment === "." || segment === "..");
  if (!key.startsWith("/") || controls || odd || Buffer.byteLength(key) > 1_024 || !key.isWellFormed()) {
    throw new Invalid(
      `${JSON.stringify(key)} is not a key: an absolute path of at most 1024 bytes without empty segments`,
    );
  }
}

/** Encodes a name as the Rust fence's object_store library does, which keeps all other characters. */
function part(name: string): string {
  const escape = (letter: string): string => `%${letter.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`;
  return name === "." || name === ".." ? name.replaceAll(".", "%2E") : name.replace(/[/\\{^}%`\]">[~<#|*?]/g, escape);
}

function bytes(content: Uint8Array | string): Uint8Array {
  const isRight = typeof content === "string" || (content as unknown) instanceof Uint8Array;
  checkKind("the content", content, isRight, "a text or a Uint8Array");
  return typeof content === "string" ? Buffer.from(content) : content;
}

function freshId(): string {
  return randomBytes(16).toString("hex");
}

function codeOf(error: unknown): string {
  return error instanceof Error ? error.name : "";
}

function fail(message: string): never {
  throw new Error(`palisade: ${message}`);
}
