import { Alarm, latest } from "./clock.js";
import type { Endpoints } from "./endpoints.js";
import { Invalid } from "./errors.js";
import type { Answer, Asked, Exchange, Opened } from "./exchange.js";
import { Fault, Reply } from "./reply.js";

/** An attempt with less time than this would only turn "nothing happened" into "unknown". */
export const LEAST_TIME = 50;
const MAX_ANSWER_BYTES = 16 << 20;

/** A request can be sent again as it is. */
export interface Send extends Asked {
  /** Tells why an answer belongs to another request; undefined if it may be that of this one. */
  readonly differs?: (answer: Reply) => string | undefined;
  /** The server may say that it waits. */
  readonly mayWait?: boolean;
}

/** The result of one attempt. */
export interface Attempt {
  readonly answer: Reply | Fault;
  readonly follow: boolean;
}

/** Makes attempts, at the address that leads. */
export class Transport {
  #closed = false;

  constructor(
    readonly endpoints: Endpoints,
    private readonly way: Exchange,
  ) {}

  /** Makes one attempt, which ends at the latest at `until`. It follows a leader at once. Throws `Invalid` after `close`. */
  async send(send: Send, until: number, signal?: AbortSignal): Promise<Reply | Fault> {
    for (;;) {
      const { answer, follow } = await this.attempt(this.endpoints.current(), send, until, signal);
      if (!follow || latest() + LEAST_TIME >= until) {
        return answer;
      }
    }
  }

  /** Asks one address. `follow`: the leader that it names is to be asked at once. Throws `Invalid` after `close`. */
  async attempt(address: string, send: Send, until: number, signal?: AbortSignal): Promise<Attempt> {
    if (this.#closed) {
      throw new Invalid("the client is closed");
    }
    const answer = await this.#exchange(address, send, until, signal);
    return { answer, follow: answer instanceof Reply && this.endpoints.answered(address, answer) };
  }

  open(address: string, asked: Asked): Opened {
    return this.way.open(address, asked);
  }

  /** Notes that an address gave no answer. Connections to it that are idle may be as silent, and look alive. */
  failed(address: string): void {
    this.endpoints.failed(address);
    this.way.reset();
  }

  /** Ends every connection. */
  close(): void {
    this.#closed = true;
    this.way.close();
  }

  async #exchange(address: string, send: Send, until: number, signal?: AbortSignal): Promise<Reply | Fault> {
    if (isAborted(signal)) {
      return new Fault("the caller left", false);
    }
    const opened = this.open(address, send);
    const leave = (): void => {
      opened.destroy(new Error("the caller left"));
    };
    signal?.addEventListener("abort", leave, { once: true });
    let silent = false;
    const alarm = new Alarm(
      () => until,
      () => {
        silent = true;
        opened.destroy(new Error("no answer in time"));
      },
    );
    if (send.isBackground === true) {
      alarm.unref();
    }
    try {
      const told = await opened.answer;
      const answer = Reply.read(told.status, await readAll(told));
      const why = answer instanceof Fault ? answer.message : whyNot(send, answer);
      if (answer instanceof Fault || why !== undefined) {
        // Closed even if it is back in the pool: its next answers would be wrong, too.
        told.disown();
        throw new Error(why);
      }
      return answer;
    } catch (error) {
      // A caller that left says nothing about the address.
      if (!isAborted(signal)) {
        this.failed(address);
      }
      const why = `${address}: ${error instanceof Error ? error.message.trim() : String(error)}`;
      const sent = opened.sent();
      return new Fault(why + this.way.hint(address, sent), sent, silent);
    } finally {
      alarm.stop();
      signal?.removeEventListener("abort", leave);
    }
  }
}

/** Why an answer is not that of its request. */
function whyNot({ differs, mayWait }: Send, answer: Reply): string | undefined {
  if (answer.waits && mayWait !== true) {
    return "a broken answer: it says that a request waits, which did not ask to wait";
  }
  const why = differs?.(answer);
  return why === undefined ? undefined : `a broken answer: it is that of another request: ${why}`;
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

export async function readAll({ body }: Answer): Promise<string> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of body) {
    length += part.length;
    if (length > MAX_ANSWER_BYTES) {
      throw new Error(`the answer has more than ${MAX_ANSWER_BYTES} bytes`);
    }
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}
