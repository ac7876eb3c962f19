// What every page over state tables is made of: requests, elements, the frame with its connection and facts, the views.
//
//   start({ title, views })    shows the page. A view is { id, label, show(root, context) }. The status of the job may
//                              have another title.
//   context                    params, go(params), link(params), onBatch(call), signal: aborted when the view is left.

const PLAIN = new Set(["string", "number", "boolean", "bigint"]);
const END = 9.2e18; // clocks beyond this are "end of input" and "none yet"
const DAY = 86_400_000;
const REPLAY = 7 * DAY; // a watermark this far behind the clock is that of a replay
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;
// Whole numbers under these names are milliseconds since 1970, wherever keyed itself writes them.
const TIME_NAME = /^(watermark|processing_time|event_time|expires|window[._](start|end|timer)|ROWTIME|WINDOWSTART|WINDOWEND)$/;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const HOUR = 3600; // of charts, in seconds
// Lengths of time that the bars of a chart may have, in seconds, each with its name.
const BUCKETS = [
  [60, "minute"], [300, "5 minutes"], [900, "15 minutes"], [1800, "30 minutes"], [HOUR, "hour"], [3 * HOUR, "3 hours"],
  [6 * HOUR, "6 hours"], [12 * HOUR, "12 hours"], [24 * HOUR, "day"], [168 * HOUR, "week"], [672 * HOUR, "4 weeks"],
  [2184 * HOUR, "13 weeks"], [8736 * HOUR, "52 weeks"],
];
const MONDAY = 96 * HOUR; // 1970-01-05, where weeks begin
const BAR = 5; // pixels that a bar has at least

// Requests ------------------------------------------------------------------------------------------------------------

export class Refused extends Error {
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

/** Asks the server. A 401 asks for the token first, and then again. */
export async function ask(path, { params = {}, body, method = body ? "POST" : "GET", signal } = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined && value !== ""));
  const options = { method, signal, headers: body ? { "content-type": "application/json" } : {} };
  if (body) options.body = JSON.stringify(body);
  const response = await fetch(query.size ? `${path}?${query}` : path, options);
  if (response.ok) return response.status === 204 ? null : response.json();
  let error = { type: "Error", message: response.statusText };
  try {
    error = (await response.json()).error;
  } catch {
    // What lies between answers without JSON.
  }
  if (response.status === 401 && path !== "/session") {
    await logIn();
    return ask(path, { params, body, method, signal });
  }
  throw new Refused(response.status, error.type, error.message);
}

let asking = null;

/** Exchanges the token for a cookie that scripts cannot read. */
function logIn() {
  asking ??= new Promise((resolve) => {
    const token = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true });
    const problem = h("p", { class: "error", role: "alert" });
    const form = h("form", {},
      h("h2", {}, "Token"),
      h("p", { class: "quiet" }, "These tables are open to those who have a token."),
      h("label", {}, "Token", token), problem, h("button", { class: "main" }, "Open"));
    const dialog = h("dialog", {}, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await ask("/session", { body: { token: token.value } });
        dialog.remove();
        asking = null;
        resolve();
      } catch (error) {
        problem.textContent = error.message;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/** A key, entry or namespace as requests name it: text as it is, everything else as JSON. */
export const placeOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));
export const pathOf = (table, kind, key) => `/tables/${encodeURIComponent(table)}/${kind}/${encodeURIComponent(placeOf(key))}`;

// Elements ------------------------------------------------------------------------------------------------------------

/** An element. Children that are no elements become text: nothing is ever read as HTML. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const number = new Intl.NumberFormat("en");

/**
 * A value as text for people. Its type (Python's or Arrow's) and name, where they are known, decide whether it is a time.
 */
export function shown(value, type, name) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (isTime(value, name)) return shownTime(value);
    return Number.isInteger(value) ? number.format(value) : String(value);
  }
  if (typeof value === "string") return !/^(str|string)\b/.test(type ?? "") && TIME.test(value) ? shownTime(value) : value;
  if (PLAIN.has(typeof value)) return String(value);
  if (Array.isArray(value) && isLine(value)) return value.map((part) => shown(part)).join(" · ");
  return JSON.stringify(value);
}

/** Whether a value has fields by name. */
export const isFields = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const isTime = (value, name) => Number.isInteger(value) && TIME_NAME.test(name ?? "");

const isLine = (value) => !Array.isArray(value) || value.every((part) => part === null || PLAIN.has(typeof part));

/** A value as a cell of `tableOf`: numbers stay numbers, which are aligned to the right; one with parts is a small table. */
export function cellOf(value, type, name) {
  if (typeof value === "number" && !isTime(value, name)) return value;
  if (isFields(value) || !isLine(value)) {
    return h("table", { class: "parts" }, h("tbody", {}, Object.entries(value).map(([part, each]) => {
      const cell = cellOf(each, undefined, part);
      return h("tr", {}, h("th", { scope: "row" }, part), h("td", {}, cell instanceof Node ? cell : shown(cell)));
    })));
  }
  const text = shown(value, type, name);
  return text === value || typeof value === "object" ? document.createTextNode(text) : h("span", { class: "time" }, text);
}

/** A time in UTC: milliseconds, or ISO 8601. */
export function shownTime(time) {
  if (typeof time === "number" && Math.abs(time) > END) return time > 0 ? "end of input" : "none yet";
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return String(time);
  return date.toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace("Z", "");
}

/** A namespace, most often a window: whole numbers that may be milliseconds are times, from 1973 to 5138. */
export function shownNamespace(value) {
  if (Array.isArray(value)) return value.map(shownNamespace).join(" · ");
  return Number.isInteger(value) && value >= 1e11 && value < 1e14 ? shownTime(value) : shown(value);
}

/** A length of time in a few characters. */
export function shownSpan(milliseconds) {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [limit, size, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
    if (seconds < limit) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${number.format(Math.round(seconds / 86400))} days`;
}

/** A table of rows, each a list of values or elements. */
export function tableOf(heads, rows, caption) {
  const isNumber = heads.map((_, column) => rows.length > 0 && rows.every((row) => typeof row[column] === "number"));
  const cell = (value) =>
    h("td", { class: typeof value === "number" ? "number" : null }, value instanceof Node ? value : shown(value));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head, column) => h("th", { scope: "col", class: isNumber[column] ? "number" : null }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

function axesOf() {
  const style = getComputedStyle(document.documentElement);
  const [text, line, accent] = ["--quiet", "--line", "--accent"].map((name) => style.getPropertyValue(name));
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  return { accent, axis };
}

/** Draws a chart, which follows the width of its element; `changed` is called when that has changed. */
function drawn(root, { height = 220, ...options }, data, changed = () => {}) {
  const size = () => ({ width: Math.max(240, root.clientWidth), height });
  const plot = new uPlot({ ...size(), ...options }, data, root);
  let width = root.clientWidth;
  const resized = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    plot.setSize(size());
    changed();
  });
  resized.observe(root);
  return { plot, destroy: () => { resized.disconnect(); plot.destroy(); } };
}

const valueOf = (plot, value) => (value === null || value === undefined ? "–" : number.format(value));

/** A chart of numbers by batch, as steps. */
export function stepChart(root, { x, y, label }) {
  const { accent, axis } = axesOf();
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", `${label} by batch`);
  return drawn(root, {
    scales: { x: { time: false } },
    axes: [axis, { ...axis, size: 60 }],
    series: [
      { label: "Batch", value: valueOf },
      { label, stroke: accent, width: 1.5, value: valueOf, points: { show: y.length < 40 }, paths: uPlot.paths.stepped({ align: 1 }) },
    ],
  }, [x, y]);
}

/** The sums of y by lengths of time that leave each bar wide enough: { x, y, size, name }. */
export function bucketed(x, y, bars) {
  let native = Infinity;
  for (let at = 1; at < x.length; at++) native = Math.min(native, x[at] - x[at - 1]);
  if (!Number.isFinite(native)) native = HOUR;
  const span = x.length ? x[x.length - 1] - x[0] + native : 0;
  if (span / native <= bars) return { x, y, size: native, name: "window" };
  const [size, name] = BUCKETS.find(([length]) => length >= native && span / length <= bars) ?? BUCKETS[BUCKETS.length - 1];
  const offset = size % (168 * HOUR) ? 0 : MONDAY;
  const startOf = (time) => Math.floor((time - offset) / size) * size + offset;
  const first = startOf(x[0]);
  const sums = new Array((startOf(x[x.length - 1]) - first) / size + 1).fill(0);
  x.forEach((time, at) => { sums[(startOf(time) - first) / size] += y[at]; });
  return { x: sums.map((_, at) => first + at * size), y: sums, size, name };
}

/** A label of the axis of times: as much of a time as the next label may differ in. */
function timeLabels(plot, splits, axis, space, step) {
  let year = null;
  return splits.map((seconds) => {
    const date = new Date(seconds * 1000);
    const month = MONTHS[date.getUTCMonth()];
    const isNew = date.getUTCFullYear() !== year;
    year = date.getUTCFullYear();
    if (step >= 28 * 24 * HOUR) return isNew ? `${month}\n${year}` : month;
    if (step >= 24 * HOUR) return `${date.getUTCDate()} ${month}${isNew ? `\n${year}` : ""}`;
    const time = date.toISOString().slice(11, 16);
    return time === "00:00" || isNew ? `${time}\n${date.getUTCDate()} ${month}` : time;
  });
}

const article = (name) => (name === "hour" ? "an " : "a ");

/**
 * A chart of counts over seconds since 1970 in UTC, as bars: each the sum of a length of time that fits its width. What is
 * dragged over is shown closer; `range` keeps it from one chart to the next. `pick` gets the time of a bar that is clicked.
 */
export function barChart(root, { x, y, label, range = { from: -Infinity, to: Infinity }, height, pick }) {
  const { accent, axis } = axesOf();
  const canvas = h("div", { role: "img" });
  const about = h("p", { class: "quiet", "aria-live": "polite" });
  const all = h("button", { type: "button", onclick: () => zoom(-Infinity, Infinity) }, "Show all");
  root.append(canvas, h("div", { class: "bar" }, about, all));
  let bars;
  const compute = () => {
    const inside = x.flatMap((time, at) => (time >= range.from && time <= range.to ? [at] : []));
    bars = bucketed(inside.map((at) => x[at]), inside.map((at) => y[at]), Math.max(180, root.clientWidth - 110) / BAR);
    const zoomed = inside.length < x.length;
    const hint = (pick ? "; click one to go there" : "") +
      (!zoomed && matchMedia("(pointer: fine)").matches ? "; drag over a part to see it closer." : ".");
    about.textContent = `Each bar is ${/^\d/.test(bars.name) ? "" : article(bars.name)}${bars.name}${hint}`;
    all.hidden = !zoomed;
    canvas.setAttribute("aria-label", `${label} by ${bars.name}, ${shownTime(bars.x[0] * 1000)} to ${shownTime(bars.x[bars.x.length - 1] * 1000)} (UTC)`);
    return [bars.x, bars.y];
  };
  const zoom = (first, last) => {
    if (!x.some((time) => time >= first && time <= last)) return;
    Object.assign(range, { from: first, to: last });
    made.plot.setData(compute());
  };
  const made = drawn(canvas, {
    height,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: {
      x: { time: true, range: () => [bars.x[0], bars.x[bars.x.length - 1] + bars.size] },
      y: { range: (_, __, most) => [0, Math.max(1, most) * 1.08] },
    },
    axes: [{ ...axis, values: timeLabels, size: 56 }, { ...axis, size: 60 }],
    series: [
      { label: "From (UTC)", value: (_, time) => (time === null || time === undefined ? "–" : shownTime(time * 1000)) },
      { label, fill: accent, value: valueOf, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, Infinity], align: 1 }) },
    ],
    cursor: { drag: { x: true, y: false, setScale: false } },
    hooks: {
      ready: [(plot) => pick && plot.over.addEventListener("click", () => {
        const at = plot.cursor.idx;
        if (at !== null && at !== undefined) pick(bars.x[at]);
      })],
      setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width < BAR) return;
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
      }],
    },
  }, compute(), () => made.plot.setData(compute()));
  return made;
}

// Names ---------------------------------------------------------------------------------------------------------------

/** Beginnings of the keys of a table that are a text but for upper and lower case. */
export async function beginnings(table, text, { past = {}, signal } = {}) {
  let found = [""];
  for (const letter of text) {
    const cases = [...new Set([letter, letter.toUpperCase(), letter.toLowerCase()])].filter((each) => [...each].length === 1);
    const longer = found.flatMap((start) => cases.map((each) => start + each));
    const there = await Promise.all(longer.map(async (prefix) => (await keysFrom(table, { prefix }, past, signal)).length));
    found = longer.filter((_, at) => there[at]).slice(0, 16);
  }
  return found.sort();
}

const keysFrom = async (table, range, past, signal) =>
  (await ask(`/tables/${encodeURIComponent(table)}`, { params: { ...range, ...past, limit: 1 }, signal })).entries.map(({ key }) => key);

/** Keys of a table, which are text, that begin with a text, whatever its case. */
export async function completions(table, text, { past = {}, signal, most = 8 } = {}) {
  const names = [];
  for (const prefix of await beginnings(table, text, { past, signal })) {
    let [name] = await keysFrom(table, { prefix }, past, signal);
    while (name !== undefined && names.length < most) {
      names.push(name);
      // The least text after it.
      [name] = await keysFrom(table, { prefix, from: `${name}\0` }, past, signal);
    }
  }
  return names.sort((one, other) => one.localeCompare(other));
}

/** The key that a text names: as it is written, or else but for its case; the text itself if there is none. */
export async function nameOf(table, text, { past = {}, signal } = {}) {
  const same = (await beginnings(table, text, { past, signal })).filter(Boolean);
  const exact = await Promise.all(same.map(async (each) => (await keysFrom(table, { prefix: each }, past, signal))[0] === each));
  const names = same.filter((_, at) => exact[at]);
  return names.includes(text) ? text : names[0] ?? text;
}

/** Lets a field complete the keys of a table; gives the list to put beside it. */
export function completing(input, table, { past = {}, signal }) {
  const list = h("datalist", { id: `names-of-${table}` });
  input.setAttribute("list", list.id);
  let asking = new AbortController();
  let later;
  input.addEventListener("input", () => {
    clearTimeout(later);
    asking.abort();
    const mine = asking = new AbortController();
    later = setTimeout(async () => {
      try {
        const text = input.value.trim();
        const names = text ? await completions(table, text, { past, signal: AbortSignal.any([signal, mine.signal]) }) : [];
        list.replaceChildren(...names.map((value) => h("option", { value })));
      } catch {
        // Without names it is a field like any other.
      }
    }, 150);
  });
  signal.addEventListener("abort", () => clearTimeout(later));
  return list;
}

// Events --------------------------------------------------------------------------------------------------------------

/**
 * Follows a stream of events until the signal; begins again when the browser gives it up. What the server reports as its
 * own failure is the state "failed", with the reason, until an event comes again.
 */
export function follow(path, kinds, { signal, onEvent, onState = () => {} }) {
  let source, again, last, failure;
  const begin = () => {
    const url = last === undefined ? path : `${path}${path.includes("?") ? "&" : "?"}after=${encodeURIComponent(last)}`;
    source = new EventSource(url);
    source.onopen = () => { if (!failure) onState("live"); };
    source.onerror = (event) => {
      if (event.data) {
        failure = JSON.parse(event.data).message;
        return onState("failed", failure);
      }
      if (!failure) onState("lost");
      // A browser gives up when it is refused, and when the server is away for long.
      if (source.readyState !== EventSource.CLOSED) return;
      again = setTimeout(async () => {
        try {
          await ask("/status", { signal });
        } catch {
          // It is still away.
        }
        if (!signal?.aborted) begin();
      }, 1000);
    };
    for (const kind of kinds) {
      source.addEventListener(kind, (event) => {
        if (kind !== "error" && failure) {
          failure = undefined;
          onState("live");
        }
        if (path !== "/batches") last = event.lastEventId;
        if (event.data) onEvent(kind, JSON.parse(event.data));
      });
    }
  };
  begin();
  signal?.addEventListener("abort", () => { clearTimeout(again); source.close(); });
}

// The page ------------------------------------------------------------------------------------------------------------

const STATES = { connecting: "connecting", live: "connected", lost: "connection lost, trying again", failed: "failed" };

const watermarkOf = (status) => Math.min(...Object.values(status.positions).map((position) => position.watermark));
/** Whether the input has ended and all of it has been worked on. */
const isFinished = (status) => Object.keys(status?.positions ?? {}).length > 0 && watermarkOf(status) > END;

/** Whether the token is for all tables: one for some does not see what counts all of them. */
export const isWhole = (status) => Object.values(status.positions).every((position) => position.hash !== undefined);

/** The state that an answer was taken from, in a line. */
export const shownPosition = ({ batch, hash }) => `batch ${batch}${hash === undefined ? "" : ` · state hash ${hash}`}`;

/** The facts of a batch that every job has, and those that this one gives. */
function factsOf(status, now) {
  const { title, ...given } = status.job;
  const own = Object.entries(given).map(([name, value]) => [name, shown(value, undefined, name)]);
  const positions = Object.values(status.positions);
  if (!positions.length) return [["Batch", "none yet"], ...own];
  const committed = Math.max(...positions.map((position) => position.processing_time));
  const watermark = watermarkOf(status);
  const facts = [
    ["Batch", number.format(status.batch)],
    [isFinished(status) ? "Finished" : "Committed", `${shownSpan(now - committed)} ago`],
  ];
  if (watermark < -END) facts.push(["Watermark (UTC)", "none yet"]);
  else if (watermark <= END) {
    facts.push(["Watermark (UTC)", shownTime(Math.floor(watermark / 1000) * 1000)]);
    const behind = now - watermark;
    if (behind > -60_000 && behind < REPLAY) facts.push(["Behind the clock", shownSpan(behind)]);
  }
  if (isWhole(status)) {
    facts.push(["Entries", number.format(positions.reduce((sum, position) => sum + position.entries, 0))]);
  }
  return [...facts, ...own];
}

export function start({ title, views }) {
  const connection = h("span", { class: "connection", role: "status", "data-state": "connecting" }, STATES.connecting);
  const facts = h("dl", { class: "facts", id: "facts" });
  const links = h("ul");
  const main = h("main", { id: "main", tabindex: -1 });
  const trouble = h("p", { class: "error", role: "alert", hidden: true });
  const heading = h("h1", {}, title);
  document.body.append(
    h("a", { class: "skip", href: "#main" }, "Skip to the content"),
    h("header", { class: "top" }, h("div", {},
      h("div", { class: "title" }, heading, connection),
      facts, trouble,
      h("nav", { "aria-label": "Views" }, links))),
    main);
  let status = null;
  let label = "";
  let leaving = new AbortController();
  const watching = new Set();

  const link = (params) => `?${new URLSearchParams(Object.entries(params).filter(([, value]) => value != null && value !== ""))}`;
  const go = (params, { replace = false } = {}) => {
    history[replace ? "replaceState" : "pushState"](null, "", link(params));
    show();
  };

  function show() {
    leaving.abort();
    leaving = new AbortController();
    watching.clear();
    const params = Object.fromEntries(new URLSearchParams(location.search));
    const view = views.find(({ id }) => id === params.view) ?? views[0];
    links.replaceChildren(...views.map(({ id, label }) =>
      h("li", {}, h("a", { href: link({ view: id }), "aria-current": id === view.id ? "page" : null }, label))));
    label = view.label;
    document.title = `${label} · ${heading.textContent}`;
    main.replaceChildren();
    const { signal } = leaving;
    const problem = h("p", { class: "error panel", role: "alert" });
    const attempt = async (work) => {
      try {
        await work();
        problem.remove();
      } catch (error) {
        if (signal.aborted) return;
        problem.textContent = error.message;
        main.append(problem);
      }
    };
    const context = {
      params: { ...params, view: view.id }, go, link, signal,
      onBatch(call) {
        const attempted = (told) => attempt(() => call(told));
        watching.add(attempted);
        if (status?.batch >= 0) attempted(status);
      },
    };
    attempt(() => view.show(main, context));
  }

  function tellFacts() {
    if (!status) return;
    const told = factsOf(status, Date.now());
    const same = facts.children.length === told.length;
    if (!same) {
      facts.replaceChildren(...told.map(() => h("div", {}, h("dt"), h("dd"))));
      rows = 1;
    }
    told.forEach(([name, value], index) => {
      const [dt, dd] = facts.children[index].children;
      if (dt.textContent !== name) dt.textContent = name;
      if (dd.textContent !== value) dd.textContent = value;
    });
    fit();
    if (status.job.title && heading.textContent !== status.job.title) {
      heading.textContent = status.job.title;
      document.title = `${label} · ${heading.textContent}`;
    }
  }

  /** Lays the facts out in as few rows as they fit in, all of about the same length: none wraps by itself. */
  function fit() {
    const count = facts.children.length;
    for (; rows <= count; rows++) {
      facts.style.setProperty("--columns", Math.ceil(count / rows));
      if (facts.scrollWidth <= facts.clientWidth) return;
    }
  }
  let rows = 1;
  new ResizeObserver(() => { rows = 1; fit(); }).observe(main);

  function showConnection() {
    const isDone = state === "live" && isFinished(status);
    connection.dataset.state = state;
    connection.toggleAttribute("data-finished", isDone);
    connection.textContent = isDone ? "finished" : STATES[state];
  }
  let state = "connecting";

  // Links within the page do not load it anew.
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href^='?']");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    history.pushState(null, "", anchor.getAttribute("href"));
    show();
  });
  addEventListener("popstate", show);
  setInterval(tellFacts, 1000);

  // Before the first batch the job has a title, and perhaps something to report.
  ask("/status").then((told) => {
    status ??= told;
    tellFacts();
  }, () => null);
  follow("/batches", ["batch"], {
    onEvent: (_, told) => {
      status = told;
      tellFacts();
      showConnection();
      for (const call of watching) call(status);
    },
    onState: (found, reason = "") => {
      state = found;
      trouble.hidden = !reason;
      if (trouble.textContent !== reason) trouble.textContent = reason;
      showConnection();
    },
  });
  show();
}

/** Work that is never done twice at a time: calls meanwhile do it once more, so that the last word is the newest. */
export function oneAtATime(work) {
  let running = false;
  let again = false;
  let newest;
  return async (...given) => {
    again = true;
    newest = given;
    if (running) return;
    running = true;
    try {
      while (again) {
        again = false;
        await work(...newest);
      }
    } finally {
      running = false;
    }
  };
}

/** Shows what a call gives, or why it failed, in an element. */
export async function filled(root, work) {
  try {
    root.replaceChildren(await work());
  } catch (error) {
    if (error.name !== "AbortError") root.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
  }
}
