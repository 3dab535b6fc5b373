// The page of a Palisade server. It asks the HTTP interface like any other client and keeps nothing but the token that
// was typed in, for as long as the tab is open.
//
//   address bar (#/…) ─► view ─┬─► GET /v1/… now, after changes, and every few seconds ─► drawn again
//                              └─► GET /v1/watch, resumed by its last id ─► changes
//
// The state of the server itself (health.js) is asked for beside that, and does not wait for it.

import { NoAnswer, Refused, TOKEN_KEY, ask, follow, get } from "./ask.js";
import {
  Part, clock, counts, draw, el, empty, figures, held, left, lockLink, number, section, short, since, span, table,
} from "./draw.js";
import * as health from "./health.js";

const SETTLE = 300;           // Changes that come close together cause one question.
const SHOWN_CHANGES = 40;
const SHOWN_GRANTS = 30;
const SHOWN_LATE = 8;

const main = document.getElementById("main");
const footer = document.getElementById("footer");
const alarms = document.getElementById("alarms");
const connection = document.getElementById("connection");
const query = document.getElementById("query");

// ---- Locks

/** A lock that nobody holds is listed while it is closed after its last grant, or waited for. */
const isClosed = (lock) => !lock.holder && lock.delayed_ms > 0;

function holderOf(lock) {
  const readers = lock.reader_count ?? 0;
  if (!lock.holder) return isClosed(lock) ? "closed after its last grant" : "";
  const kind = lock.permits ? "holder" : "reader";
  return readers > 0 ? `${number(readers)} ${readers === 1 ? kind : `${kind}s`}` : short(lock.holder.client_id);
}

const LOCK = ["lock", "name", (lock) => lockLink(lock.resource_id)];
const WAITING = ["waiting", "number", (lock) => number(lock.waiters)];
const TOKEN = ["token", "number wide", (lock) => lock.holder ? number(lock.holder.fencing_token) : ""];
const HOLDER = ["holder", "client", holderOf];
const heldFor = (answer, kind = "number") => ["held for", kind, (lock) => lock.holder ? held(lock.holder, answer) : ""];
const waitsFor = (answer) => ["the first for", "number", (lock) => lock.waited_ms === undefined ? ""
  : since(lock.waited_ms + (answer.age_ms ?? 0), answer.came)];
const endsIn = (answer, kind = "number") => ["ends in", kind, (lock) => {
  const ms = lock.holder ? lock.holder.remaining_ms : lock.delayed_ms;
  return ms === undefined ? "" : left(ms - (answer.age_ms ?? 0), answer.came);
}];

// ---- Views

let leave = new AbortController();
/** The view on the page: its parts, and the way in which it shows the server's state. */
let view = { title: "", parts: [], state: () => {}, soon: () => {} };

function connected(state, text) {
  connection.className = state;
  // Said once for each change, not with each second that passes.
  if (connection.textContent !== text) connection.textContent = text;
}

let told = "";

/** Draws the notices and whatever depends on the server's state. */
function stateChanged() {
  const notices = health.notices();
  const found = notices.map(({ level, title, more, since: from }) => el("div", { class: `alarm ${level === "warn" ? "warn" : "bad"}` },
    el("p", {}, el("strong", {}, title), " ", more, level === "stops" ? el("small", {}, ` since ${clock(from)}`) : null)));
  const text = notices.map(({ key }, at) => `${key} ${found[at].textContent}`).join("\n");
  // Drawn for each change only: it is read out then, and a link in it stays where it is.
  if (text !== told) alarms.replaceChildren(...found);
  told = text;
  const worst = notices.find(({ level, chip }) => level !== "warn" && chip);
  if (worst) connected("lost", worst.chip);
  else if (health.last().health || health.last().status) connected("live", "connected");
  // Nobody is told to take a lock from a server that grants none.
  document.body.classList.toggle("stopped", notices.some(({ level }) => level === "stops"));
  document.title = `${notices.some(({ level }) => level !== "warn") ? "⚠ " : ""}${view.title} · Palisade`;
  if (health.silent()) for (const part of view.parts) part.old(empty("Nothing was read yet."));
  const { status } = health.last();
  if (status && status !== view.status) draw(footer, `authority ${status.authority} · incarnation ${status.incarnation} · Palisade ${status.version}`);
  view.status = status;
  view.state();
}

/** Shows a view: asks `load` again after changes and every few seconds. */
function show(title, { prefix, after = null, parts, load, changes = () => {}, state = () => {} }) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  view = { title, parts, state };
  main.replaceChildren(el("h1", { class: title.length > 60 ? "long" : null }, title), ...parts.map((part) => part.element));
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
      // Nothing is asked of an authority that is silent: the server's state says when it is back.
      if (!health.silent()) await load(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return signIn(error.message);
      throw error;
    } finally {
      asking = false;
    }
    // A server that takes long to answer is asked less often.
    const pause = Math.max(document.hidden ? 10 * health.POLL : health.POLL, Math.min(2 * (performance.now() - began), 5 * health.POLL));
    timer = setTimeout(refresh, again ? SETTLE : pause);
  };
  const soon = () => {
    health.soon();
    if (asking) again = true;
    else {
      clearTimeout(timer);
      timer = setTimeout(refresh, SETTLE);
    }
  };
  view.soon = soon;
  health.again();
  stateChanged();
  refresh();
  if (prefix !== undefined) {
    follow(prefix, after, {
      live: soon,
      lost: soon,
      stranger: signIn,
      refused: (why) => changes([{ kind: "refused", why }]),
      changes: (list) => {
        changes(list);
        soon();
      },
    }, signal);
  }
}

/** Reads a part of the view. If that fails, what it showed stays, greyed; what may not be seen is taken away. */
async function reads(part, signal, load) {
  try {
    await load();
    if (!signal.aborted) health.read(part.name);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) throw error;
    const why = el("p", { class: "notice" }, error.message);
    if (error.status === 403) {
      health.read(part.name);
      part.forbidden(why);
      return;
    }
    if (!(error instanceof Refused || error instanceof NoAnswer)) console.error(error);
    part.old(why);
    health.read(part.name, error);
  }
}

function ranking(ranked) {
  const note = ranked.age_ms > 3_000 ? `as of ${span(ranked.age_ms)} ago` : "";
  return el("div", { class: "columns" },
    section("Longest queues", note, ranked.contended.length === 0 ? empty("Nobody waits for a lock.")
      : table("Longest queues", [LOCK, WAITING, waitsFor(ranked), HOLDER, endsIn(ranked, "number wide")], ranked.contended.slice(0, 10))),
    section("Held longest", note, ranked.oldest.length === 0 ? empty("No lock is held.")
      : table("Held longest", [LOCK, heldFor(ranked), HOLDER, endsIn(ranked, "number wide")], ranked.oldest.slice(0, 10))));
}

/** The figures of the status, and the oldest waiter of the ranking. */
function statusFigures(status, ranked) {
  const { by, within } = health.recent("expired");
  const longest = ranked?.longest_wait;
  const oldest = ranked === undefined ? ["oldest waiter", "…"] : ranked && ["oldest waiter", longest ? since(longest.waited_ms + ranked.age_ms, ranked.came) : "none",
    longest ? lockLink(longest.resource_id) : null];
  return figures(["locks", number(status.locks)], ["requests waiting", number(status.waiters)], ...(oldest ? [oldest] : []),
    ["grants a second", health.rate("granted")], ["renewals a second", health.rate("renewed")],
    ["expired", number(by), `${within ? `in the last ${within}; ` : ""}${number(status.counts.expired)} since ${startOf(status.counts)}`],
    ["leases", number(status.leases)],
    ["next token", status.next_token === null ? "none left" : number(status.next_token)]);
}

/** A moment of today by its time, an earlier one with its day. */
const moment = (at) => at.toDateString() === new Date().toDateString() ? clock(at) : `${at.toLocaleDateString("sv-SE")} ${clock(at)}`;
/** When the server that counts was started. */
const startOf = (counts) => moment(new Date(counts.since));

/** Writes that a resource refused because a newer holder had been there. `latest`: grants of the history that have some. */
function lateWrites(latest) {
  const late = health.lateWrites();
  if (!late) return null;
  const note = "by holders that had lost their lock";
  const from = startOf(late);
  if (late.reported + late.unknown === 0) {
    return section("Refused late writes", note, empty(`None was reported since ${from}.`), latestLateWrites(latest));
  }
  return section("Refused late writes", note,
    figures(["refused", number(late.by), late.within ? `in the last ${late.within}` : null], ["refused in all", number(late.reported), `since ${from}`],
      ["reports of unknown grants", number(late.unknown), "counted, not kept"]),
    el("p", { class: late.by > 0 ? "notice" : "empty" }, "A fence kept data from being overwritten. ", el("code", {}, "palisade history LOCK"),
      " says who wrote late, and who held the lock by then."),
    latestLateWrites(latest));
}

/** A server without a history has none, and neither has a caller that may not read it. */
function latestLateWrites(grants) {
  const writes = (grants ?? []).flatMap((grant) => grant.rejections.map((one) => ({ ...one, grant })))
    .sort((one, other) => Date.parse(other.reported_at) - Date.parse(one.reported_at)).slice(0, SHOWN_LATE);
  if (writes.length === 0) return null;
  return [el("h3", {}, "Latest late writes"), table("Latest late writes", [
    ["reported", "number when", (one) => moment(new Date(one.reported_at))],
    ["lock", "name fifth", (one) => lockLink(one.grant.resource_id)],
    ["token", "number wide", (one) => number(one.grant.fencing_token)],
    ["client", "client fifth", (one) => short(one.grant.client_id)],
    ["refused", "said", (one) => `${one.operation || "a write"} at ${one.resource}, which had seen token ${number(one.highest)}`
      + (one.times > 1 ? `; ${number(one.times)} times` : "")],
  ], writes)];
}

/** Shown while there is no lock. */
function firstSteps() {
  const line = (text) => el("pre", {}, el("code", {}, text));
  return section("No lock is held", "", el("p", {}, "Hold one while a command runs:"),
    line(`palisade run --authority ${location.origin} orders -- sleep 60`),
    el("p", {}, "or ask for one over HTTP:"),
    line(`curl ${location.origin}/v1/locks/orders/acquire -d '{"client_id": "me", "lease_duration_ms": 60000}'`),
    sessionStorage.getItem(TOKEN_KEY) ? el("p", { class: "empty" }, "Both have to show a token: palisade run --token-file FILE, curl -H 'Authorization: Bearer …'.") : null);
}

function changesTable(changes) {
  return table("Changes", [
    ["time", "number", (change) => clock(change.time ? new Date(change.time) : change.at)],
    ["change", "", (change) => el("span", { class: change.kind }, change.kind)],
    ["lock", "name", (change) => change.kind === "missed" ? "" : lockLink(change.resource_id)],
    ["token", "number wide", (change) => change.kind === "missed" ? "" : number(change.fencing_token)],
    ["client", "client", (change) => change.kind === "missed" ? `${number(change.missed)} changes were too many to show`
      : [short(change.client_id ?? "an operator"), why(change)]],
  ], changes);
}
const why = (change) => change.reason ? `, because: ${change.reason}` : "";

function overview() {
  const recent = [];
  let refusal = null;
  let ranked;
  let latest;
  let shown = "";
  const part = Object.fromEntries(["nodes", "figures", "late", "first", "ranking", "feed", "list"].map((name) => [name, new Part(name)]));
  const drawFeed = () => part.feed.fresh({ came: performance.now(), at: new Date() },
    section("Changes", "as they become durable", refusal ? el("p", { class: "notice" }, refusal)
      : recent.length === 0 ? empty("None since this page was opened.") : changesTable(recent)));
  const drawFigures = () => {
    const { status } = health.last();
    if (!status || health.isOld.status()) return;
    part.figures.fresh(status, statusFigures(status, ranked));
    part.late.fresh(status, lateWrites(latest?.grants));
  };
  const list = listing("", part.list, (answer, none) => {
    for (const one of [part.ranking, part.list]) one.element.hidden = none;
    part.first.fresh(answer, none ? firstSteps() : null);
  });
  part.ranking.old(empty("All locks are being read …"));
  drawFeed();
  show("Locks", {
    prefix: "",
    parts: Object.values(part),
    changes: (changes) => {
      for (const change of changes.slice(-SHOWN_CHANGES)) {
        if (change.kind === "refused") refusal = change.why;
        else recent.unshift(change);
      }
      recent.length = Math.min(recent.length, SHOWN_CHANGES);
      drawFeed();
    },
    state: () => {
      const { status, cluster } = health.last();
      // The nodes' own states are drawn as they are now, even if they are those of a server that is gone.
      const key = health.nodesKey();
      if (key !== shown && (!cluster || !health.isOld.cluster())) part.nodes.fresh(cluster ?? {}, health.nodes());
      shown = key;
      if (cluster && health.isOld.cluster()) part.nodes.old();
      if (status && health.isOld.status()) for (const one of [part.figures, part.late]) one.old();
      else if (status !== part.figures.answer) drawFigures();
      if (!health.silent() && part.feed.isOld()) drawFeed();
    },
    load: async (signal) => {
      await reads(part.list, signal, () => list.refresh(signal));
      // Asked for at the start, and when a report came: reports change no lock.
      const reported = health.lateWrites()?.reported;
      if (reported !== undefined && reported !== latest?.reported) {
        const page = await get(`v1/history?refused=true&limit=${SHOWN_LATE}`)
          .catch((error) => error instanceof Refused ? { grants: [] } : null);
        if (signal.aborted) return;
        if (page) latest = { reported, grants: page.grants };
        drawFigures();
      }
      await reads(part.ranking, signal, async () => {
        ranked = await get("v1/ranking").catch((error) => {
          ranked = null;
          throw error;
        });
        if (signal.aborted) return;
        part.ranking.fresh(ranked, ranking(ranked));
        drawFigures();
      });
    },
  });
}

/** The locks of a prefix: the first page is kept up to date; more pages come on demand. */
function listing(prefix, part, isEmpty = () => {}) {
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
    columns.splice(3, 0, ["held for", "number wide", of(heldFor)], ["ends in", "number", of(endsIn)]);
    isEmpty(pages[0], rows.length === 0 && !next);
    const title = prefix ? `Locks that begin with ${prefix}` : "All locks";
    const none = prefix ? "No lock that begins so is held." : "No lock is held.";
    drawn = part.fresh(pages[0], section(title, pages.length > 1 ? `as of ${clock(pages[0].at)}` : "",
      rows.length === 0 ? empty(none) : table(title, columns, rows),
      el("p", { class: "more" },
        next ? el("button", { type: "button", onclick: more }, "Show more") : null,
        pages.length > 1 ? el("button", { type: "button", onclick: again }, "Read again") : null,
        rows.length > 0 ? `${number(rows.length)} shown` : null)));
  };
  let asked = 0;
  const load = async (cursor, kept, signal) => {
    // A question that was asked while a page was on its way makes its answer one of the past.
    const question = ++asked;
    const answer = await page(cursor);
    if (signal.aborted || question !== asked) return;
    pages = [...kept, answer];
    render();
  };
  // No refresh overtakes the reader's own request.
  let asking = 0;
  const wanted = (cursor, kept) => {
    asking += 1;
    return reads(part, leave.signal, () => load(cursor, kept, leave.signal)).finally(() => asking -= 1);
  };
  const more = () => wanted(pages.at(-1).next_cursor, pages);
  const again = () => wanted(null, []);
  // Pages that were asked for stay as they are: a list that moves while it is read is of no use.
  return {
    refresh: async (signal) => pages.length > 1 || asking > 0 ? (drawn && !part.isOld()) || render() : load(null, [], signal),
  };
}

function found(prefix) {
  const exact = new Part("exact");
  const rows = new Part("list");
  const list = listing(prefix, rows);
  exact.fresh({}, el("p", {}, "The lock with exactly this name: ", lockLink(prefix)));
  show(`Locks that begin with ${prefix}`, {
    prefix,
    parts: [exact, rows],
    load: (signal) => reads(rows, signal, () => list.refresh(signal)),
  });
}

function lockView(name) {
  const grants = new Grants(name);
  const part = new Part("lock");
  show(name, {
    prefix: name,
    parts: [part],
    // Everything that the server still remembers of it.
    after: "0",
    changes: (changes) => grants.add(changes),
    load: (signal) => reads(part, signal, async () => {
      // A server without a history shows the events that it still has.
      const known = (error) => error instanceof Refused && error.status !== 401 ? null : Promise.reject(error);
      const [lock, past] = await Promise.all([get(`v1/locks/${encodeURIComponent(name)}`),
        get(`v1/history?lock=${encodeURIComponent(name)}&limit=${SHOWN_GRANTS}`).catch(known)]);
      if (signal.aborted) return;
      grants.now(lock);
      part.fresh(lock, ...lockParts(lock), past ? drawnHistory(past) : grants.drawn());
    }),
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
    ["client", "client whole", (holder) => el("span", { title: holder.client_id }, holder.client_id)],
    ["held for", "number", (holder) => held(holder, lock)],
    ["ends in", "number", (holder) => left(holder.remaining_ms, lock.came)],
    ["about itself", "client whole wide", (holder) => el("span", { title: holder.metadata }, holder.metadata ?? "")],
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
        ["waiting for", "number", ([, one]) => since(one.waited_ms, lock.came)],
        ["gives up in", "number", ([, one]) => left(one.remaining_ms, lock.came)],
        ["client", "client", ([, one]) => short(one.client_id)],
      ], lock.queue.map((one, index) => [index + 1, one]))),
    hidden > 0 ? empty(`${number(hidden)} more are not listed.`) : null,
  ].filter(Boolean);
}

/** The grants of one lock, as far as the server still knew them and since. */
class Grants {
  constructor(name) {
    this.name = name;
    this.known = new Map();
    this.missed = 0;
  }

  add(changes) {
    for (const change of changes) {
      if (change.kind === "missed") this.missed += change.missed;
      // An opening is about the lock, and changes no grant.
      if (change.resource_id !== this.name || change.kind === "opened") continue;
      const id = change.grant_id ?? change.fencing_token;
      const grant = this.known.get(id) ?? { id, token: change.fencing_token, client: change.client_id };
      if (change.kind === "granted") grant.from ??= change.at.getTime();
      else if (change.kind !== "proclaimed") Object.assign(grant, { how: change.kind, reason: change.reason, to: change.at.getTime() });
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
    return drawnGrants(grants.slice(0, SHOWN_GRANTS), note);
  }
}

function drawnGrants(grants, note) {
  if (grants.length === 0) return section("Grants", note, empty("None is known."));
  const late = (grant) => (grant.rejections ?? []).map((one) => el("p", { class: "late" },
    `${one.operation || "a write"} at ${one.resource} was refused as late${one.times > 1 ? `, ${number(one.times)} times` : ""}: `
    + `it had seen token ${number(one.highest)}; reported ${moment(new Date(one.reported_at))}`));
  return section("Grants", note, timeline(grants), table("Grants", [
    ["token", "number", (grant) => number(grant.token)],
    ["client", "client slim", (grant) => short(grant.client)],
    ["waited", "number wide", (grant) => grant.waited ? span(grant.waited) : ""],
    ["granted at", "number", (grant) => grant.from === undefined ? "" : moment(new Date(grant.from))],
    ["for", "number wide", (grant) => grant.from && grant.to ? span(grant.to - grant.from) : ""],
    ["state", "", (grant) => [el("span", { class: grant.how ?? "granted" },
      grant.how ? (grant.by ? `${grant.how} by ${grant.by}` : grant.how) + why(grant) : "holds it now"), late(grant)].flat()],
  ], grants));
}

/** The grants as the history has them, which knows more than the events: waits, ends of long ago, refused late writes. */
function drawnHistory({ grants, gaps = [], next_cursor: more }) {
  const rows = grants.map((grant) => ({
    id: grant.grant_id ?? grant.fencing_token, token: grant.fencing_token, client: grant.client_id, waited: grant.waited_ms,
    from: Date.parse(grant.granted_at), to: grant.ended && Date.parse(grant.ended.at), how: grant.ended?.how,
    by: grant.ended?.by, reason: grant.ended?.reason, rejections: grant.rejections,
  }));
  const note = gaps.length > 0 ? `the history lacks ${number(gaps.length)} ranges of changes` : more ? `the last ${SHOWN_GRANTS}` : "";
  return drawnGrants(rows, note);
}

/** Grants whose times are known, on one axis that ends now. */
function timeline(grants) {
  const timed = grants.filter((grant) => grant.from !== undefined && (grant.to !== undefined || !grant.how)).slice(0, 12)
    .reverse();
  if (timed.length === 0) return null;
  // The times are the server's, whose clock may be ahead of this one.
  const now = Math.max(Date.now(), ...timed.map((grant) => grant.to ?? grant.from));
  const begin = Math.min(...timed.map((grant) => grant.from), now - 10_000);
  const [width, row, label] = [Math.min(900, main.clientWidth - 24), 22, 16];
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
  if (leave.signal.aborted) return;
  leave.abort();
  health.signedOut();
  view = { title: "Sign in", parts: [], state: () => {} };
  alarms.replaceChildren();
  told = "";
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
  if (document.hidden || leave.signal.aborted) return;
  health.again();
  view.soon();
});
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = query.value.trim();
  location.hash = text ? `#/find/${encodeURIComponent(text)}` : "#/";
});
health.watch({ changed: stateChanged, stranger: signIn });
route();
