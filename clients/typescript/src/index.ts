/**
 * Leases with fencing tokens, and the fences that make the tokens count.
 *
 * No lock service can stop two processes from both believing they hold a lock. The lease saves work; the fence keeps data
 * safe: give the lease to a fence, such as `palisade-client/fence/pg`.
 *
 * @packageDocumentation
 */
export type { TlsOptions } from "./certificates.js";
export { Client, type ClientOptions, type LockInfo, type Status } from "./client.js";
export {
  Invalid,
  LeaseLost,
  LockHeld,
  NotAcquired,
  OperatorNeeded,
  PalisadeError,
  Unavailable,
  UnknownOutcome,
  type ErrorKind,
  type LockHolder,
} from "./errors.js";
export type { Leader, ObserveOptions } from "./election.js";
export { Lease, slotKey, type Released } from "./lease.js";
export type { Notice } from "./notices.js";
export type { LockEvent, MissedEvent, WatchEvent, WatchOptions } from "./watch.js";
export type { AcquireOptions, Permits, UpgradeOptions } from "./wish.js";
