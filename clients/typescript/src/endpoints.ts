import { Invalid } from "./errors.js";
import { checkKind } from "./options.js";
import type { Reply } from "./reply.js";

const DEFAULT_URL = "http://127.0.0.1:7420";
/** How often a leader is followed in a row. */
const MAX_HOPS = 5;

/** Stays at the address that last answered, follows the leader, and goes on to the next address after a failure. */
export class Endpoints {
  readonly #urls: readonly string[];
  #at = 0;
  #leader: string | undefined;
  #hops = 0;
  /** The address that answered last. */
  #alive: string | undefined;
  /** How often an address failed, or did not lead. */
  breaks = 0;

  /** With `secret` a bearer token is sent, so every address must keep it from others. */
  constructor(
    urls: string | readonly string[] | undefined,
    private readonly secret = false,
  ) {
    const given = urls ?? (process.env["PALISADE_URL"] || DEFAULT_URL);
    const list = typeof given === "string" ? given.split(",") : given;
    checkKind("the option urls", list, Array.isArray(list), "an address, or a list of addresses");
    if (list.length === 0) {
      throw new Invalid(`the address of a server is needed, such as ${DEFAULT_URL}`);
    }
    this.#urls = list.map(checkedUrl);
    const open = this.#urls.find((url) => !keepsSecrets(url));
    if (secret && open !== undefined) {
      throw new Invalid(`a token is not sent to ${open} without TLS, because others could read it: write https://`);
    }
  }

  current(): string {
    return this.#leader ?? this.#urls[this.#at] ?? DEFAULT_URL;
  }

  /** The same addresses, for requests whose failures say nothing about these. They begin where this is now. */
  apart(): Endpoints {
    const apart = new Endpoints(this.#urls, this.secret);
    apart.#at = this.#at;
    apart.#leader = this.#leader;
    return apart;
  }

  /** Whether that address is the one that answered last. */
  isAlive(address: string): boolean {
    return address === this.#alive;
  }

  /** Goes on to the next address, unless another call already did. */
  failed(address: string): void {
    this.breaks += 1;
    if (address === this.#alive) {
      this.#alive = undefined;
    }
    if (address === this.#leader) {
      this.#leader = undefined;
    } else if (this.#leader === undefined && address === this.#urls[this.#at]) {
      this.#at = (this.#at + 1) % this.#urls.length;
    }
  }

  /** Records an answer's information about the address and the leader. Returns true if the leader must be asked at once. */
  answered(address: string, reply: Reply): boolean {
    this.#alive = address;
    if (reply.status < 500 || reply.code !== "not_leader") {
      this.#hops = 0;
      if (reply.fault !== undefined) {
        this.failed(address);
      }
      return false;
    }
    this.failed(address);
    this.#hops += 1;
    if (this.#hops > MAX_HOPS) {
      this.#hops = 0;
      return false;
    }
    const leader = reply.leader === undefined ? undefined : urlOrUndefined(reply.leader);
    if (leader === undefined || (address.startsWith("https:") && !leader.startsWith("https:"))) {
      return false;
    }
    if (this.secret && !keepsSecrets(leader)) {
      return false;
    }
    this.#leader = leader;
    return true;
  }
}

function urlOrUndefined(address: string): string | undefined {
  try {
    return checkedUrl(address);
  } catch {
    return undefined;
  }
}

/** Whether nobody on the way can read the requests: they use TLS, or stay on this machine. */
function keepsSecrets(address: string): boolean {
  const { protocol, hostname } = new URL(address);
  return protocol === "https:" || hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
}

/** Never puts the password of an address into an error. */
function checkedUrl(address: string): string {
  if (!URL.canParse(address.trim())) {
    throw new Invalid("an address cannot be read: http://HOST:PORT is needed");
  }
  const url = new URL(address.trim());
  if (url.username !== "" || url.password !== "") {
    throw new Invalid("an address with a password is not supported: use the option token");
  }
  const plain = url.pathname === "/" && url.search === "" && url.hash === "" && url.hostname !== "";
  if (!plain || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw new Invalid(`${JSON.stringify(address)} is not the address of a server: http://HOST:PORT is needed`);
  }
  return url.origin;
}
