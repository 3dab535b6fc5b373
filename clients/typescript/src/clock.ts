/**
 * The holder's clock: milliseconds since the machine was started, suspension included.
 *
 * Node cannot read CLOCK_BOOTTIME. On Linux the first number in /proc/uptime is the same clock, cut off to a hundredth
 * of a second, so the time is between {@link earliest} and {@link latest}. On macOS and Windows `process.hrtime` counts
 * suspension: mach_continuous_time and the performance counter.
 */
import { openSync, readSync } from "node:fs";

/** How far a reading of /proc/uptime may be behind. */
const GRAIN = 10;
/** The system's timers stop in suspension, and the holder's clock does not: no timer is set for longer. */
const LONGEST_TIMER = 1_000;
const POINT = ".".charCodeAt(0);
const ZERO = "0".charCodeAt(0);

const uptime = process.platform === "linux" ? openUptime() : undefined;
const text = new Uint8Array(64);

/** For the time before a request is sent. */
export function earliest(): number {
  return uptime === undefined ? Number(process.hrtime.bigint() / 1_000n) / 1_000 : readUptime(uptime);
}

/** For everything that is compared with a deadline. */
export function latest(): number {
  return uptime === undefined ? earliest() : earliest() + GRAIN;
}

function openUptime(): number {
  try {
    return openSync("/proc/uptime", "r");
  } catch (cause) {
    throw new Error("palisade: there is no clock that counts suspension: /proc/uptime cannot be opened", { cause });
  }
}

function readUptime(file: number): number {
  const length = readSync(file, text, 0, text.length, 0);
  let hundredths = 0;
  let at = 0;
  for (let decimals = -1; decimals < 2 && at < length; at += 1) {
    const byte = text[at] ?? 0;
    if (byte === POINT) {
      decimals = 0;
      continue;
    }
    if (byte < ZERO || byte > ZERO + 9) {
      break;
    }
    hundredths = hundredths * 10 + byte - ZERO;
    decimals += decimals < 0 ? 0 : 1;
  }
  if (text[at - 3] !== POINT) {
    throw new Error("palisade: there is no clock that counts suspension: /proc/uptime has no number");
  }
  return hundredths * 10;
}

/** A timer for one moment of the holder's clock. It rings late if the event loop is blocked; it never rings early. */
export class Alarm {
  #timer: NodeJS.Timeout | undefined;
  #kept = true;

  constructor(
    private readonly due: () => number,
    private readonly ring: () => void,
  ) {
    this.#set();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Does not keep the process running any more. */
  unref(): void {
    this.#kept = false;
    this.#timer?.unref();
  }

  #set(): void {
    const left = this.due() - latest();
    this.#timer = setTimeout(
      () => {
        if (latest() < this.due()) {
          this.#set();
        } else {
          this.ring();
        }
      },
      Math.min(Math.max(Math.ceil(left), 0), LONGEST_TIMER),
    );
    if (!this.#kept) {
      this.#timer.unref();
    }
  }
}

/** Waits until a moment of the holder's clock, or for the end of the signal; it is not an error then. */
export async function sleepUntil(until: number, signal?: AbortSignal, isBackground = false): Promise<void> {
  if (signal?.aborted === true) {
    return;
  }
  await new Promise<void>((resolve) => {
    const end = (): void => {
      alarm.stop();
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const alarm = new Alarm(() => until, end);
    if (isBackground) {
      alarm.unref();
    }
    signal?.addEventListener("abort", end, { once: true });
  });
}
