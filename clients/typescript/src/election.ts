import { latest, sleepUntil } from "./clock.js";
import { Unavailable, UnknownOutcome } from "./errors.js";
import { LONGEST_PAUSE } from "./retry.js";
import type { Change } from "./watch.js";

/**
 * The holder of an election's lock, as of one moment. It is news, not proof: a leader writes through a fence, with its token.
 */
export interface Leader {
  readonly clientId: string;
  /** That of its grant, which rises with each leader. */
  readonly token: number;
  /** What it announces. */
  readonly value: string | undefined;
}

/** The options of `observe`. */
export interface ObserveOptions {
  /** Ends the observation: the loop ends with the signal's reason. */
  readonly signal?: AbortSignal;
}

/** A leader, and the revision of the latest change that the answer knows of. */
export interface Looked {
  readonly leader: Leader | undefined;
  readonly revision: number;
}

/** The present leader, and each change of it, by the changes of all locks whose names begin as its does. */
export async function* observe(
  changes: AsyncIterable<Change>,
  name: string,
  look: () => Promise<Looked>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Leader | undefined, void, void> {
  let shown: Looked | undefined;
  // The watch is there before the first look, so that no change falls between them.
  for await (const change of changes) {
    const concerns = change.kind === "connected" || change.kind === "missed" || change.lock === name;
    const seen = change.kind === "connected" ? undefined : change.revision;
    if (!concerns || (seen !== undefined && seen <= (shown?.revision ?? -1))) {
      continue;
    }
    const found = await patiently(look, signal);
    if (shown !== undefined && found.revision < shown.revision) {
      continue;
    }
    const isNew = shown === undefined || !same(shown.leader, found.leader);
    shown = found;
    if (isNew) {
      yield found.leader;
    }
  }
}

/** Looks until there is an answer. */
async function patiently(look: () => Promise<Looked>, signal: AbortSignal | undefined): Promise<Looked> {
  for (;;) {
    signal?.throwIfAborted();
    try {
      return await look();
    } catch (error) {
      if (!(error instanceof Unavailable) && !(error instanceof UnknownOutcome)) {
        throw error;
      }
      await sleepUntil(latest() + LONGEST_PAUSE, signal);
    }
  }
}

function same(one: Leader | undefined, other: Leader | undefined): boolean {
  return one?.token === other?.token && one?.clientId === other?.clientId && one?.value === other?.value;
}
