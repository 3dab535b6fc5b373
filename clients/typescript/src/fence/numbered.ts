import { Invalid } from "../errors.js";
import { checkKind, checkOptions } from "../options.js";
import { checkSequence } from "./holder.js";

/** The longest result that is recorded with a numbered write, in bytes. */
export const MAX_RESULT_BYTES = 65_536;

/** The number of a write among those of the grant, 0 – 2^53 − 1, and a digest of its content, 0 – 2^64 − 1. */
export interface WriteNumber {
  readonly sequence: number;
  readonly digest?: bigint;
}

export interface Written {
  /** The write was carried out before: write nothing more. */
  readonly repeat: boolean;
  /** The result that was recorded then. */
  readonly result: Uint8Array | undefined;
}

/** @internal */
export function checkWrite(number: WriteNumber | undefined): void {
  if (number === undefined) {
    return;
  }
  checkOptions("write", number, ["sequence", "digest"]);
  checkNumber(number.sequence);
  const { digest } = number;
  checkKind("the digest", digest, digest === undefined || typeof digest === "bigint", "a bigint");
  if (digest !== undefined && BigInt.asUintN(64, digest) !== digest) {
    throw new Invalid(`the digest ${String(digest)} is out of range: 0 to 2^64 - 1 are allowed`);
  }
}

/** The number of a write, where one is needed. @internal */
export function checkNumber(sequence: number): void {
  checkKind("the sequence number", sequence, typeof sequence === "number", "a whole number");
  checkSequence(sequence);
}

/** @internal */
export function checkResult(result: Uint8Array): void {
  checkKind("the result", result, (result as unknown) instanceof Uint8Array, "a Uint8Array");
  if (result.length > MAX_RESULT_BYTES) {
    throw new Invalid(`the result has ${result.length} bytes; 0 to ${MAX_RESULT_BYTES} are allowed`);
  }
}
