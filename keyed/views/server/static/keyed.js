// What every page over state tables is made of: requests, elements, the frame with its connection and facts, the views.
//
//   start({ title, views })    shows the page. A view is { id, label, show(root, context) }.
//   context                    params, go(params), link(params), onBatch(call), signal: aborted when the view is left.

const PLAIN = new Set(["string", "number", "boolean", "bigint"]);
const END = 9.2e18; // clocks beyond this are "end of input" and "none yet"

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

/** A value as text for people. */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? number.format(value) : String(value);
  if (typeof value === "string") return /^\d{4}-\d\d-\d\dT/.test(value) ? shownTime(value) : value;
  if (PLAIN.has(typeof value)) return String(value);
  if (Array.isArray(value) && value.every((part) => part === null || PLAIN.has(typeof part))) {
    return value.map(shown).join(" · ");
  }
  return JSON.stringify(value);
}

/** A time in UTC: milliseconds, or ISO 8601. */
export function shownTime(time) {
  if (typeof time === "number" && Math.abs(time) > END) return time > 0 ? "end of input" : "none yet";
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return String(time);
  return date.toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace("Z", "");
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

/** A chart of numbers over x: seconds since 1970 in UTC, or numbers of batches. */
export function chart(root, { x, y, label, times = true, steps = false }) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, accent, tint] = ["--quiet", "--line", "--accent", "--tint"].map((name) => style.getPropertyValue(name));
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const size = () => ({ width: Math.max(240, root.clientWidth), height: 220 });
  const plot = new uPlot({
    ...size(),
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: times } },
    axes: [axis, { ...axis, size: 60 }],
    series: [
      times ? { label: "Time (UTC)" } : { label: "Batch" },
      { label, stroke: accent, fill: steps ? undefined : tint, width: 1.5, points: { show: y.length < 40 },
        paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined },
    ],
  }, [x, y], root);
  const resized = new ResizeObserver(() => plot.setSize(size()));
  resized.observe(root);
  return { set: (xs, ys) => plot.setData([xs, ys]), destroy: () => { resized.disconnect(); plot.destroy(); } };
}

// Events --------------------------------------------------------------------------------------------------------------

/** Follows a stream of events until the signal; begins again when the browser gives it up. */
export function follow(path, kinds, { signal, onEvent, onState = () => {} }) {
  let source, again, last;
  const begin = () => {
    const url = last === undefined ? path : `${path}${path.includes("?") ? "&" : "?"}after=${encodeURIComponent(last)}`;
    source = new EventSource(url);
    source.onopen = () => onState("live");
    source.onerror = () => {
      onState("lost");
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
        if (path !== "/batches") last = event.lastEventId;
        if (event.data) onEvent(kind, JSON.parse(event.data));
      });
    }
  };
  begin();
  signal?.addEventListener("abort", () => { clearTimeout(again); source.close(); });
}

// The page ------------------------------------------------------------------------------------------------------------

const STATES = { connecting: "connecting", live: "live", lost: "connection lost, trying again" };

/** The facts of a batch that every job has; a page may change them. */
function factsOf(status, now) {
  const positions = Object.values(status.positions);
  if (!positions.length) return [["Batch", "none yet"]];
  const last = positions[positions.length - 1];
  const watermark = Math.min(...positions.map((position) => position.watermark));
  const facts = [
    ["Batch", number.format(status.batch)],
    ["Committed", `${shownSpan(now - last.processing_time)} ago`],
    ["Watermark (UTC)", shownTime(Math.abs(watermark) < END ? Math.floor(watermark / 1000) * 1000 : watermark)],
  ];
  if (Math.abs(watermark) < END) facts.push(["Behind the clock", shownSpan(now - watermark)]);
  facts.push(["Entries", number.format(positions.reduce((sum, position) => sum + position.entries, 0))]);
  facts.push(["State hash", positions.map((position) => position.hash.slice(0, 8)).join(" ")]);
  for (const [name, value] of Object.entries(status.job)) facts.push([name, shown(value)]);
  return facts;
}

export function start({ title, views }) {
  const connection = h("span", { class: "connection", role: "status", "data-state": "connecting" }, STATES.connecting);
  const facts = h("dl", { class: "facts", id: "facts" });
  const links = h("ul");
  const main = h("main", { id: "main", tabindex: -1 });
  document.body.append(
    h("a", { class: "skip", href: "#main" }, "Skip to the content"),
    h("header", { class: "top" }, h("div", {},
      h("div", { class: "title" }, h("h1", {}, title), connection),
      facts,
      h("nav", { "aria-label": "Views" }, links))),
    main);
  let status = null;
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
    document.title = `${view.label} · ${title}`;
    main.replaceChildren();
    const context = {
      params: { ...params, view: view.id }, go, link, signal: leaving.signal,
      onBatch(call) {
        watching.add(call);
        if (status?.batch) call(status);
      },
    };
    Promise.resolve(view.show(main, context)).catch((error) => {
      if (error.name !== "AbortError") main.append(h("p", { class: "error panel", role: "alert" }, error.message));
    });
  }

  function tellFacts() {
    if (!status) return;
    const told = factsOf(status, Date.now());
    const same = facts.children.length === told.length;
    if (!same) facts.replaceChildren(...told.map(() => h("div", {}, h("dt"), h("dd"))));
    told.forEach(([name, value], index) => {
      const [dt, dd] = facts.children[index].children;
      if (dt.textContent !== name) dt.textContent = name;
      if (dd.textContent !== value) dd.textContent = value;
    });
  }

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

  follow("/batches", ["batch"], {
    onEvent: (_, told) => {
      status = told;
      tellFacts();
      for (const call of watching) call(status);
    },
    onState: (state) => {
      connection.dataset.state = state;
      connection.textContent = STATES[state];
    },
  });
  show();
}

/** Work that is never done twice at a time: calls meanwhile do it once more, so that the last word is the newest. */
export function oneAtATime(work) {
  let running = false;
  let again = false;
  return async () => {
    again = true;
    if (running) return;
    running = true;
    try {
      while (again) {
        again = false;
        await work();
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
