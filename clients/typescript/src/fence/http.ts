/**
 * HTTP: presents a fencing token to an API behind `palisade gateway`, or to a service with Palisade's tower layer.
 *
 * ```ts
 * const api = fencedFetch(lease);
 * await throwIfRejected(await api(url, { method: "POST", headers: CLAIM })); // first: raises the fence
 * await throwIfRejected(await api(url, { method: "PUT", body, headers: numbered(1) }));
 * ```
 *
 * @packageDocumentation
 */
import { Invalid, Unavailable, UnknownOutcome } from "../errors.js";
import { checkKind, shapeOf } from "../options.js";
import { refused } from "../refusals.js";
import { asNumber, asObject, asText, parsed } from "../reply.js";
import { isRejectionCode, rejected } from "./errors.js";
import { checkSequence, presented, type Holder, type Pass } from "./holder.js";

/** Makes a request one that raises the fence and does nothing else. */
export const CLAIM: Readonly<Record<string, string>> = { "X-Fencing-Operation": "claim" };

/** The number of a write among those of the grant, 0 – 2^53 − 1, with which it is safe to repeat. */
export function numbered(sequence: number): Record<string, string> {
  checkKind("the sequence number", sequence, typeof sequence === "number", "a whole number");
  checkSequence(sequence);
  return { "X-Fencing-Sequence": String(sequence) };
}

/** The headers of a holder, for a client that is not `fetch`. Throws `LeaseLost` for a lease that is lost. */
export function headers(holder: Holder): Record<string, string> {
  return headersOf(presented(holder));
}

function headersOf({ token, authority, lock }: Pass): Record<string, string> {
  return {
    "X-Fencing-Token": String(token),
    ...(authority === undefined ? {} : { "X-Fencing-Authority": authority }),
    ...(lock === undefined ? {} : { "X-Fencing-Lock": lock }),
  };
}

/** Of an answer that may be a refusal: whose request it is of, and how it is reported. */
const requests = new WeakMap<object, { readonly pass: Pass; readonly resource: string; readonly operation: string }>();

/**
 * `fetch` with the holder's headers. A request of a lease that is lost is not sent: it rejects with `LeaseLost`. The
 * caller's request is not changed.
 */
export function fencedFetch(holder: Holder, next: typeof fetch = fetch): typeof fetch {
  checkKind("what fencedFetch calls", next, typeof next === "function", "a function like fetch");
  return async (input, init) => {
    const request = new Request(input, init);
    const pass = presented(holder);
    for (const [name, value] of Object.entries(headersOf(pass))) {
      request.headers.set(name, value);
    }
    const answer = await next(request);
    if (Number(shapeOf(answer)["status"]) >= 400) {
      const { host, pathname } = new URL(request.url);
      const isClaim = request.headers.get("X-Fencing-Operation") === "claim";
      // The query may be a secret.
      requests.set(answer, { pass, resource: host, operation: isClaim ? "claim" : `${request.method} ${pathname}` });
    }
    return answer;
  };
}

/**
 * Returns the answer, unless the fence, or a proxy in front of the service, refused the request. Then it throws `Stale`,
 * another `Rejected`, `Unavailable`, `UnknownOutcome` or `Invalid`. Other answers are the service's own; their body can
 * still be read.
 */
export async function throwIfRejected(answer: Response): Promise<Response> {
  const { status, clone } = shapeOf(answer);
  const isAnswer = typeof status === "number" && typeof clone === "function";
  checkKind("what throwIfRejected takes", answer, isAnswer, "the Response of a fetch");
  if (answer.status < 400) {
    return answer;
  }
  const told = asObject(parsed(await answer.clone().text())?.["error"]) ?? {};
  const code = asText(told["code"]) ?? "";
  const message = asText(told["message"]) ?? code;
  if (isRejectionCode(code)) {
    const { pass, resource = "", operation = "" } = requests.get(answer) ?? {};
    const error = rejected(code, {
      token: asNumber(told["token"]),
      highest: asNumber(told["highest"]),
      last: asNumber(told["last"]),
      bound: asNumber(told["bound"]),
      authority: asText(told["authority"]),
      lock: asText(told["lock"]),
    });
    throw refused(pass, resource, operation, error);
  }
  switch (code) {
    case "unavailable":
      throw new Unavailable(code, message);
    case "unknown_outcome":
      throw new UnknownOutcome(code, message);
    case "invalid":
    case "no_route":
      throw new Invalid(message, code);
  }
  return answer;
}
