// The state of the server and its cluster, from whatever answers: three questions that do not wait for one another.
//
//   GET /healthz ────┐                     ┌─► the notices at the top, in red where nothing is granted
//   GET /v1/cluster ─┼─► the last answers ─┼─► the nodes
//   GET /v1/status ──┘   and their ages    └─► the figures

import { NoAnswer, Refused, TOKEN_KEY, get } from "./ask.js";
import { clock, el, number, span } from "./draw.js";

export const POLL = 2_000;            // Queues change without an event, so the page asks for its data again.
const SETTLE = 300;                   // Changes that come close together cause one question.
const STALL = 3_000;                  // A busy authority answers sooner.
const SILENT = 2_000;                 // The server's bound for nodes that count as alive.
const CERTIFICATE = 7 * 86_400_000;   // As the alert PalisadeCertificateEnds.
const SAMPLES = 300_000;
const RATE = 10_000;
const AWAY_SHOWN = 600_000;

/** One question, asked again and again; its last answer stays. */
class Source {
  constructor(path, patience) {
    Object.assign(this, { path, patience, last: null, error: null, began: null, unanswered: null, timer: null });
  }

  async ask() {
    clearTimeout(this.timer);
    this.began = performance.now();
    this.unanswered ??= this.began;
    try {
      this.last = await get(this.path, this.patience);
      this.error = null;
      this.unanswered = null;
    } catch (error) {
      this.error = error;
      // A refusal is an answer, too; one for a missing right takes away what was seen with it.
      if (!(error instanceof NoAnswer)) this.unanswered = null;
      if (error.status === 403) this.last = null;
    }
    this.began = null;
  }

  /** For how long it has gone without an answer. */
  silent() {
    return this.unanswered === null ? 0 : performance.now() - this.unanswered;
  }

  get refused() {
    return this.error instanceof Refused ? this.error : null;
  }
}

const health = new Source("healthz", 5_000);
const cluster = new Source("v1/cluster", 5_000);
const status = new Source("v1/status", 10_000);
const sources = [health, cluster, status];

/** What the status counted, for rates; from one server's run. */
let samples = [];
/** When leases got their full time again, as far as this page saw it. */
let away = null;
/** Why parts of the view could not be read, by their names. */
const failures = new Map();
/** When each notice first held. */
const began = new Map();

let changed = () => {};
let stranger = () => {};
let signedIn = true;

/** Begins to ask; `on.stranger` is told when the server wants to know who asks. */
export function watch(on) {
  ({ changed, stranger } = on);
  for (const source of sources) keepAsking(source);
  setInterval(() => signedIn && changed(), 1_000);
}

/** Asks for everything now: a token was typed in, or another view is shown. */
export function again() {
  signedIn = true;
  failures.clear();
  for (const source of sources) if (source.began === null) keepAsking(source);
}

/** Asks nothing before `again`, and forgets what it saw: the server wants to know who asks. */
export function signedOut() {
  signedIn = false;
  samples = [];
  for (const source of sources) source.last = null;
}

/** Asks for the status shortly: something changed. */
export function soon() {
  if (status.began !== null || !signedIn) return;
  clearTimeout(status.timer);
  status.timer = setTimeout(keepAsking, SETTLE, status);
}

async function keepAsking(source) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  // A single server has no cluster, until it is started again as a node of one.
  if (!(source === cluster && single())) await source.ask();
  if (!signedIn) return;
  if (source.refused?.status === 401) {
    // The answer may be about the token before this one.
    if (token !== sessionStorage.getItem(TOKEN_KEY)) return keepAsking(source);
    return stranger(source.refused.message);
  }
  if (source === status && !source.error) count(source.last);
  if (source === health && source.error && single()) cluster.error = null;
  changed();
  clearTimeout(source.timer);
  source.timer = setTimeout(keepAsking, document.hidden ? 10 * POLL : POLL, source);
}

export const single = () => cluster.refused?.code === "refused";

/** A part of the view was read, or could not be. */
export function read(name, error = null) {
  if (error) failures.set(name, error);
  else failures.delete(name);
  changed();
}

function count({ came, counts }) {
  const newest = samples.at(-1);
  if (newest && newest.since !== counts.since) samples = [];
  else if (newest && counts.graces > newest.graces) away = { at: new Date(), came };
  samples.push({ came, ...counts });
  samples = samples.filter((sample) => came - sample.came <= SAMPLES);
}

/** How much a count grew in the last `within` ms, and in how many of them; `null` before a second answer. */
function grown(name, within) {
  const newest = samples.at(-1);
  const oldest = samples.find((sample) => newest.came - sample.came <= within);
  return newest && newest !== oldest ? [newest[name] - oldest[name], newest.came - oldest.came] : null;
}

export function rate(name) {
  const [by, ms] = grown(name, RATE) ?? [];
  if (ms === undefined) return "…";
  const each = (1_000 * by) / ms;
  return each >= 10 || each === 0 ? number(Math.round(each)) : each.toFixed(1);
}

export function recent(name) {
  const [by, ms] = grown(name, SAMPLES) ?? [0, 0];
  return { by, within: ms > 0 ? span(Math.max(1_000, ms)) : null };
}

/** The last answers; each has the moment when it came. */
export const last = () => ({ health: health.last, cluster: cluster.last, status: status.last });

/** Which answers are not those of now. */
export const isOld = { cluster: () => silent() || cluster.error !== null, status: () => silent() || status.error !== null };

/** Whether nothing answers. */
const unreachable = () => sources.every((source) => (source === cluster && single()) || source.silent() > 0)
  && (health.error instanceof NoAnswer || health.silent() > STALL);

/** Whether the authority does not answer, though the server does. */
const stalled = () => !unreachable() && status.silent() > STALL
  && health.last !== null && health.last.came > status.unanswered + 1_000;

/** Whether the log has no room, here or at the node that leads. */
const diskFull = () => [health, status].some((source) => !source.error && source.last?.log_full);

/** Whether questions about locks have no answer at this moment. */
export const silent = () => unreachable() || stalled();

/** The moment of the latest answer. */
const latest = () => sources.map((source) => source.last).filter(Boolean)
  .sort((one, other) => other.came - one.came)[0] ?? null;

export const reached = (node) => node.connected === null || (node.connected && node.silent_ms !== null && node.silent_ms < SILENT);
const nameOf = (node) => node.node.slice(0, 8);
const whyNot = (node, silence) => node.problem ? plain(node.problem) : (node.connected ? silence : "not connected");
const silence = (node) => node.silent_ms === null ? "silent" : `silent for ${span(node.silent_ms)}`;
/** An error without what the card says anyway. */
const plain = (problem) => problem.replace(/^\S+ cannot be reached: /, "").replace(/ \(os error \d+\)/, "");
/** A link to another node's page; a Unix socket has none. */
const pageOf = (node) => /^https?:/.test(node.url ?? "") ? el("a", { href: `${node.url}/` }, node.url) : node.url ?? node.peer;

/** The votes: how many there are, how many of them are reached, and how many of those can fail. */
function votes({ members }) {
  const voters = members.filter((node) => node.voter);
  const there = voters.filter(reached).length;
  return { all: voters.length, there, spare: there - Math.floor(voters.length / 2) - 1 };
}

/** The notices, the worst first: { level, key, chip, title, more }. `stops` means that nothing is granted. */
export function notices() {
  const found = [];
  const add = (level, key, chip, title, ...more) => found.push({ level, key, chip, title, more });
  const nodes = cluster.last && !single() ? cluster.last : null;
  const others = nodes ? nodes.members.filter((node) => node.connected !== null && node.url) : [];
  const elsewhere = others.length > 0
    ? [" The page of another node: ", ...others.flatMap((node, at) => [at > 0 ? ", " : "", pageOf(node)]), "."]
    : [];
  if (unreachable()) {
    const seen = latest();
    add("stops", "unreachable", `no answer${seen ? `; what you see is from ${clock(seen.at)}` : ""}`,
      "This server does not answer.", "It has ended, hangs, or the network to it is cut.", ...elsewhere);
  }
  if (stalled()) {
    add("stops", "stalled", "stalled", "The authority does not answer: nothing is granted.",
      nodes && nodes.leader !== nodes.node ? "This server does, so the node that leads hangs, or its disk. "
        : "Its server does, so its disk hangs, or it is paused. ",
      "Leases get their full time again when it goes on. Look at the server's log and at ", el("code", {}, "dmesg"), ".");
  }
  if (nodes && !cluster.error && !unreachable()) lostNodes(nodes, add);
  if (nodes?.disk_full) {
    add("bad", "disk", "disk full", "The disk of this node is full: it accepts nothing.", `${nodes.disk_full}. `,
      "Free some space there; the node goes on by itself.");
  } else if (diskFull() && !unreachable()) {
    add("stops", "disk", "disk full", "The disk is full: nothing is granted or renewed.",
      "Held locks stay held. Free some space on the disk of the data directory (see ", el("code", {}, "df -h"),
      "); the server goes on by itself, without a restart. Delete nothing in that directory.");
  }
  if (status.last?.next_token === null) {
    add("stops", "tokens", "no token left", "No fencing token is left: nothing is granted.", "Every number up to 2⁵³ − 1 was used.");
  }
  const refusal = health.refused ?? [status.refused, ...failures.values()].find((error) => error instanceof Refused && error.status >= 429);
  if (health.last?.status === "starting" && !health.error) {
    add("warn", "starting", "starting", "The server is starting.", status.refused?.message ?? "");
  } else if (refusal && !found.some((one) => one.level === "stops")) {
    add("bad", "refused", "the server cannot answer now", "The server cannot answer now:", refusal.message);
  }
  const mistake = [...failures.values(), ...sources.map((source) => source.error)]
    .find((error) => error && !(error instanceof Refused || error instanceof NoAnswer));
  // A mistake of this page is not the server's silence.
  if (mistake) add("bad", "mistake", `this page failed: ${mistake.message}`, "This page failed:", mistake.message);
  certificate(add);
  if (away && performance.now() - away.came < AWAY_SHOWN) {
    add("warn", "away", "", `The authority was away until ${clock(away.at)}.`,
      "Leases got their full time again, so locks of dead holders end later.");
  }
  for (const key of began.keys()) if (!found.some((one) => one.key === key)) began.delete(key);
  for (const one of found) {
    if (!began.has(one.key)) began.set(one.key, new Date());
    one.since = began.get(one.key);
  }
  return found;
}

function lostNodes(nodes, add) {
  const gone = nodes.members.filter((node) => !reached(node));
  const names = gone.map((node) => `${nameOf(node)} at ${node.url ?? node.peer} (${whyNot(node, "silent")})`).join(", ");
  const { all, there, spare } = votes(nodes);
  if (nodes.leader === null && spare < 0) {
    add("stops", "majority", "no majority", "No majority: nothing is granted, renewed or released.",
      `This node reaches ${there} of ${all} nodes that vote, itself included. Missing: ${names}. `,
      "Start any of them, with its directory and its flags.");
  } else if (nodes.leader === null) {
    add("stops", "leader", "no leader", "No node leads: nothing is granted until one is elected.",
      "That takes a second or two. If it lasts, the nodes' logs say why.");
  } else if (gone.length > 0) {
    add("warn", "nodes", "", gone.length === 1 ? "A node is missing." : `${gone.length} nodes are missing.`, `${names}. `,
      spare > 0 ? `Locks are granted as before; so they are if ${spare === 1 ? "another one fails" : `${spare} more fail`}.`
        : "Locks are granted as before, but not if another one fails.");
  }
}

function certificate(add) {
  if (!health.last?.certificate_expires_at) return;
  const ends = Date.parse(health.last.certificate_expires_at);
  const rest = ends - health.last.now;
  if (!(rest < CERTIFICATE)) return;
  const day = health.last.certificate_expires_at.slice(0, 16).replace("T", " ");
  const [count, unit] = rest >= 2 * 86_400_000 ? [Math.floor(rest / 86_400_000), "days"] : [Math.floor(rest / 3_600_000), "hours"];
  add("bad", "certificate", "", rest > 0 ? `The certificate of this server ends in ${count} ${unit}.`
    : "The certificate of this server has ended: new connections fail.",
  `${rest > 0 ? "It ends" : "It ended"} at ${day} UTC. Put a new one into the files of `, el("code", {}, "--tls-cert"), " and ",
  el("code", {}, "--tls-key"), "; it is taken within 2 s, without a restart.");
}

/** The nodes as cards, or the single server. */
export function nodes() {
  const stops = unreachable() || stalled();
  const dot = (state, text) => el("span", { class: `state ${state}` }, text);
  const card = (name, role, at, ...state) => el("li", {}, el("p", {}, el("strong", {}, name), el("span", { class: "role" }, role)),
    el("p", { class: "at" }, at), el("p", {}, ...state));
  if (!cluster.last || single()) {
    // Without the right to see the cluster, and before anything came, there is nothing to draw.
    if (!single()) return null;
    const ends = health.last?.certificate_expires_at;
    return el("ul", { class: "nodes", "aria-label": "Nodes" }, card("this server", "single", location.host,
      stops ? dot("bad", unreachable() ? "does not answer" : "stalled") : diskFull() ? dot("bad", "disk full") : dot("good", "grants locks"),
      ends ? el("span", { class: "at" }, `certificate until ${ends.slice(0, 10)}`) : null));
  }
  const view = cluster.last;
  const role = (node) => node.node === view.leader ? "leads" : node.voter ? "votes" : "learns";
  const state = (node) => {
    if (node.connected === null) {
      const problem = unreachable() ? "does not answer" : view.disk_full ? "disk full" : view.leader === null ? "knows no leader" : null;
      return dot(problem ? "bad" : "good", problem ?? "answers");
    }
    if (!reached(node)) return dot("bad", whyNot(node, silence(node)));
    return dot("good", node.round_trip_us === null ? "connected" : `connected, ${(node.round_trip_us / 1_000).toFixed(1)} ms`);
  };
  const behind = (node) => node.matched === null || view.last === null || view.last === node.matched ? null
    : ` · ${number(view.last - node.matched)} behind`;
  const url = (node) => node.connected === null ? node.url ?? node.peer : pageOf(node);
  return el("ul", { class: "nodes", "aria-label": "Nodes" }, view.members.map((node) => card(
    el("span", { title: node.node }, nameOf(node)), node.connected === null ? `${role(node)} · this node` : role(node),
    url(node), state(node), behind(node))));
}

/** Changes whenever the nodes have to be drawn again. */
export const nodesKey = () => [health.last?.came, cluster.last?.came, status.last?.came, single(), unreachable(), stalled()].join();

/** The refused late writes, as far as the status counts them. */
export function lateWrites() {
  const counts = status.last?.counts;
  if (counts?.rejections_reported === undefined) return null;
  const { by, within } = recent("rejections_reported");
  return { reported: counts.rejections_reported, unknown: counts.rejections_unknown ?? 0, by, within, since: counts.since };
}
