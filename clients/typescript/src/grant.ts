import { difference, type Granted, type Json, type Reply } from "./reply.js";
import type { Send } from "./transport.js";
import { lockPath } from "./wish.js";

/**
 * A request about a grant, which names it by both of its names: a late copy can never touch a later grant. A good answer has
 * the `wanted` fields.
 */
export function about(grant: Granted, lock: string, verb: string, wanted: Json, more: Json = {}): Send {
  const body = { lock_token: grant.leaseKey, fencing_token: grant.number, ...more };
  const differs = (answer: Reply): string | undefined => {
    if (answer.status === 200) {
      return difference(answer, { resource_id: lock, ...wanted });
    }
    const ended = answer.endedGrant;
    return ended === undefined || ended === grant.number ? undefined : "another grant is over";
  };
  return { method: "POST", path: lockPath(lock, verb), body, differs };
}

export function renewal(grant: Granted, lock: string): Send {
  const own = { fencing_token: grant.token, authority: grant.authority };
  return about(grant, lock, "/renew", { ...own, lock_acquired: undefined, released: undefined });
}

export function release(grant: Granted, lock: string): Send {
  return about(grant, lock, "/release", { fencing_token: grant.number, released: true, authority: grant.authority });
}
