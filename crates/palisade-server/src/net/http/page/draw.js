// The page's parts. Text from clients is inserted as text, never as markup.

/** An element with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
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

export const number = (value) => value.toLocaleString("en-US").replaceAll(",", "\u2009");

/** A length of time in its two largest units. */
export function span(ms) {
  if (ms < 0) return "0 s";
  if (ms < 1_000) return `${(ms / 1_000).toFixed(1)} s`;
  const s = Math.floor(ms / 1_000);
  if (s < 60) return `${s} s`;
  if (s < 3_600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3_600)} h ${Math.floor((s % 3_600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3_600)} h`;
}

export const clock = (at) => at.toLocaleTimeString("en-GB");

/** Times that go on between two answers: text is set again each second. */
const running = new Set();
export function counts(text) {
  const shown = el("span", {}, text());
  running.add([shown, text]);
  return shown;
}
setInterval(() => {
  for (const entry of running) {
    const [shown, text] = entry;
    if (!shown.isConnected) running.delete(entry);
    // Whether time goes on for a lease is not known while the authority is silent.
    else if (!shown.closest(".old > .body")) shown.textContent = text();
  }
}, 1_000);

/** How long until `ms` from when the answer came have passed. */
export function left(ms, came) {
  return counts(() => {
    const rest = ms - (performance.now() - came);
    return rest > 0 ? span(rest) : "due";
  });
}

/** For how long, counted on from an answer. */
export const since = (ms, came) => counts(() => span(ms + performance.now() - came));

/** How long ago; the server's clock tells when, this machine's only how much time has passed since the answer. */
export function held(holder, answer) {
  const at = Date.parse(holder.acquired_at);
  return Number.isNaN(at) ? "" : since(answer.now - at, answer.came);
}

const TAIL = 6;
const isLong = (name) => name.length > 2 * TAIL;

/** A name on one line. Where there is no room its middle is left out: names often differ only at their ends. */
export function short(name) {
  if (!isLong(name)) return el("span", { class: "short" }, name);
  return el("span", { class: "short", title: name },
    el("span", { class: "front" }, name.slice(0, -TAIL)), name.slice(-TAIL));
}

export const lockLink = (name) => el("a", {
  class: "name", href: `#/lock/${encodeURIComponent(name)}`, "aria-label": isLong(name) ? name : null,
}, short(name));

/** A table. `columns`: [heading, class, cell of a row]. A narrow page leaves out those with the class `wide`. */
export function table(caption, columns, rows) {
  const head = columns.map(([heading, kind]) => el("th", { scope: "col", class: kind }, heading));
  const body = rows.map((row) => el("tr", {}, columns.map(([, kind, cell]) => el("td", { class: kind }, cell(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { "aria-label": caption }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

export const section = (title, note, ...content) =>
  el("section", {}, el("h2", {}, title, note ? el("small", {}, note) : null), ...content);
export const empty = (text) => el("p", { class: "empty" }, text);

/** Figures: [name, value, a note below it]. */
export const figures = (...each) => el("dl", { class: "figures" }, each.map(([name, value, note]) => el("div", {},
  el("dt", {}, name), el("dd", { class: value.length > 14 ? "long" : "" }, value),
  note ? el("dd", { class: "note" }, note) : null)));

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
export function draw(place, ...content) {
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && place.contains(selection.anchorNode);
  if (selecting || (pressed && place.contains(pressed))) return false;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const again = focused && focused !== place ? mark(focused) : null;
  place.replaceChildren(...content.filter(Boolean));
  if (again) [...place.querySelectorAll("a, button, input, [tabindex]")].find((one) => mark(one) === again)?.focus();
  return true;
}
const mark = (one) => `${one.tagName} ${one.getAttribute("href") ?? one.getAttribute("aria-label") ?? one.textContent}`;

/** A part of a view. If it cannot be read now, what it showed last stays, greyed, with its age. */
export class Part {
  constructor(name) {
    this.name = name;
    this.age = el("p", { class: "age", hidden: true });
    this.body = el("div", { class: "body" });
    this.element = el("div", { "data-part": name }, this.age, this.body);
    this.answer = null;
  }

  /** Draws what an answer says. */
  fresh(answer, ...content) {
    this.answer = content.some(Boolean) ? answer : null;
    this.element.classList.remove("old");
    this.age.hidden = true;
    return draw(this.body, ...content);
  }

  isOld() {
    return this.element.classList.contains("old");
  }

  /** It could not be read; `why` is shown if nothing else is. */
  old(why = null) {
    if (!this.answer) return draw(this.body, why);
    const { at, came } = this.answer;
    if (this.isOld() || !at) return true;
    this.element.classList.add("old");
    this.age.hidden = false;
    this.age.replaceChildren(`as of ${clock(at)}, `, counts(() => span(performance.now() - came)), " ago");
    return true;
  }

  /** Takes away what it showed, which its reader may not see. */
  forbidden(why) {
    this.answer = null;
    this.element.classList.remove("old");
    this.age.hidden = true;
    return draw(this.body, why);
  }
}
