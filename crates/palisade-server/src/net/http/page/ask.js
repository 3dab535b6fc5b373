// Questions to the server that this page came from.

export const TOKEN_KEY = "palisade-token";

const SILENCE = 40_000;       // The server sends a comment every 15 s.
const READ_PAUSE = 100;       // A busy server reports changes that were skipped, instead of keeping this tab busy.

/** The server answered, and this is why not. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** Nothing came, or not all of it. */
export class NoAnswer extends Error {}
const noAnswer = (error) => {
  throw new NoAnswer(error.message);
};

export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" })
    .catch(noAnswer);
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error?.code ?? "", body.error?.message ?? answer.statusText);
}

/** An answer with the moment when it came, by this machine's clock, and the server's time then. */
export async function get(path, patience = 20_000) {
  const answer = await ask(path, { signal: AbortSignal.timeout(patience) });
  // The server's clock, to a second; without it, this machine's.
  const date = Date.parse(answer.headers.get("date") ?? "");
  const body = await answer.json().catch(noAnswer);
  return Object.assign(body, {
    came: performance.now(), at: new Date(), now: Number.isNaN(date) ? Date.now() : date + 500,
  });
}

/** Follows changes until `signal`, over broken connections. */
export async function follow(prefix, after, on, signal) {
  let last = after;
  for (let wait = 250; !signal.aborted; wait = Math.min(2 * wait, 5_000)) {
    const quiet = new AbortController();
    let timer = setTimeout(() => quiet.abort(), SILENCE);
    try {
      const from = last === null ? "" : `&after_revision=${last}`;
      const answer = await ask(`v1/watch?prefix=${encodeURIComponent(prefix)}${from}`,
        { signal: AbortSignal.any([signal, quiet.signal]) });
      wait = 250;
      on.live();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => quiet.abort(), SILENCE);
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        const changes = events.map(parsed).filter(Boolean);
        if (changes.length > 0) {
          last = changes.at(-1).id;
          on.changes(changes);
          await new Promise((done) => setTimeout(done, READ_PAUSE));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused) {
        if (error.status === 401) return on.stranger(error.message);
        if (error.status === 403) return on.refused(error.message);
        // Another authority answers there now, so the events seen so far do not count.
        if (error.status === 400) last = null;
      }
    } finally {
      clearTimeout(timer);
    }
    if (signal.aborted) return;
    on.lost();
    await new Promise((done) => setTimeout(done, wait));
  }
}

/** One server-sent event; nothing for a comment. */
function parsed(event) {
  const fields = Object.fromEntries(event.split("\n").map((line) => {
    const colon = line.indexOf(": ");
    return [line.slice(0, colon), line.slice(colon + 2)];
  }));
  const data = fields.event && JSON.parse(fields.data);
  return data && { kind: fields.event, id: fields.id, at: new Date(data.time ?? Date.now()), ...data };
}
