import { readFileSync } from "node:fs";

import { Invalid } from "./errors.js";
import { checkKind } from "./options.js";

export interface BearerOptions {
  readonly token?: string;
  readonly tokenFile?: string;
}

/** The bearer token: the one that was given, that of a file, or that of PALISADE_TOKEN. No error repeats it: it is a secret. */
export class Bearer {
  readonly #file: string | undefined;
  #token: string | undefined;

  constructor({ token, tokenFile }: BearerOptions) {
    if (token !== undefined && typeof (token as unknown) !== "string") {
      // Not shown: it is a secret.
      throw new TypeError(`palisade: the option token is a text, and not a value of the type ${typeof token}`);
    }
    checkKind(
      "the option tokenFile",
      tokenFile,
      ["undefined", "string"].includes(typeof tokenFile),
      "the path of a file",
    );
    if (token !== undefined && tokenFile !== undefined) {
      throw new Invalid("token and tokenFile are both given: give one of them");
    }
    this.#file = tokenFile;
    if (tokenFile !== undefined) {
      this.#token = readToken(tokenFile);
    } else {
      const text = token ?? process.env["PALISADE_TOKEN"];
      this.#token = text === undefined ? undefined : checked(token === undefined ? "PALISADE_TOKEN" : "token", text);
    }
  }

  get isSet(): boolean {
    return this.#token !== undefined;
  }

  /**
   * The token as it is now. A file is read again: its token may be replaced before it expires. While the file cannot be
   * used, the last token stays.
   */
  current(): string | undefined {
    if (this.#file !== undefined) {
      try {
        this.#token = readToken(this.#file);
      } catch (error) {
        if (!(error instanceof Invalid)) {
          throw error;
        }
      }
    }
    return this.#token;
  }
}

function readToken(file: string): string {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new Invalid(`tokenFile cannot be read: ${error instanceof Error ? error.message : String(error)}`);
  }
  return checked(file, text);
}

function checked(from: string, text: string): string {
  if (!/^[!-~]+$/.test(text.trim())) {
    throw new Invalid(`${from}: a bearer token is printable ASCII without spaces`);
  }
  return text.trim();
}
