// The view of all tables: what each holds, one key with its history, a past batch, and the changes as they come.
import { ask, chart, filled, follow, h, oneAtATime, pathOf, placeOf, shown, shownTime, tableOf } from "/page/keyed.js";

const PAGE = 100;
const FOLLOWED = 200;

export function tablesView() {
  return {
    id: "tables",
    label: "Tables",
    async show(root, context) {
      const { params, signal } = context;
      const listing = h("ul", { class: "names" });
      const content = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Waiting for the first batch."));
      root.append(h("div", { class: "columns" }, h("nav", { "aria-label": "Tables" }, listing), content));
      let tables = [];
      context.onBatch(oneAtATime(async () => {
        const before = tables.length;
        tables = (await ask("/tables", { signal })).tables;
        const chosen = tables.find(({ name }) => name === params.table) ?? tables[0];
        if (!before && tables.length) showTable(content, chosen, context);
        if (tables.length === before) return;
        listing.replaceChildren(...tables.map(({ name, kind, types }) => h("li", {},
          h("a", { href: context.link({ view: "tables", table: name }), "aria-current": name === chosen.name ? "true" : null },
            name, h("small", {}, `${kind} · ${types}`)))));
      }));
    },
  };
}

function showTable(root, table, context) {
  const { params, signal } = context;
  const search = h("input", { type: "search", name: "key", value: params.key ?? "", autocomplete: "off", spellcheck: "false" });
  const asOf = h("input", { name: "as_of", value: params.as_of ?? "", placeholder: "newest", size: 10, inputmode: "numeric" });
  const live = h("button", { type: "button", "aria-pressed": "false" }, "Follow changes");
  const entries = h("div", { "aria-live": "off" });
  const found = h("div", { class: "stack" });
  const changes = h("div");
  const form = h("form", { class: "bar" },
    h("label", {}, "Key, or what it begins with", search),
    h("label", {}, "As of batch", asOf),
    h("button", { class: "main" }, "Look up"),
    h("span", { class: "push" }, live));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    context.go({ view: "tables", table: table.name, key: search.value, as_of: asOf.value });
  });
  root.replaceChildren(
    h("section", { class: "panel stack" },
      h("div", {}, h("h2", {}, table.name), h("p", { class: "quiet" }, `${table.kind} state of ${table.operator}: ${table.types}`)),
      form, found, changes, entries));
  followed(changes, live, table, params, signal);

  const past = { as_of: params.as_of || undefined };
  let known = new Map();
  const load = oneAtATime(async () => {
    const answer = await ask(`/tables/${encodeURIComponent(table.name)}`, { params: { ...prefixOf(table, params.key), ...past, limit: PAGE }, signal });
    const rows = new Map(answer.entries.map((entry) => [JSON.stringify([entry.key, entry.namespace, entry.entry]), entry]));
    const body = entriesTable(answer.entries, table, context, (entry, row) => {
      const id = JSON.stringify([entry.key, entry.namespace, entry.entry]);
      const before = known.get(id);
      if (known.size && JSON.stringify(before?.value) !== JSON.stringify(entry.value)) row.classList.add("changed");
    });
    known = rows;
    entries.replaceChildren(body, answer.next ? more(entries, table, answer.next, context) : "");
  });
  if (params.key) filled(found, () => keyPanel(table, params, past, signal));
  if (params.as_of) filled(entries, async () => { await load(); return h("div", {}, ...entries.childNodes); });
  // What is shown follows the newest batch, until somebody has read on.
  else context.onBatch(() => entries.dataset.read ? null : load().catch((error) => error.name === "AbortError" || filled(entries, () => { throw error; })));
}

/** Keys that are text or have several parts can be searched by how they begin. */
const prefixOf = (table, key) => (key && ["str", "tuple"].includes(table.key) ? { prefix: key } : {});

function entriesTable(entries, table, context, eachRow = () => {}) {
  const spaces = entries.some((entry) => entry.namespace !== null);
  const inner = entries.some((entry) => entry.entry !== null);
  const heads = ["Key", ...(spaces ? ["Namespace"] : []), ...(inner ? ["Entry"] : []), "Value"];
  const made = tableOf(heads, entries.map((entry) => [
    h("a", { href: context.link({ view: "tables", table: table.name, key: placeOf(entry.key), as_of: context.params.as_of }) }, shown(entry.key)),
    ...(spaces ? [entry.namespace] : []), ...(inner ? [entry.entry] : []), entry.value,
  ]), `Entries of ${table.name}`);
  made.querySelectorAll("tbody tr").forEach((row, index) => eachRow(entries[index], row));
  return entries.length ? made : h("p", { class: "quiet" }, "No entries.");
}

function more(root, table, token, context) {
  const button = h("button", { type: "button" }, "More");
  button.addEventListener("click", async () => {
    root.dataset.read = "on";
    button.disabled = true;
    const answer = await ask(`/tables/${encodeURIComponent(table.name)}`, { params: { after: token, limit: PAGE, ...prefixOf(table, context.params.key) }, signal: context.signal });
    button.replaceWith(entriesTable(answer.entries, table, context), answer.next ? more(root, table, answer.next, context) : "");
  });
  return button;
}

/** One key: its value, and what became of it. */
async function keyPanel(table, params, past, signal) {
  const nothing = (error) => {
    // The beginning of a key of several parts is no key.
    if (error.type === "KeyTypeError") return { value: null };
    throw error;
  };
  const answer = await ask(pathOf(table.name, "keys", params.key), { params: past, signal }).catch(nothing);
  const panel = h("div", { class: "stack" }, h("h3", {}, params.key));
  if (answer.value === null || answer.value.length === 0) {
    panel.append(h("p", { class: "quiet" }, "The table holds nothing for this key. Keys that begin with it are listed below."));
    return panel;
  }
  panel.append(h("pre", {}, JSON.stringify(answer.value, null, 2)),
    h("p", { class: "quiet" }, `batch ${answer.position.batch}, state hash ${answer.position.hash}`));
  if (table.kind === "map" || table.kind === "table") return panel;
  const { versions } = await ask(pathOf(table.name, "history", params.key), { signal });
  const numbers = versions.filter(({ value }) => typeof value === "number").reverse();
  if (numbers.length > 1) {
    const root = h("div", { class: "chart" });
    panel.append(root);
    requestAnimationFrame(() => {
      const drawn = chart(root, { x: numbers.map(({ batch }) => batch), y: numbers.map(({ value }) => value), label: table.name, times: false, steps: true });
      signal.addEventListener("abort", drawn.destroy);
    });
  }
  panel.append(tableOf(["Batch", "Committed (UTC)", "Value"], versions.slice(0, PAGE).map((version) =>
    [String(version.batch), shownTime(version.processing_time), version.removed ? "removed" : version.value]), `History of ${params.key}`));
  return panel;
}

/** The changes as they come, the newest first. */
function followed(root, button, table, params, signal) {
  let stopping = null;
  button.addEventListener("click", () => {
    const on = stopping === null;
    button.setAttribute("aria-pressed", String(on));
    if (!on) {
      stopping.abort();
      stopping = null;
      return root.replaceChildren();
    }
    stopping = new AbortController();
    signal.addEventListener("abort", () => stopping?.abort());
    const body = h("tbody");
    const heads = ["Batch", "Key", "Entry", "Before", "After"].map((head) => h("th", { scope: "col" }, head));
    root.replaceChildren(h("h3", {}, "Changes"), h("div", { class: "scroll", tabindex: 0, role: "log", "aria-label": "Changes" },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), body)));
    const query = new URLSearchParams({ after: "now", ...prefixOf(table, params.key) });
    let resumed = false;
    follow(`/tables/${encodeURIComponent(table.name)}/changes?${query}`, ["change", "snapshot", "error"], {
      signal: stopping.signal,
      onEvent: (kind, change) => {
        if (kind === "error") return root.append(h("p", { class: "error", role: "alert" }, change.message));
        if (kind === "snapshot" && !resumed) return;
        resumed = true;
        const cells = [String(change.batch), shown(change.key), shown(change.entry ?? change.namespace), shown(change.old), change.removed ? "removed" : shown(change.new)];
        body.prepend(h("tr", { class: "changed" }, cells.map((cell) => h("td", {}, cell))));
        while (body.children.length > FOLLOWED) body.lastChild.remove();
      },
    });
  });
}
