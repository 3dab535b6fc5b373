import { inspect } from "node:util";

/**
 * Refuses a value that is not an object of options, and unknown option names: programs in JavaScript, and spread
 * objects, pass anything, and a wrong name would silently mean the default.
 */
export function checkOptions(where: string, given: unknown, known: readonly string[]): void {
  // Of a Promise, a Map or a Date every option would silently mean the default.
  if (!isPlain(given)) {
    throw new TypeError(
      `palisade: ${where} takes an object of options (${known.join(", ")}), and not ${short(given)}${awaited(given)}`,
    );
  }
  for (const name of Object.keys(given as object)) {
    if (!known.includes(name)) {
      const near = nearest(name, known);
      const advice = near === undefined ? `there are ${known.join(", ")}` : `did you mean ${near}?`;
      throw new TypeError(`palisade: ${where} has no option ${name}: ${advice}`);
    }
  }
}

/**
 * Refuses a value of another kind, because programs in JavaScript pass anything. `wanted` describes the right value.
 */
export function checkKind(what: string, value: unknown, isRight: boolean, wanted: string): void {
  if (!isRight) {
    throw new TypeError(`palisade: ${what} is ${wanted}, and not ${short(value)}${awaited(value)}`);
  }
}

/** Whether it is an object with names of the caller's, and no list, Promise, Map, Date or Buffer. */
export function isPlain(value: unknown): boolean {
  return Object.prototype.toString.call(value) === "[object Object]";
}

/** The properties of anything. */
export function shapeOf(value: unknown): Readonly<Record<string, unknown>> {
  return (value ?? {}) as Record<string, unknown>;
}

export function checkSignal(signal: unknown): void {
  const isRight = signal === undefined || signal instanceof AbortSignal;
  checkKind("the option signal", signal, isRight, "an AbortSignal, as of an AbortController");
}

export function checkText(what: string, value: unknown): void {
  checkKind(what, value, typeof value === "string", "a text");
}

function awaited(value: unknown): string {
  return value instanceof Promise ? ": await it" : "";
}

/** A value as a message shows it. */
export function short(value: unknown): string {
  const text = typeof value === "function" ? "a function" : inspect(value, { depth: 0, breakLength: Infinity });
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

/** The known name that is meant: one with the same beginning, or one that few letters make of it. */
function nearest(name: string, known: readonly string[]): string | undefined {
  const plain = (text: string): string => text.toLowerCase().replace(/[^a-z]/g, "");
  const given = plain(name);
  const far = (candidate: string): number => {
    const other = plain(candidate);
    return other.startsWith(given) || given.startsWith(other) ? 0 : distance(given, other);
  };
  const [best] = known.map((candidate) => ({ candidate, by: far(candidate) })).sort((one, other) => one.by - other.by);
  return best !== undefined && best.by <= Math.max(given.length / 2, 2) ? best.candidate : undefined;
}

/** How many letters are added, left out or changed. */
function distance(one: string, other: string): number {
  let before = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (let row = 0; row < one.length; row += 1) {
    const now = [row + 1];
    for (let at = 0; at < other.length; at += 1) {
      const change = (before[at] ?? 0) + (one[row] === other[at] ? 0 : 1);
      now.push(Math.min(change, (before[at + 1] ?? 0) + 1, (now[at] ?? 0) + 1));
    }
    before = now;
  }
  return before[other.length] ?? 0;
}
