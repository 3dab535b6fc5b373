import { earliest, latest } from "./clock.js";
import { Invalid, LeaseLost } from "./errors.js";
import { renewal } from "./grant.js";
import {
  asObject,
  asText,
  asToken,
  asSlots,
  Fault,
  parsed,
  readRenewal,
  Reply,
  type Granted,
  type Json,
} from "./reply.js";
import { attemptTime, Backoff } from "./retry.js";
import type { Transport } from "./transport.js";
import { Wish } from "./wish.js";

const FORM = "palisade-lease/1.";
const MAX_PERMITS = 64;

/** A lease that was handed over, before its first renewal here. */
export interface Exported {
  readonly wish: Wish;
  readonly grant: Granted;
}

/** The text that hands a grant over. It has no deadline: that of this machine's clock means nothing on another one's. */
export function exported(wish: Wish, grant: Granted, held: readonly string[]): string {
  const fields = {
    lock: held[0],
    authority: grant.authority,
    fencing_token: grant.token,
    lock_token: grant.leaseKey,
    ttl_ms: wish.ttlMs,
    client_id: wish.clientId,
    ...(wish.locks.length > 1 ? { parts: held } : {}),
    ...(wish.shared ? { mode: wish.mode, grant_id: grant.number } : {}),
    ...(wish.permits === undefined ? {} : { slots: grant.slots, permits: wish.permits.of }),
    ...(wish.metadata === undefined || wish.metadata === "" ? {} : { metadata: wish.metadata }),
  };
  return FORM + Buffer.from(JSON.stringify(fields)).toString("base64url");
}

/** Never puts the text into an error: it is a secret. */
export function readExported(text: unknown): Exported {
  if (typeof text !== "string") {
    throw new TypeError(
      `palisade: adopt takes the text of lease.export(), and not ${text instanceof Promise ? "a Promise: await it" : `a value of the type ${typeof text}`}`,
    );
  }
  const encoded = text.trim();
  if (!encoded.startsWith(FORM)) {
    throw damaged(`it does not begin with ${FORM}`);
  }
  const content = encoded.slice(FORM.length);
  const fields = /^[\w-]+$/.test(content) ? asObject(parsed(Buffer.from(content, "base64url").toString())) : undefined;
  if (fields === undefined) {
    throw damaged("it is damaged");
  }
  const grant = grantOf(fields);
  try {
    return { wish: wishOf(fields, grant), grant };
  } catch (error) {
    if (error instanceof Invalid || error instanceof TypeError) {
      throw damaged("lock, parts, ttl_ms, client_id, mode, permits or metadata are missing or out of range");
    }
    throw error;
  }
}

function grantOf(fields: Json): Granted {
  const token = asToken(fields["fencing_token"]);
  const number = fields["mode"] === undefined ? token : asToken(fields["grant_id"]);
  const leaseKey = asText(fields["lock_token"]);
  const authority = asText(fields["authority"]);
  const slots = asSlots(fields["slots"]);
  if (token === undefined || number === undefined) {
    throw damaged("fencing_token, or a reader's grant_id, is missing or out of range");
  }
  if (leaseKey === undefined || authority === undefined || slots === undefined) {
    throw damaged("lock_token, authority or slots are missing or out of range");
  }
  return { t0: 0, token, number, leaseKey, authority, validForMs: 0, waitedMs: 0, slots };
}

/** Its constructor checks the types and the ranges. */
function wishOf(fields: Json, { slots }: Granted): Wish {
  const { lock, parts, client_id, ttl_ms, mode, permits, metadata } = fields;
  const asked: Record<string, unknown> = {
    clientId: asText(client_id) ?? null,
    ttlMs: ttl_ms ?? 0,
    ...(metadata === undefined ? {} : { metadata }),
    ...(slots.length === 0 ? {} : { permits: { count: slots.length, of: permits } }),
    shared: mode === "shared",
    update: mode === "update",
  };
  const locks = Array.isArray(parts) ? (parts as unknown[]) : [parts === undefined ? lock : null];
  const wish = new Wish(locks as string[], asked);
  const isMode = mode === undefined || wish.shared;
  const isOf = slots.length === 0 || (Number(permits) >= Number(slots.at(-1)) && Number(permits) <= MAX_PERMITS);
  if (wish.lock !== lock || !isMode || !isOf) {
    throw new Invalid("lock, mode or permits are out of range");
  }
  return wish;
}

function damaged(why: string): Invalid {
  return new Invalid(`the text is not that of an exported lease: ${why}`);
}

/**
 * Renews each lock for the first time. Only a renewal that is acknowledged counts, from before it was sent, and the earliest
 * of several counts. Throws `LeaseLost`, with the name of the lock that is over.
 */
export async function adopt(
  transport: Transport,
  { wish, grant }: Exported,
  patienceMs: number,
  deadline: (t0: number, validForMs: number) => number,
  signal: AbortSignal,
): Promise<Granted> {
  const until = latest() + patienceMs;
  const renewed: { readonly t0: number; readonly validForMs: number }[] = [];
  for (const lock of wish.locks) {
    renewed.push(await firstRenewal(transport, grant, lock, until, signal));
  }
  const by = ({ t0, validForMs }: { t0: number; validForMs: number }): number => deadline(t0, validForMs);
  renewed.sort((one, other) => by(one) - by(other));
  return { ...grant, ...renewed[0] };
}

async function firstRenewal(
  transport: Transport,
  grant: Granted,
  lock: string,
  until: number,
  signal: AbortSignal,
): Promise<{ readonly t0: number; readonly validForMs: number }> {
  const pauses = new Backoff(until);
  for (;;) {
    signal.throwIfAborted();
    const [t0, now] = [earliest(), latest()];
    const left = until - now;
    const answer = await transport.send(renewal(grant, lock), now + attemptTime(0, left, left), signal);
    let fault = answer instanceof Reply ? answer.fault : answer;
    if (answer instanceof Reply && fault === undefined) {
      if (answer.over) {
        throw new LeaseLost(answer.code, lock, grant.token);
      }
      if (answer.status !== 200) {
        throw answer.error();
      }
      const validForMs = readRenewal(answer);
      if (validForMs !== undefined) {
        return { t0, validForMs };
      }
      fault = new Fault("a broken answer: valid_for_ms is missing or out of range", false);
    }
    // A renewal that may have happened leaves nothing behind: the same text may be tried again.
    const { message, silent } = fault as Fault;
    await pauses.pause(new Fault(message, false, silent), signal);
  }
}
