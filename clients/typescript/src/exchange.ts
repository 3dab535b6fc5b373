/**
 * The seam between a client and its way to a server. What a client decides is above it: addresses, repetitions, deadlines,
 * refusals. Below it is HTTP, or the double of `palisade-client/testing`.
 */
export interface Exchange {
  /** Sends a request. */
  open(address: string, asked: Asked): Opened;
  /** An answer did not come in time, so nothing that is open now is used for the next request. */
  reset(): void;
  /** Why there was no answer, beside the error, for people; "" if nothing is known. */
  hint(address: string, sent: boolean): string;
  close(): void;
}

/** A request can be sent again as it is. */
export interface Asked {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: object;
  /** It does not keep the process running. */
  readonly isBackground?: boolean;
}

/** A request under way. */
export interface Opened {
  /** Is there when the head of the request's own answer is. That of another request is an error. */
  readonly answer: Promise<Answer>;
  /** Whether the request may have reached a server. */
  sent(): boolean;
  destroy(why: Error): void;
}

/** An answer, of which the body may still be on its way. That of a watch has no end. */
export interface Answer {
  readonly status: number;
  readonly body: AsyncIterable<Uint8Array>;
  /** Ends what the answer came on: it is that of another request, and the next ones would be, too. */
  disown(): void;
}

/** The property of a client's options that replaces HTTP: it makes a way with connections of its own. */
export const THROUGH: unique symbol = Symbol("palisade: through");

export interface Through {
  readonly [THROUGH]?: () => Exchange;
}
