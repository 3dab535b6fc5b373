import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import tls from "node:tls";

import { Invalid } from "./errors.js";
import { checkOptions, short } from "./options.js";

/** For https addresses: authorities and a client certificate, in PEM or PKCS #12, as in `node:tls`, or in files. */
export type TlsOptions = Pick<tls.SecureContextOptions, "ca" | "cert" | "key" | "passphrase" | "pfx"> & {
  /** The name in the server's certificate, if it is not that of the address. */
  readonly servername?: string;
  /**
   * Files in PEM, in place of `ca`, `cert` and `key`. They are read again for each new connection, so they may be replaced
   * while the client runs; while the new files do not match, the old ones stay in use.
   */
  readonly caFile?: string;
  readonly certFile?: string;
  readonly keyFile?: string;
};

const FILES = { ca: "caFile", cert: "certFile", key: "keyFile" } as const;
const KNOWN = ["ca", "cert", "key", "passphrase", "pfx", "servername", ...Object.values(FILES)];

type Contents = Partial<Record<keyof typeof FILES, Buffer>>;

/**
 * The CAs and the certificate of a client, read from its files for each new connection. A certificate may be valid for an hour,
 * and the client may run for weeks.
 */
export class Certificates {
  readonly #options: TlsOptions;
  #contents: Contents;
  #context: tls.SecureContext;

  constructor(options: TlsOptions) {
    checkOptions("the option tls", options, KNOWN);
    for (const [name, file] of Object.entries(FILES)) {
      if (options[file] !== undefined && typeof (options[file] as unknown) !== "string") {
        throw new TypeError(`palisade: the option tls.${file} is the path of a file, and not ${short(options[file])}`);
      }
      if (options[name as keyof typeof FILES] !== undefined && options[file] !== undefined) {
        throw new Invalid(`the option tls has ${name} and ${file}: one of them is needed`);
      }
    }
    this.#options = options;
    try {
      this.#contents = this.#read();
      this.#context = this.#made(this.#contents);
    } catch (error) {
      throw new Invalid(`the option tls cannot be used: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  /** As the files have it now, or else as it was: one of two files may be being replaced. */
  current(): tls.SecureContext {
    try {
      const contents = this.#read();
      if (!same(contents, this.#contents)) {
        this.#context = this.#made(contents);
        this.#contents = contents;
      }
    } catch {
      // The next connection looks again.
    }
    return this.#context;
  }

  /**
   * Words for an error if the client's certificate has ended by the clock here: a server ends the connection then, and often
   * nothing comes through of its reason.
   */
  ended(): string {
    const pem = this.#contents.cert ?? [this.#options.cert].flat()[0];
    if (pem === undefined) {
      return "";
    }
    try {
      const end = new Date(new X509Certificate(pem).validTo);
      if (end.getTime() < Date.now()) {
        const file = this.#options.certFile === undefined ? "" : `${this.#options.certFile} `;
        return `. Perhaps because the client's certificate ${file}has expired (${end.toISOString()}): put a new one in its place`;
      }
    } catch {
      // It is not in PEM.
    }
    return "";
  }

  #read(): Contents {
    const found: Contents = {};
    for (const name of Object.keys(FILES) as (keyof typeof FILES)[]) {
      const file = this.#options[FILES[name]];
      if (file !== undefined) {
        found[name] = readFileSync(file);
      }
    }
    return found;
  }

  #made(contents: Contents): tls.SecureContext {
    const { ca, cert, key, passphrase, pfx } = this.#options;
    const given = { ca, cert, key, passphrase, pfx, ...contents };
    return tls.createSecureContext(given);
  }
}

function same(one: Contents, other: Contents): boolean {
  const equal = (name: keyof Contents): boolean =>
    Buffer.compare(one[name] ?? Buffer.alloc(0), other[name] ?? Buffer.alloc(0)) === 0;
  return equal("ca") && equal("cert") && equal("key");
}
