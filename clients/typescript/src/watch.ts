import { Alarm, latest } from "./clock.js";
import type { Answer, Opened } from "./exchange.js";
import { asNumber, asText, asToken, Fault, parsed, Reply } from "./reply.js";
import { attemptTime, Backoff } from "./retry.js";
import { readAll, type Transport } from "./transport.js";

/** A server writes a comment each 15 s. */
const SILENCE = 45_000;
const MAX_LINE = 1 << 20;
const KINDS: ReadonlySet<string> = new Set([
  "granted",
  "proclaimed",
  "opened",
  "released",
  "expired",
  "revoked",
  "superseded",
]);

/**
 * One change of a lock. An event is news, not proof: a holder learns of a loss from its own deadline. In an `opened` one, by an
 * operator, the token is that of the last grant, and `clientId` is "".
 */
export interface LockEvent {
  readonly kind: "granted" | "proclaimed" | "opened" | "released" | "expired" | "revoked" | "superseded";
  /** Where to go on after this event. */
  readonly revision: number | undefined;
  readonly lock: string;
  readonly clientId: string;
  readonly token: number;
  readonly reason: string | undefined;
  /** The number that names a shared grant. */
  readonly grantId: number | undefined;
  /** The server's wall clock at the change, for people. */
  readonly time: string | undefined;
}

/** Changes that did not arrive: list the locks again. */
export interface MissedEvent {
  readonly kind: "missed";
  readonly revision: number | undefined;
  /** Undefined: nobody knows how many. */
  readonly missed: number | undefined;
}

export type WatchEvent = LockEvent | MissedEvent;
/** A watch says so, too, when it is connected: later changes will arrive. */
export type Change = WatchEvent | { readonly kind: "connected" };

export interface WatchOptions {
  /**
   * Begins after a revision, with the changes that the server still remembers; 0 is before the first one. Without it a
   * watch begins with the next change.
   */
  readonly after?: number;
  /** Ends the watch: the loop ends with the signal's reason. */
  readonly signal?: AbortSignal;
}

export async function* watch(...of: Parameters<typeof changes>): AsyncGenerator<WatchEvent, void, void> {
  for await (const change of changes(...of)) {
    if (change.kind !== "connected") {
      yield change;
    }
  }
}

/** Changes across broken connections, after the last event that was seen. `checkOpen` throws if the client is closed. */
export async function* changes(
  transport: Transport,
  prefix: string,
  { after, signal }: WatchOptions,
  patienceMs: number,
  checkOpen: () => void,
): AsyncGenerator<Change, void, void> {
  let position = after;
  let opened = false;
  const pauses = new Backoff();
  for (;;) {
    checkOpen();
    signal?.throwIfAborted();
    const stream = new Stream(transport, prefix, position, patienceMs);
    const leave = (): void => {
      stream.close();
    };
    signal?.addEventListener("abort", leave, { once: true });
    let fault: Fault | undefined;
    try {
      const answer = await stream.open();
      if (answer !== undefined && position !== undefined && answer.code === "invalid") {
        // The revision is of another authority: begin anew, and say that something was missed.
        position = undefined;
        opened = true;
        continue;
      }
      if (answer !== undefined) {
        if (transport.endpoints.answered(stream.address, answer)) {
          continue;
        }
        fault = answer.fault;
        if (fault === undefined) {
          throw answer.error();
        }
      } else {
        if (opened && position === undefined) {
          yield { kind: "missed", revision: undefined, missed: undefined };
        }
        opened = true;
        yield { kind: "connected" };
        for await (const block of stream.blocks()) {
          pauses.reset();
          position = block.revision ?? position;
          const event = block.event(position);
          if (event !== undefined) {
            yield event;
          }
        }
        fault = new Fault("the stream ended", false);
      }
    } catch (error) {
      if (!(error instanceof Broken)) {
        throw error;
      }
      fault = new Fault(error.message, false);
    } finally {
      signal?.removeEventListener("abort", leave);
      stream.close();
    }
    signal?.throwIfAborted();
    checkOpen();
    transport.failed(stream.address);
    await pauses.pause(fault, signal);
  }
}

/** The connection broke. */
class Broken extends Error {}

/** One connection, which ends after 45 s of silence. A server sends the head of its answer at once. */
class Stream {
  readonly address: string;
  readonly #opened: Opened;
  readonly #silence: Alarm;
  #heard = latest();
  #answer: Answer | undefined;

  constructor(transport: Transport, prefix: string, after: number | undefined, patienceMs: number) {
    const query = new URLSearchParams({ prefix, ...(after === undefined ? {} : { after_revision: String(after) }) });
    this.address = transport.endpoints.current();
    this.#opened = transport.open(this.address, { method: "GET", path: `/v1/watch?${query.toString()}` });
    this.#silence = new Alarm(
      () => this.#heard + (this.#answer === undefined ? attemptTime(0, patienceMs, patienceMs) : SILENCE),
      () => {
        this.close();
      },
    );
  }

  /** Undefined: the stream is open. Otherwise the server's answer. */
  async open(): Promise<Reply | undefined> {
    try {
      this.#answer = await this.#opened.answer;
      this.#heard = latest();
      if (this.#answer.status === 200) {
        return undefined;
      }
      const answer = Reply.read(this.#answer.status, await readAll(this.#answer));
      if (answer instanceof Reply) {
        return answer;
      }
      throw new Broken(answer.message);
    } catch (error) {
      throw broken(error);
    }
  }

  async *blocks(): AsyncGenerator<Block, void, void> {
    let block = new Block();
    for await (const line of this.#lines()) {
      if (line !== "") {
        block.take(line);
      } else {
        yield block;
        block = new Block();
      }
    }
  }

  close(): void {
    this.#silence.stop();
    this.#opened.destroy(new Broken("the stream was closed"));
  }

  async *#lines(): AsyncGenerator<string, void, void> {
    const decoder = new TextDecoder();
    let rest = "";
    const parts = (this.#answer as Answer).body[Symbol.asyncIterator]();
    for (;;) {
      const part = await parts.next().catch((error: unknown) => Promise.reject(broken(error)));
      if (part.done === true) {
        return;
      }
      this.#heard = latest();
      const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      if (rest.length > MAX_LINE) {
        throw new Broken(`a line has more than ${MAX_LINE} characters`);
      }
      for (const line of lines) {
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
    }
  }
}

function broken(error: unknown): Broken {
  return error instanceof Broken ? error : new Broken(error instanceof Error ? error.message : String(error));
}

/** The lines between two empty ones. */
export class Block {
  #kind = "";
  #id = "";
  #data = "";

  take(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    switch (name) {
      case "event":
        this.#kind = value;
        break;
      case "id":
        this.#id = value;
        break;
      case "data":
        this.#data += value;
        break;
    }
  }

  get revision(): number | undefined {
    return /^\d{1,16}$/.test(this.#id) ? asNumber(Number(this.#id)) : undefined;
  }

  /** Undefined for events that the caller must not see, such as the kinds of later servers. */
  event(revision: number | undefined): WatchEvent | undefined {
    const told = parsed(this.#data);
    if (told === undefined) {
      return undefined;
    }
    if (this.#kind === "missed") {
      return { kind: "missed", revision, missed: asNumber(told["missed"]) };
    }
    const token = asToken(told["fencing_token"]);
    if (!KINDS.has(this.#kind) || token === undefined) {
      return undefined;
    }
    return {
      kind: this.#kind as LockEvent["kind"],
      revision,
      lock: asText(told["resource_id"]) ?? "",
      clientId: asText(told["client_id"]) ?? "",
      token,
      reason: asText(told["reason"]),
      grantId: asToken(told["grant_id"]),
      time: asText(told["time"]),
    };
  }
}
