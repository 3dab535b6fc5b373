import { randomBytes } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import https from "node:https";
import type { Duplex } from "node:stream";
import type tls from "node:tls";

import type { Bearer } from "./bearer.js";
import { Certificates, type TlsOptions } from "./certificates.js";
import { Alarm, latest } from "./clock.js";
import type { Asked, Exchange, Opened } from "./exchange.js";

const CONNECT_TIME = 5_000;
const MAX_IDLE = 16;
const IDLE_TIME = 90_000;
/** A request has a nonce of its own in this header, and its answer has the same one. */
const NONCE = "palisade-nonce";

/** A request of HTTP. */
interface Requested {
  readonly head: Promise<http.IncomingMessage>;
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

/** HTTP and HTTPS. */
export class Web implements Exchange {
  readonly #plain: http.Agent;
  readonly #secure: https.Agent;
  readonly #certificates: Certificates;

  constructor(
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

  /**
   * Sends a request. It never follows a redirect: that would carry the lease key elsewhere.
   *
   * If a server does not know the caller, the certificate of the connection may have expired. Nothing happened, and a new
   * connection uses the current files.
   */
  open(address: string, asked: Asked): Opened {
    let request = this.#openOnce(address, asked);
    let left: Error | undefined;
    const head = request.head.then((answer) => {
      if (answer.statusCode !== 401 || !address.startsWith("https:") || left !== undefined) {
        return answer;
      }
      request.destroy(new Error("the certificate of the connection may be over"));
      answer.socket.destroy();
      this.reset();
      request = this.#openOnce(address, asked);
      return request.head;
    });
    head.catch(ignore);
    const destroy = (why: Error): void => {
      left = why;
      request.destroy(why);
    };
    const answer = head.then((message) => {
      // A message that is read to its end has no connection any more.
      const { socket } = message;
      return { status: message.statusCode ?? 0, body: message, disown: () => socket.destroy() };
    });
    answer.catch(ignore);
    return { answer, sent: () => request.sent(), destroy };
  }

  #openOnce(address: string, { method, path, body, isBackground = false }: Asked): Requested {
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
    if (isBackground) {
      slow.unref();
    }
    request.once("socket", (socket) => {
      if (isBackground) {
        // The pool refers to it again when it is used again.
        socket.unref();
      }
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

  reset(): void {
    for (const agent of [this.#plain, this.#secure]) {
      for (const socket of Object.values(agent.freeSockets).flat()) {
        socket?.destroy();
      }
    }
  }

  hint(address: string, sent: boolean): string {
    const ended = address.startsWith("https:") ? this.#certificates.ended() : "";
    return sent ? ended : advice(address) + ended;
  }

  close(): void {
    this.#plain.destroy();
    this.#secure.destroy();
  }
}

function advice(address: string): string {
  const server = address.startsWith("https:") ? "a server with TLS" : "a server";
  return `. Is ${server} running there? If not, start one with \`palisade serve\`, or name another address (PALISADE_URL)`;
}

function ignore(): void {
  // Ignored on purpose: the code that waits for the answer gets the error.
}
