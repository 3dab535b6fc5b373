// The page of a Palisade server. It asks the HTTP interface like any other client and keeps nothing but the token that
// was typed in, for as long as the tab is open.
//
//   address bar (#/…) ─► view ─┬─► GET /v1/… now, after changes, and every few seconds ─► drawn again
//                              └─► GET /v1/watch, resumed by its last id ─► changes
//
// Text from clients is inserted as text, never as markup.

const POLL = 2_000;           // Queues change without an event, so the page asks for its data again.
const SETTLE = 300;           // Changes that come close together cause one question.
const SILENCE = 40_000;       // The server sends a comment every 15 s.
const SHOWN_CHANGES = 40;
const READ_PAUSE = 100;       // A busy server reports changes that were skipped, instead of keeping this tab busy.

const main = document.getElementById("main");
const footer = document.getElementById("footer");
const connection = document.getElementById("connection");
const query = document.getElementById("query");

// ---- What is drawn

/** An element with attributes and children; strings become text. */
function el(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const number = (value) => value.toLocaleString("en-US").replaceAll(",", "\u2009");

/** A length of time in its two largest units. */
function span(ms) {
  if (ms < 0) return "0 s";
  if (ms < 1_000) return `${(ms / 1_000).toFixed(1)} s`;
  const s = Math.floor(ms / 1_000);
  if (s < 60) return `${s} s`;
  if (s < 3_600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3_600)} h ${Math.floor((s % 3_600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3_600)} h`;
}

const clock = (at) => at.toLocaleTimeString("en-GB");

/** Times that go on between two answers: text is set again each second. */
const running = new Set();
function counts(text) {
  const shown = el("span", {}, text());
  running.add([shown, text]);
  return shown;
}
setInterval(() => {
  for (const entry of running) {
    const [shown, text] = entry;
    if (shown.isConnected) shown.textContent = text();
    else running.delete(entry);
  }
}, 1_000);

/** How long until `ms` from when the answer came have passed. */
function left(ms, came) {
  return counts(() => {
    const rest = ms - (performance.now() - came);
    return rest > 0 ? span(rest) : "due";
  });
}

/** How long ago; the server's clock tells when, this machine's only how much time has passed since the answer. */
function held(holder, answer) {
  const at = Date.parse(holder.acquired_at);
  if (Number.isNaN(at)) return "";
  return counts(() => span(answer.now - at + (performance.now() - answer.came)));
}

const lockLink = (name) => el("a", { class: "name", href: `#/lock/${encodeURIComponent(name)}` }, name);

/** A table. `columns`: [heading, class, cell of a row]. */
function table(caption, columns, rows) {
  const head = columns.map(([heading, kind]) => el("th", { scope: "col", class: kind }, heading));
  const body = rows.map((row) => el("tr", {}, columns.map(([, kind, cell]) => el("td", { class: kind }, cell(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { "aria-label": caption }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

/** A client id on one line; all of it where the pointer rests. */
const client = (id) => el("span", { class: "one-line", title: id }, id);

/** A lock that nobody holds is listed while it is closed after its last grant, or waited for. */
const isClosed = (lock) => !lock.holder && lock.delayed_ms > 0;

function holderOf(lock) {
  const readers = lock.reader_count ?? 0;
  if (!lock.holder) return isClosed(lock) ? "closed after its last grant" : "";
  const kind = lock.permits ? "holder" : "reader";
  return readers > 0 ? `${number(readers)} ${readers === 1 ? kind : `${kind}s`}` : client(lock.holder.client_id);
}

const LOCK = ["lock", "name", (lock) => lockLink(lock.resource_id)];
const WAITING = ["waiting", "number", (lock) => number(lock.waiters)];
const TOKEN = ["token", "number", (lock) => lock.holder ? number(lock.holder.fencing_token) : ""];
const HOLDER = ["holder", "client", holderOf];
const heldFor = (answer) => ["held for", "number", (lock) => lock.holder ? held(lock.holder, answer) : ""];
const endsIn = (answer) => ["ends in", "number", (lock) => {
  const ms = lock.holder ? lock.holder.remaining_ms : lock.delayed_ms;
  return ms === undefined ? "" : left(ms - (answer.age_ms ?? 0), answer.came);
}];

const section = (title, note, ...content) =>
  el("section", {}, el("h2", {}, title, note ? el("small", {}, note) : null), ...content);
const empty = (text) => el("p", { class: "empty" }, text);

/**
 * The element on which a mouse button is down: if it were replaced before the button is up, the click would be lost.
 */
let pressed = null;
addEventListener("pointerdown", (event) => {
  // A menu may keep the end of another button's press to itself.
  if (event.button === 0) pressed = event.target;
}, true);
// The click comes right after.
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => {
  pressed = null;
}), true);

/** Draws into `place` again, unless somebody is selecting text or pressing something in there; whether it did. */
function draw(place, ...content) {
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && place.contains(selection.anchorNode);
  if (selecting || (pressed && place.contains(pressed))) return false;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const again = focused && focused !== place ? mark(focused) : null;
  place.replaceChildren(...content);
  if (again) [...place.querySelectorAll("a, button, input, [tabindex]")].find((one) => mark(one) === again)?.focus();
  return true;
}
const mark = (one) => `${one.tagName} ${one.getAttribute("href") ?? one.getAttribute("aria-label") ?? one.textContent}`;

// ---- What is asked

const TOKEN_KEY = "palisade-token";

class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** Nothing came, or not all of it. */
class NoAnswer extends Error {}
const noAnswer = (error) => {
  throw new NoAnswer(error.message);
};

async function ask(path, options = {}) {
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
async function get(path) {
  const answer = await ask(path, { signal: AbortSignal.timeout(20_000) });
  // The server's clock, to a second; without it, this machine's.
  const date = Date.parse(answer.headers.get("date") ?? "");
  const body = await answer.json().catch(noAnswer);
  return Object.assign(body, { came: performance.now(), now: Number.isNaN(date) ? Date.now() : date + 500 });
}

/** Follows changes until `signal`, over broken connections. */
async function follow(prefix, after, on, signal) {
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
        if (error.status === 401) return signIn(error.message);
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
  return fields.event && { kind: fields.event, id: fields.id, at: new Date(), ...JSON.parse(fields.data) };
}

// ---- Views

let leave = new AbortController();
let lastLive = null;

function connected(state, text) {
  connection.className = state;
  // Said once for each change, not with each second that passes.
  if (connection.textContent !== text) connection.textContent = text;
}

/** Shows a view: asks `load` again after changes and every few seconds. */
function show(title, { prefix, after = null, load, changes = () => {} }) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  document.title = `${title} · Palisade`;
  main.replaceChildren(el("h1", {}, title));
  const place = el("div");
  main.append(place);
  let timer = null;
  let asking = false;
  let again = false;
  const refresh = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    again = false;
    const began = performance.now();
    try {
      await load(place, signal);
      if (signal.aborted) return;
      lastLive = new Date();
      connected("live", "connected");
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return signIn(error.message);
      failed(place, error);
    } finally {
      asking = false;
    }
    // A server that takes long to answer is asked less often.
    const pause = Math.max(document.hidden ? 10 * POLL : POLL, Math.min(2 * (performance.now() - began), 5 * POLL));
    timer = setTimeout(refresh, again ? SETTLE : pause);
  };
  const soon = () => {
    if (asking) again = true;
    else {
      clearTimeout(timer);
      timer = setTimeout(refresh, SETTLE);
    }
  };
  refresh();
  if (prefix !== undefined) {
    follow(prefix, after, {
      live: soon,
      lost: soon,
      refused: (why) => changes([{ kind: "refused", why }]),
      changes: (list) => {
        changes(list);
        soon();
      },
    }, signal);
  }
}

/** Leaves the data on the page, and marks it as old in the head of the page. */
function failed(place, error) {
  if (error instanceof Refused) {
    connected("lost", error.status === 403 ? "not allowed" : "the server cannot answer now");
    place.replaceChildren(el("p", { class: "notice bad" }, error.message));
    return;
  }
  const old = lastLive ? `; what you see is from ${clock(lastLive)}` : "";
  if (error instanceof NoAnswer) return connected("lost", `no answer${old}`);
  // A mistake of this page is not the server's silence.
  console.error(error);
  connected("lost", `this page failed: ${error.message}${old}`);
}

function figures(...pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name),
    el("dd", { class: value.length > 14 ? "long" : "" }, value))));
}

/** The answer to a request, or the message of its refusal. */
const orRefusal = (question) => question.catch((error) => {
  if (error instanceof Refused && error.status !== 401) return { refused: error.message };
  throw error;
});

function ranking(ranked) {
  if (!ranked) return el("p", { class: "empty" }, "All locks are being read …");
  if (ranked.refused) return el("p", { class: "notice" }, ranked.refused);
  const note = ranked.age_ms > 3_000 ? `as of ${span(ranked.age_ms)} ago` : "";
  return el("div", { class: "columns" },
    section("Longest queues", note, ranked.contended.length === 0 ? empty("Nobody waits for a lock.")
      : table("Longest queues", [LOCK, WAITING, HOLDER, endsIn(ranked)], ranked.contended.slice(0, 10))),
    section("Held longest", note, ranked.oldest.length === 0 ? empty("No lock is held.")
      : table("Held longest", [LOCK, heldFor(ranked), HOLDER, endsIn(ranked)], ranked.oldest.slice(0, 10))));
}

function nodes(cluster) {
  if (cluster.refused) return null;
  const does = (node) => node.node === cluster.leader ? "leads" : node.voter ? "votes" : "learns";
  const silent = (node) => node.silent_ms >= 2000;
  const reached = (node) => node.connected === null ? "this node answers" : node.connected && silent(node)
    ? `silent for ${Math.floor(node.silent_ms / 1000)} s` : node.connected ? "connected"
    : `not connected${node.problem ? `: ${node.problem}` : ""}`;
  const behind = (node) => node.matched === null || cluster.last === null ? "" : number(cluster.last - node.matched);
  const trouble = cluster.leader === null ? "No node leads: locks are not granted until a majority can talk to each other."
    : cluster.disk_full;
  return section("Nodes", `term ${number(cluster.term)}`,
    trouble ? el("p", { class: "notice bad" }, trouble) : "",
    table("Nodes", [
      ["node", "name", (node) => node.node],
      ["role", "", does],
      ["connection", "", reached],
      ["for clients", "name", (node) => node.url ?? ""],
      ["entries behind", "number", behind],
    ], cluster.members));
}

function changesTable(changes) {
  return table("Changes", [
    ["time", "number", (change) => clock(change.at)],
    ["change", "", (change) => el("span", { class: change.kind }, change.kind)],
    ["lock", "name", (change) => change.kind === "missed" ? "" : lockLink(change.resource_id)],
    ["token", "number", (change) => change.kind === "missed" ? "" : number(change.fencing_token)],
    ["client", "client", (change) => change.kind === "missed"
      ? `${number(change.missed)} changes were too many to show` : `${change.client_id ?? "an operator"}${why(change)}`],
  ], changes);
}
const why = (change) => change.reason ? `, because: ${change.reason}` : "";

function overview() {
  const recent = [];
  let refusal = null;
  let list = null;
  const feed = el("div");
  const drawFeed = () => draw(feed, refusal ? el("p", { class: "notice" }, refusal)
    : recent.length === 0 ? empty("None since this page was opened.") : changesTable(recent));
  show("Locks", {
    prefix: "",
    changes: (changes) => {
      for (const change of changes.slice(-SHOWN_CHANGES)) {
        if (change.kind === "refused") refusal = change.why;
        else recent.unshift(change);
      }
      recent.length = Math.min(recent.length, SHOWN_CHANGES);
      drawFeed();
    },
    load: async (place, signal) => {
      const parts = ["figures", "nodes", "ranking", "list"].map((part) =>
        place.querySelector(`[data-part=${part}]`) ?? el("div", { "data-part": part }));
      const [top, cluster, middle, bottom] = parts;
      if (!bottom.isConnected) {
        place.replaceChildren(top, cluster, middle,
          section("Changes", "as they become durable", feed), bottom);
        draw(middle, ranking(null));
        drawFeed();
        list = listing("", bottom, signal);
      }
      const [status, members] = await Promise.all([get("v1/status"), orRefusal(get("v1/cluster"))]);
      if (signal.aborted) return;
      draw(top, figures(["locks", number(status.locks)], ["requests waiting", number(status.waiters)],
        ["leases", number(status.leases)],
        ["next token", status.next_token === null ? "none left" : number(status.next_token)]));
      draw(footer, `authority ${status.authority} · incarnation ${status.incarnation} · Palisade ${status.version}`);
      draw(cluster, ...[nodes(members)].filter(Boolean));
      await list.refresh();
      const ranked = await orRefusal(get("v1/ranking"));
      if (!signal.aborted) draw(middle, ranking(ranked));
    },
  });
}

/** The locks of a prefix: the first page is kept up to date; more pages come on demand. */
function listing(prefix, place, signal) {
  let pages = [];
  const page = async (cursor) => {
    const parameters = new URLSearchParams({ prefix, limit: 100 });
    if (cursor) parameters.set("cursor", cursor);
    return get(`v1/locks?${parameters}`);
  };
  let drawn = true;
  const render = () => {
    const rows = pages.flatMap((answer) => answer.locks.map((lock) => [lock, answer]));
    const next = pages.at(-1).next_cursor;
    const of = (column) => (row) => column(row[1])[2](row[0]);
    const columns = [LOCK, TOKEN, HOLDER, WAITING].map(([name, kind, cell]) => [name, kind, ([lock]) => cell(lock)]);
    columns.splice(3, 0, ["held for", "number", of(heldFor)], ["ends in", "number", of(endsIn)]);
    const title = prefix ? `Locks that begin with ${prefix}` : "All locks";
    const none = prefix ? "No lock that begins so is held." : "No lock is held.";
    drawn = draw(place, section(title, pages.length > 1 ? `as of ${clock(pages[0].at)}` : "",
      rows.length === 0 ? empty(none) : table(title, columns, rows),
      el("p", { class: "more" },
        next ? el("button", { type: "button", onclick: more }, "Show more") : null,
        pages.length > 1 ? el("button", { type: "button", onclick: again }, "Read again") : null,
        rows.length > 0 ? `${number(rows.length)} shown` : null)));
  };
  let asked = 0;
  const load = async (cursor, kept) => {
    // A question that was asked while a page was on its way makes its answer one of the past.
    const question = ++asked;
    const answer = Object.assign(await page(cursor), { at: new Date() });
    if (signal.aborted || question !== asked) return;
    pages = [...kept, answer];
    render();
  };
  // No refresh overtakes the reader's own request.
  let asking = 0;
  const wanted = (cursor, kept) => {
    asking += 1;
    return load(cursor, kept).catch((error) => failed(place, error)).finally(() => asking -= 1);
  };
  const more = () => wanted(pages.at(-1).next_cursor, pages);
  const again = () => wanted(null, []);
  // Pages that were asked for stay as they are: a list that moves while it is read is of no use.
  return { refresh: async () => pages.length > 1 || asking > 0 ? drawn || render() : load(null, []) };
}

function found(prefix) {
  let list = null;
  const exact = el("p");
  const rows = el("div");
  show(`Locks that begin with ${prefix}`, {
    prefix,
    load: async (place, signal) => {
      const status = await orRefusal(get(`v1/locks/${encodeURIComponent(prefix)}`));
      if (signal.aborted) return;
      // A refusal takes the place of all that was shown.
      if (!rows.isConnected) place.replaceChildren(exact, rows);
      exact.className = status.refused ? "notice" : "";
      draw(exact, ...(status.refused ? [status.refused] : ["The lock with exactly this name: ", lockLink(prefix)]));
      list ??= listing(prefix, rows, signal);
      await list.refresh();
    },
  });
}

function lockView(name) {
  const grants = new Grants(name);
  show(name, {
    prefix: name,
    // Everything that the server still remembers of it.
    after: "0",
    changes: (changes) => grants.add(changes),
    load: async (place, signal) => {
      const lock = await get(`v1/locks/${encodeURIComponent(name)}`);
      if (signal.aborted) return;
      grants.now(lock);
      draw(place, ...lockParts(lock), grants.drawn());
    },
  });
}

function lockParts(lock) {
  const shared = (lock.reader_count ?? 0) > 0;
  const holders = shared ? lock.readers : lock.holder ? [lock.holder] : [];
  const slots = holders.flatMap((holder) => holder.slots ?? []);
  const free = lock.permits - slots.filter((slot) => slot <= lock.permits).length;
  const closed = isClosed(lock);
  const state = closed ? "closed" : !lock.holder ? "free" : lock.permits ? "semaphore" : shared ? "held, shared" : "held";
  const title = lock.permits ? "Holders" : shared ? "Readers" : "Holder";
  const update = holders.find((holder) => holder.update);
  const grantOf = (holder) => holder.grant_id ?? holder.fencing_token;
  const columns = [
    ["client", "client", (holder) => holder.client_id],
    ["held for", "number", (holder) => held(holder, lock)],
    ["ends in", "number", (holder) => left(holder.remaining_ms, lock.came)],
    ["about itself", "client", (holder) => holder.metadata ?? ""],
    ["action", "number", (holder) => el("button", {
      type: "button", class: "bad", "aria-label": `Take the lock from ${holder.client_id}`,
      onclick: () => askToBreak(lock.resource_id, holder, grantOf(holder), shared),
    }, "Break …")],
  ];
  if (shared) columns.unshift(["grant", "number", (holder) => number(holder.grant_id)]);
  if (lock.permits) columns.unshift(["slots", "number", (holder) => holder.slots.join(", ")]);
  const hidden = shared ? lock.reader_count - holders.length : lock.waiters - lock.queue?.length;
  return [
    figures(["state", state], ["token", lock.holder ? number(lock.holder.fencing_token) : "none"],
      ...(closed ? [["opens in", left(lock.delayed_ms, lock.came)]] : []),
      ...(lock.permits ? [["permits", number(lock.permits)], ["free", number(free)]] : []),
      ...(shared ? [[title.toLowerCase(), number(lock.reader_count)]] : []),
      ...(update ? [["in mode update", update.client_id]] : []), ["waiting", number(lock.waiters)]),
    section(title, "", holders.length > 0 ? table(title, columns, holders) : closed
      ? [empty("Nobody holds it, and nobody is granted it before it opens: its last holder asked for that."),
        el("button", { type: "button", class: "bad", onclick: () => askToOpen(lock.resource_id) }, "Open …")]
      : empty("Nobody holds it.")),
    section("Queue", "first come, first served", !lock.queue?.length ? empty("Nobody waits.")
      : table("Queue", [
        ["place", "number", ([place]) => String(place)],
        ["mode", "", ([, one]) => one.permits ? `${one.permits.count}/${one.permits.of} permits` : one.mode],
        ["waiting for", "number", ([, one]) => counts(() => span(one.waited_ms + performance.now() - lock.came))],
        ["gives up in", "number", ([, one]) => left(one.remaining_ms, lock.came)],
        ["client", "client", ([, one]) => one.client_id],
      ], lock.queue.map((one, index) => [index + 1, one]))),
    hidden > 0 ? empty(`${number(hidden)} more are not listed.`) : null,
  ].filter(Boolean);
}

/** The grants of one lock, as far as the server still knew them and since. */
class Grants {
  constructor(name) {
    this.name = name;
    this.opened = Date.now();
    this.known = new Map();
    this.missed = 0;
  }

  add(changes) {
    for (const change of changes) {
      if (change.kind === "missed") this.missed += change.missed;
      // An opening is about the lock, and changes no grant.
      if (change.resource_id !== this.name || change.kind === "opened") continue;
      const id = change.grant_id ?? change.fencing_token;
      // The times of replayed events are unknown.
      const live = Date.now() - this.opened > 1_500;
      const grant = this.known.get(id) ?? { id, token: change.fencing_token, client: change.client_id };
      if (change.kind === "granted") grant.from ??= live ? change.at.getTime() : undefined;
      else if (change.kind !== "proclaimed") Object.assign(grant, { how: change.kind, reason: change.reason, to: live ? change.at.getTime() : undefined });
      this.known.set(id, grant);
    }
    const oldest = [...this.known.keys()].slice(0, -200);
    for (const id of oldest) this.known.delete(id);
  }

  /** The present holders: the server tells since when they hold it. */
  now(lock) {
    const holders = (lock.reader_count ?? 0) > 0 ? lock.readers : lock.holder ? [lock.holder] : [];
    for (const holder of holders) {
      const id = holder.grant_id ?? holder.fencing_token;
      const grant = this.known.get(id) ?? { id, token: holder.fencing_token, client: holder.client_id };
      grant.from = Date.now() - (lock.now - Date.parse(holder.acquired_at));
      this.known.set(id, grant);
    }
  }

  drawn() {
    const grants = [...this.known.values()].sort((one, other) => other.id - one.id);
    const note = this.missed > 0 ? "earlier ones are no longer known" : "";
    if (grants.length === 0) return section("Grants", note, empty("None is known."));
    const time = (at) => at === undefined ? "" : clock(new Date(at));
    return section("Grants", note, timeline(grants), table("Grants", [
      ["token", "number", (grant) => number(grant.token)],
      ["client", "client", (grant) => grant.client],
      ["granted at", "number", (grant) => time(grant.from)],
      ["for", "number", (grant) => grant.from && grant.to ? span(grant.to - grant.from) : ""],
      ["state", "", (grant) => el("span", { class: grant.how ?? "granted" },
        grant.how ? grant.how + why(grant) : "holds it now")],
    ], grants.slice(0, 30)));
  }
}

/** Grants whose times are known, on one axis that ends now. */
function timeline(grants) {
  const timed = grants.filter((grant) => grant.from !== undefined && (grant.to !== undefined || !grant.how)).slice(0, 12)
    .reverse();
  if (timed.length === 0) return null;
  const now = Date.now();
  const begin = Math.min(...timed.map((grant) => grant.from), now - 10_000);
  const [width, row, label] = [900, 22, 16];
  const x = (at) => ((at - begin) / (now - begin)) * width;
  const height = timed.length * row + 26;
  const bars = timed.flatMap((grant, index) => {
    const [from, to] = [x(grant.from), x(grant.to ?? now)];
    // The text stands where there is room: in the bar, behind it, or before it.
    const text = `token ${number(grant.token)}`;
    const room = 7.5 * text.length;
    const inside = to - from > room;
    const behind = to + room < width;
    const [at, anchor] = inside ? [from + 6, "start"] : behind ? [to + 6, "start"] : [from - 6, "end"];
    return [
      el("rect", { x: from, y: index * row + 2, width: Math.max(to - from, 2), height: row - 5, rx: 2,
        class: grant.how ? "" : "now" }),
      el("text", { x: at, y: index * row + label, "text-anchor": anchor }, text),
    ];
  });
  const axis = timed.length * row + 3;
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, el("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `The last ${timed.length} grants on a time axis of ${span(now - begin)}; the table below says the same` },
  ...bars,
  el("line", { class: "axis", x1: 0, x2: width, y1: axis, y2: axis }),
  el("text", { class: "axis-text", x: 0, y: axis + 16 }, `${span(now - begin)} ago`),
  el("text", { class: "axis-text", x: width, y: axis + 16, "text-anchor": "end" }, "now")));
}

/** Asks whether to take a lock from its holder; the number must be typed. */
function askToBreak(name, holder, grant, shared) {
  askFirst({
    title: `Take ${name} from its holder?`,
    says: [el("p", { class: "name" }, holder.client_id),
      el("p", {}, "It is not told before its next renewal, and may go on writing until then. Only a fence at the resource "
        + "refuses those writes, once the next holder has claimed.")],
    typed: [shared ? "grant" : "token", grant],
    action: "Break the lock",
    path: `v1/locks/${encodeURIComponent(name)}/break`,
    body: { fencing_token: grant },
  });
}

/** Asks whether to open a lock that is closed after its last grant. */
function askToOpen(name) {
  askFirst({
    title: `Open ${name}?`,
    says: [el("p", {}, "The next request is granted it. Its last holder asked that nobody is, for a time: perhaps because the job "
      + "must not run again so soon, or because work of a lost holder may still be under way.")],
    action: "Open the lock",
    path: `v1/locks/${encodeURIComponent(name)}/open`,
    body: {},
  });
}

/** Asks for a reason, and for a number to type, before an operator's verb is sent. */
function askFirst({ title, says, typed: [what, must] = [], action, path, body }) {
  const typed = el("input", { id: "typed", inputmode: "numeric", autocomplete: "off", required: true });
  const reason = el("input", { id: "reason", maxlength: "80", required: true, autocomplete: "off" });
  const send = el("button", { class: "bad", disabled: true }, action);
  const said = el("p", { role: "status" });
  const dialog = el("dialog", { "aria-labelledby": "asked" }, el("form", {
    oninput: () => {
      send.disabled = (what && typed.value.trim() !== String(must)) || reason.value.trim() === "";
    },
    onsubmit: async (event) => {
      event.preventDefault();
      send.disabled = true;
      try {
        await ask(path, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ ...body, reason: reason.value.trim() }),
        });
        dialog.close();
      } catch (error) {
        said.textContent = error.message;
        said.className = "notice bad";
      }
    },
  },
  el("h2", { id: "asked" }, title),
  says,
  what ? el("label", {}, `Type the ${what} ${must} to confirm`, typed) : null,
  el("label", {}, "Reason, which watchers see", reason),
  said,
  el("div", { class: "buttons" },
    el("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), send)));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (what ? typed : reason).focus();
}

/** Asks for a token, because the server does not know who this is. */
function signIn(message) {
  leave.abort();
  connected("lost", "not signed in");
  document.title = "Sign in · Palisade";
  const token = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = el("form", {
    onsubmit: (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN_KEY, token.value.trim());
      route();
    },
  }, el("label", { for: "token" }, "Token"), token, el("button", {}, "Sign in"));
  main.replaceChildren(el("h1", {}, "Who is asking?"), el("p", { class: "notice", role: "alert" }, message), form,
    el("p", { class: "empty" }, "It begins with pal_, and stays in this tab until it is closed."));
  token.focus();
}

// ---- The address bar

function route() {
  const [, view, rest] = /^#\/([^/]*)\/?(.*)$/.exec(location.hash) ?? [];
  let name = "";
  try {
    name = decodeURIComponent(rest ?? "");
  } catch {
    // Not written by this page.
  }
  query.value = view === "find" ? name : "";
  if (view === "lock" && name) lockView(name);
  else if (view === "find" && name) found(name);
  else overview();
}

addEventListener("hashchange", () => {
  route();
  main.focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && connection.className === "lost") route();
});
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = query.value.trim();
  location.hash = text ? `#/find/${encodeURIComponent(text)}` : "#/";
});
route();
