import { OperatorNeeded, PalisadeError } from "../errors.js";

/** The details of a rejection. */
export interface Told {
  /** The token that was refused: for stale. */
  readonly token?: number | undefined;
  /** The highest token that was admitted: for stale, tokenless and jump. */
  readonly highest?: number | undefined;
  /** The highest sequence number: for sequence_stale and sequence_reused. */
  readonly last?: number | undefined;
  /** How far one token is believed: for jump. */
  readonly bound?: number | undefined;
  /** The authority that the resource belongs to: for wrong_authority. */
  readonly authority?: string | undefined;
  /** The lock that the resource belongs to: for wrong_lock. */
  readonly lock?: string | undefined;
}

const SAYS = {
  stale: "a newer holder has claimed this resource: give up, and write nothing more",
  wrong_authority: "the resource belongs to another authority: tokens of two authorities are never compared",
  wrong_lock: "the resource belongs to another lock",
  jump: "the token is too far above the highest that this resource has seen",
  sequence_stale: "a later write of this grant was already carried out: this is a late duplicate",
  sequence_reused: "this sequence number was used for another write of this grant",
  already_written: "there was already a write under this token",
  tokenless: "the resource is fenced, and this write has no fencing token",
  missing: "there is nothing to change",
} as const;

/** Why a fence does not admit an operation. */
export type RejectionCode = keyof typeof SAYS;

/** The fence refuses the operation, and nothing changed: roll back, and write nothing more. */
export class Rejected extends PalisadeError {
  readonly kind = "rejected";
  override readonly code: RejectionCode;
  readonly token: number | undefined;
  readonly highest: number | undefined;
  readonly last: number | undefined;
  readonly bound: number | undefined;
  readonly authority: string | undefined;
  readonly lock: string | undefined;

  constructor(code: RejectionCode, told: Told = {}) {
    const details = (["highest", "last", "bound", "authority", "lock"] as const).flatMap((name) =>
      told[name] === undefined ? [] : [`${name}: ${told[name]}`],
    );
    const both = `token ${told.token} is stale: ${told.token} < ${told.highest}; ${SAYS.stale}`;
    const others = SAYS[code] + (details.length === 0 ? "" : ` (${details.join(", ")})`);
    super(code, code === "stale" && told.token !== undefined ? both : others);
    this.code = code;
    this.token = told.token;
    this.highest = told.highest;
    this.last = told.last;
    this.bound = told.bound;
    this.authority = told.authority;
    this.lock = told.lock;
  }
}

/** A newer holder has claimed the resource: give up. */
export class Stale extends Rejected {
  constructor(token: number | undefined, highest: number | undefined) {
    super("stale", { token, highest });
  }
}

/**
 * The token that a server's words call stale: `token N is stale: N < M`.
 * @internal
 */
export function staleToken(said: unknown): number | undefined {
  const found = /token (\d+) is stale: /.exec(String(said))?.[1];
  return found === undefined ? undefined : Number(found);
}

/** @internal */
export function rejected(code: RejectionCode, told: Told): Rejected {
  return code === "stale" ? new Stale(told.token, told.highest) : new Rejected(code, told);
}

/** @internal */
export function isRejectionCode(code: string): code is RejectionCode {
  return Object.hasOwn(SAYS, code);
}

/**
 * There is data without the state of its fence, or the state is damaged. An operator re-arms the fence with a floor:
 * `palisade fence rearm`.
 */
export class FenceLost extends OperatorNeeded {
  constructor(message: string) {
    super("fence_lost", message);
  }
}

/** The fence's tables or functions are missing. */
export class FenceNotInstalled extends OperatorNeeded {
  constructor(message: string, options?: ErrorOptions) {
    super("not_installed", message, options);
  }
}
