/** The way from a fence that refuses a token as stale to the client whose grant has the token. Fences are used without a client, too. */
import { Stale } from "./fence/errors.js";

/** Hears of a refusal. */
export type Refused = (resource: string, operation: string, highest: number) => void;

const hearers = new WeakMap<object, Refused>();

/** From now on `refused` is called for a refusal of this holder. */
export function hears(holder: object, refused: Refused): void {
  hearers.set(holder, refused);
}

/** The `pass` that a fence makes of a holder is heard of as the holder is. */
export function heardAs<Pass extends object>(holder: unknown, pass: Pass): Pass {
  const refused = typeof holder === "object" && holder !== null ? hearers.get(holder) : undefined;
  if (refused !== undefined) {
    hearers.set(pass, refused);
  }
  return pass;
}

/** Returns the error. The operation is a word, without anything of the content. */
export function refused(pass: object | undefined, resource: string, operation: string, error: unknown): unknown {
  if (pass !== undefined && error instanceof Stale && error.highest !== undefined) {
    hearers.get(pass)?.(resource, operation, error.highest);
  }
  return error;
}
