import { randomBytes } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import https from "node:https";
import type { Duplex } from "node:stream";
import type tls from "node:tls";

import type { Bearer } from "./bearer.js";
import { Certificates, type TlsOptions } from "./certificates.js";
import { Alarm, latest } from "./clock.js";
import type { Endpoints } from "./endpoints.js";
import { Invalid } from "./errors.js";
import { Fault, Reply } from "./reply.js";

/** An attempt with less time than this would only turn "nothing happened" into "unknown". */
export const LEAST_TIME = 50;
const CONNECT_TIME = 5_000;
const MAX_IDLE = 16;
const IDLE_TIME = 90_000;
const MAX_ANSWER_BYTES = 16 << 20;
/** A request has a nonce of its own in this header, and its answer has the same one. */
const NONCE = "palisade-nonce";

/** A request can be sent again as it is. */
export interface Send {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: object;
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

/** A request under way. */
export interface Exchange {
  /** The head of the request's own answer. That of another one is an error, and ends the connection. */
  readonly head: Promise<http.IncomingMessage>;
  /** Whether the request may have reached a server. */
  sent(): boolean;
  destroy(why: Error): unknown;
}

/** Each connection has the certificates that are in the files when it is made. */
class SecureAgent extends https.Agent {
  readonly #certificates: Certificates;

  constructor(options: https.AgentOptions, certificates: Certificates) {
    super(options);
    this.#certificates = certificates;
  }

  override createConnection(
    options: https.RequestOptions,
    done?: (error: Error | null, connection: Duplex) => void,
  ): Duplex | null | undefined {
    const current: https.RequestOptions & Pick<tls.ConnectionOptions, "secureContext"> = {
      ...options,
      secureContext: this.#certificates.current(),
    };
    return super.createConnection(current, done);
  }
}

/** Makes attempts, at the address that leads. */
export class Transport {
  readonly #plain: http.Agent;
  readonly #secure: https.Agent;
  readonly #certificates: Certificates;
  #closed = false;

  constructor(
    readonly endpoints: Endpoints,
    private readonly bearer: Bearer,
    options: TlsOptions = {},
  ) {
    const pool = { keepAlive: true, maxFreeSockets: MAX_IDLE, timeout: IDLE_TIME };
    this.#plain = new http.Agent(pool);
    this.#certificates = new Certificates(options);
    const settings = {
      ...pool,
      ...(options.servername === undefined ? {} : { servername: options.servername }),
      // Also with NODE_TLS_REJECT_UNAUTHORIZED=0: a false server could grant one lock to everybody.
      rejectUnauthorized: true,
      // A session that is resumed shows no certificate.
      maxCachedSessions: 0,
    };
    this.#secure = new SecureAgent(settings, this.#certificates);
  }

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

  /**
   * Sends a request. It never follows a redirect: that would carry the lease key elsewhere.
   *
   * If a server does not know the caller, the certificate of the connection may have expired. Nothing happened, and a new
   * connection uses the current files.
   */
  open(address: string, send: Send): Exchange {
    let exchange = this.#openOnce(address, send);
    let left: Error | undefined;
    const head = exchange.head.then((answer) => {
      if (answer.statusCode !== 401 || !address.startsWith("https:") || left !== undefined) {
        return answer;
      }
      exchange.destroy(new Error("the certificate of the connection may be over"));
      answer.socket.destroy();
      this.#endIdle();
      exchange = this.#openOnce(address, send);
      return exchange.head;
    });
    head.catch(ignore);
    const destroy = (why: Error): void => {
      left = why;
      exchange.destroy(why);
    };
    return { head, sent: () => exchange.sent(), destroy };
  }

  #openOnce(address: string, { method, path, body }: Send): Exchange {
    const nonce = randomBytes(16).toString("base64url");
    const secure = address.startsWith("https:");
    const { hostname, port } = new URL(address);
    const text = body === undefined ? undefined : JSON.stringify(body);
    const token = this.bearer.current();
    const request = (secure ? https : http).request({
      agent: secure ? this.#secure : this.#plain,
      // Brackets belong to the URL, not to the address.
      hostname: hostname.replace(/^\[(.*)\]$/, "$1"),
      port: port === "" ? (secure ? 443 : 80) : Number(port),
      method,
      path,
      headers: {
        [NONCE]: nonce,
        ...(text === undefined
          ? {}
          : { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(text) }),
        ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
      },
    });
    let sent = false;
    const until = latest() + CONNECT_TIME;
    const slow = new Alarm(
      () => until,
      () => {
        request.destroy(new Error("no connection in time"));
      },
    );
    const connected = (): void => {
      sent = true;
      slow.stop();
    };
    request.once("socket", (socket) => {
      if (request.reusedSocket || !socket.connecting) {
        connected();
      } else {
        socket.once(secure ? "secureConnect" : "connect", connected);
      }
    });
    request.once("close", () => {
      slow.stop();
    });
    // Errors that come while nobody waits for the head or the body would end the process.
    request.on("error", ignore);
    let answer: http.IncomingMessage | undefined;
    request.once("response", (head) => {
      answer = head.on("error", ignore);
    });
    const head = once(request, "response").then(([answer]: http.IncomingMessage[]) => {
      if (answer?.headers[NONCE] !== nonce) {
        const stray = new Error(
          `the answer (status ${String(answer?.statusCode)}) is not that of this request: ` +
            "perhaps a program in between sent it",
        );
        request.destroy(stray);
        // A short answer is whole by now, and its connection is back in the pool, where newer versions of Node leave it.
        answer?.socket.destroy();
        throw stray;
      }
      return answer;
    });
    head.catch(ignore);
    request.end(text);
    // The connection of an answer that is whole is in the pool, where an error of it would end the process.
    const destroy = (why: Error): unknown => request.destroy(answer?.complete === true ? undefined : why);
    return { head, sent: () => sent, destroy };
  }

  /** Notes that an address gave no answer. Connections to it that are idle may be as silent, and look alive. */
  failed(address: string): void {
    this.endpoints.failed(address);
    this.#endIdle();
  }

  #endIdle(): void {
    for (const agent of [this.#plain, this.#secure]) {
      for (const socket of Object.values(agent.freeSockets).flat()) {
        socket?.destroy();
      }
    }
  }

  /** Ends every connection. */
  close(): void {
    this.#closed = true;
    this.#plain.destroy();
    this.#secure.destroy();
  }

  async #exchange(address: string, send: Send, until: number, signal?: AbortSignal): Promise<Reply | Fault> {
    if (isAborted(signal)) {
      return new Fault("the caller left", false);
    }
    const exchange = this.open(address, send);
    const leave = (): void => {
      exchange.destroy(new Error("the caller left"));
    };
    signal?.addEventListener("abort", leave, { once: true });
    const alarm = new Alarm(
      () => until,
      () => {
        exchange.destroy(new Error("no answer in time"));
      },
    );
    try {
      const head = await exchange.head;
      const { socket } = head;
      const answer = Reply.read(head.statusCode ?? 0, await readAll(head));
      const why = answer instanceof Fault ? answer.message : whyNot(send, answer);
      if (answer instanceof Fault || why !== undefined) {
        // Closed even if it is back in the pool: its next answers would be wrong, too.
        socket.destroy();
        throw new Error(why);
      }
      return answer;
    } catch (error) {
      // A caller that left says nothing about the address.
      if (!isAborted(signal)) {
        this.failed(address);
      }
      const why = `${address}: ${error instanceof Error ? error.message.trim() : String(error)}`;
      const ended = address.startsWith("https:") ? this.#certificates.ended() : "";
      return exchange.sent() ? new Fault(why + ended, true) : new Fault(why + advice(address) + ended, false);
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

function advice(address: string): string {
  const server = address.startsWith("https:") ? "a server with TLS" : "a server";
  return `. Is ${server} running there? If not, start one with \`palisade serve\`, or name another address (PALISADE_URL)`;
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

function ignore(): void {
  // Ignored on purpose: the code that waits for the answer gets the error.
}

export async function readAll(message: http.IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of message as AsyncIterable<Buffer>) {
    length += part.length;
    if (length > MAX_ANSWER_BYTES) {
      throw new Error(`the answer has more than ${MAX_ANSWER_BYTES} bytes`);
    }
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}
