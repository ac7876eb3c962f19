// The view of all tables: what each holds, one key with its history, a past batch, and the changes as they come.
import {
  ask, beginnings, cellOf, completing, filled, follow, h, isFields, isWhole, nameOf, oneAtATime, pathOf, placeOf, shown, shownNamespace, shownTime, shownPosition, stepChart, tableOf,
} from "/page/keyed.js";

const PAGE = 100;
const FOLLOWED = 200;
const LAST = 20; // changes that are listed for a batch
const FIELDS = 10; // of values that are shown in columns of their own

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
      const linkTo = (target, name, about, isChosen) => h("li", {},
        h("a", { href: context.link({ view: "tables", ...target }), "aria-current": isChosen ? "true" : null, title: about },
          name, h("small", {}, about)));
      context.onBatch(oneAtATime(async (status) => {
        const before = tables.length;
        tables = (await ask("/tables", { signal })).tables;
        const chosen = params.timers ? null : tables.find(({ name }) => name === params.table) ?? tables[0];
        if (!before && params.timers) showTimers(content, context);
        else if (!before && tables.length) showTable(content, chosen, context);
        if (tables.length === before) return;
        listing.replaceChildren(
          ...tables.map(({ name, kind, types }) => linkTo({ table: name }, name, `${kind} · ${types}`, name === chosen?.name)),
          ...(isWhole(status) ? Object.keys(status.positions) : []).map((name) => linkTo({ timers: name }, "timers", name, name === params.timers)));
      }));
    },
  };
}

function showTable(root, table, context) {
  const { params, signal } = context;
  const search = h("input", { type: "search", name: "key", value: params.key ?? "", autocomplete: "off", spellcheck: "false" });
  const asOf = h("input", { name: "as_of", value: params.as_of ?? "", placeholder: "newest", size: 10, inputmode: "numeric" });
  const live = h("button", { type: "button", "aria-pressed": "false" }, "Follow changes");
  const entries = h("div", { class: "stack", "aria-live": "off" }, h("p", { class: "quiet" }, "Loading."));
  const found = h("div", { class: "stack" });
  const changes = h("div");
  const past = { as_of: params.as_of || undefined };
  const last = h("div", { class: "stack" });
  const slider = h("input", { type: "range", name: "batch", min: 0, max: 0, step: 1, "aria-label": "Batch" });
  const moment = h("output", { class: "quiet" });
  const timeline = h("div", { class: "timeline", hidden: true }, slider, moment);
  const form = h("form", { class: "bar" },
    h("label", {}, "Key, or what it begins with", search, table.key === "str" ? completing(search, table.name, { past, signal }) : null),
    h("label", {}, "As of batch", asOf),
    h("button", { class: "main" }, "Look up"),
    h("span", { class: "push" }, live));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    context.go({ view: "tables", table: table.name, key: search.value, as_of: asOf.value });
  });
  root.replaceChildren(
    h("section", { class: "panel stack" },
      h("div", {}, h("h2", {}, table.name), h("p", { class: "quiet" }, `${table.kind} ${table.kind === "window" ? "table" : "state"} of ${table.operator}: ${table.types}`)),
      form, timeline, found, changes, entries, last));
  followed(changes, live, table, params, signal);

  let known = new Map();
  const load = async () => {
    const answer = await pageOf(table, params.key, past, signal);
    const rows = new Map(answer.entries.map((entry) => [JSON.stringify([entry.key, entry.namespace, entry.entry]), entry]));
    const body = entriesTable(answer.entries, table, context, (entry, row) => {
      const id = JSON.stringify([entry.key, entry.namespace, entry.entry]);
      const before = known.get(id);
      if (known.size && JSON.stringify(before?.value) !== JSON.stringify(entry.value)) row.classList.add("changed");
    });
    known = rows;
    entries.replaceChildren(body, ...(answer.next ? [more(entries, table, answer.next, context)] : []));
    return answer.position;
  };
  const place = ({ batch, processing_time: time }, oldest, newest) => {
    slider.min = oldest;
    slider.max = newest;
    slider.value = batch;
    moment.textContent = `batch ${batch}${batch === newest ? ", the newest" : ` of ${newest}`}, committed ${shownTime(time)}`;
    slider.setAttribute("aria-valuetext", moment.textContent);
    timeline.hidden = oldest === newest;
  };
  const refresh = oneAtATime(async () => {
    try {
      const position = await load();
      const answer = await ask(`/tables/${encodeURIComponent(table.name)}/last-changes`, { params: { limit: LAST, ...past }, signal });
      // What the pointer has moved to meanwhile is loaded next.
      if (!moved) place(position, answer.oldest, answer.position.batch);
      last.replaceChildren(h("h3", {}, "Last changes"), lastChanges(answer.changes, table, answer.oldest));
    } catch (error) {
      if (error.name !== "AbortError") await filled(entries, () => { throw error; });
    }
  });
  let moved = false;
  slider.addEventListener("input", async () => {
    const at = Number(slider.value);
    past.as_of = at < Number(slider.max) ? at : undefined;
    params.as_of = past.as_of;
    asOf.value = past.as_of ?? "";
    moment.textContent = `batch ${at}`;
    delete entries.dataset.read;
    history.replaceState(null, "", context.link(params));
    moved = true;
    clearTimeout(settling);
    settling = setTimeout(() => { moved = false; refresh(); }, 60);
  });
  let settling;
  signal.addEventListener("abort", () => clearTimeout(settling));
  if (params.key) filled(found, () => keyPanel(table, params, past, signal));
  if (past.as_of !== undefined) refresh();
  // What is shown follows the newest batch, until somebody has read on or looks at a past batch.
  context.onBatch(() => (entries.dataset.read || past.as_of !== undefined ? null : refresh()));
}

/** The last changes up to a batch. */
function lastChanges(changes, table, oldest) {
  if (!changes.length) return h("p", { class: "quiet" }, `None is kept: batch ${oldest} is the oldest one.`);
  const types = typesOf(table);
  const name = table.key_columns.length === 1 ? table.key_columns[0] : undefined;
  const inner = changes.some(({ entry, namespace }) => entry !== null || namespace !== null);
  const rows = changes.map(({ batch, key, entry, namespace, old, new: value, removed }) => [
    String(batch), cellOf(key, types.key, name),
    ...(inner ? [document.createTextNode(entry === null ? shownNamespace(namespace) : shown(entry, types.entry))] : []),
    brief(old, value, types.value, table.name), removed ? "removed" : brief(value, old, types.value, table.name),
  ]);
  return tableOf(["Batch", name ?? "Key", ...(inner ? ["Entry"] : []), "Before", "After"], rows, "Last changes");
}

/** A value as a cell: of one with fields those that differ from another value, and its time only if nothing else does. */
function brief(value, other, type, name) {
  if (!isFields(value)) return document.createTextNode(shown(value, type, name));
  const differs = (field) => !isFields(other) || JSON.stringify(value[field]) !== JSON.stringify(other[field]);
  const fields = Object.keys(value).filter(differs);
  const told = fields.filter((field) => field !== "ROWTIME");
  return cellOf(Object.fromEntries((told.length ? told : fields).map((field) => [field, value[field]])));
}

/**
 * Keys that are text or have several parts can be searched by how they begin; text whatever its case. There is at least
 * one beginning, since the answer for it names the batch that is shown.
 */
async function prefixesOf(table, key, past, signal) {
  if (!key || !["str", "tuple"].includes(table.key)) return [undefined];
  const spellings = table.key === "str" ? await beginnings(table.name, key, { past, signal }) : [];
  return spellings.length ? spellings : [key];
}

/** A page of entries, from the beginning or behind another one; `next` is what follows. */
async function pageOf(table, key, past, signal, after = null) {
  const prefixes = after?.prefixes ?? await prefixesOf(table, key, past, signal);
  const entries = [];
  let position = null;
  let token = after?.token;
  for (let at = after?.at ?? 0; at < prefixes.length; at++) {
    const params = { prefix: prefixes[at], after: token, limit: PAGE - entries.length, ...past };
    const answer = await ask(`/tables/${encodeURIComponent(table.name)}`, { params, signal });
    entries.push(...answer.entries);
    position = answer.position;
    token = answer.next ?? undefined;
    if (token) return { entries, position, next: { prefixes, at, token } };
    if (entries.length >= PAGE) return { entries, position, next: at + 1 < prefixes.length ? { prefixes, at: at + 1 } : null };
  }
  return { entries, position, next: null };
}

/** The types of a table's entries, as the server names them: of keys, entries, values, and of the fields of these. */
function typesOf(table) {
  const [first, second] = table.types.split(" -> ");
  const value = second ?? first;
  const fields = Object.fromEntries([...value.matchAll(/(\w+): ([^,()]+)/g)].map(([, name, type]) => [name, type]));
  return { key: table.key, entry: second === undefined ? undefined : first, value, fields };
}

function entriesTable(entries, table, context, eachRow = () => {}) {
  const spaces = entries.some((entry) => entry.namespace !== null);
  const inner = entries.some((entry) => entry.entry !== null);
  const types = typesOf(table);
  const fields = fieldsOf(entries);
  const named = table.entry?.length > 0;
  const keys = table.key_columns.length ? table.key_columns : ["Key"];
  const heads = [...keys, ...(spaces ? ["Namespace"] : []), ...(inner ? (named ? table.entry : ["Entry"]) : []), ...(fields ?? ["Value"])];
  const entryCells = (entry) => (named ? table.entry.map((name, at) => cellOf(entry?.[at], undefined, name)) : [cellOf(entry, types.entry)]);
  const keyCells = (key) => {
    const [first, ...rest] = keys.length > 1 && Array.isArray(key) ? key : [key];
    const href = context.link({ view: "tables", table: table.name, key: placeOf(key), as_of: context.params.as_of });
    return [h("a", { href }, shown(first, keys.length > 1 ? undefined : types.key, keys[0])), ...rest.map((part, at) => cellOf(part, undefined, keys[at + 1]))];
  };
  const made = tableOf(heads, entries.map((entry) => [
    ...keyCells(entry.key),
    ...(spaces ? [h("span", { class: "time" }, shownNamespace(entry.namespace))] : []), ...(inner ? entryCells(entry.entry) : []),
    ...(fields ? fields.map((name) => cellOf(entry.value[name], types.fields[name], name)) : [cellOf(entry.value, types.value, table.name)]),
  ]), `Entries of ${table.name}`);
  [...made.querySelector("tbody").rows].forEach((row, index) => eachRow(entries[index], row));
  return entries.length ? made : h("p", { class: "quiet" }, context.params.key ? "No key begins with this." : "The table is empty.");
}

/** The names of the fields of values that are alike; null where they are shown as they are. */
function fieldsOf(entries) {
  if (!entries.length || !entries.every(({ value }) => isFields(value))) return null;
  const names = Object.keys(entries[0].value);
  const alike = entries.every(({ value }) => Object.keys(value).length === names.length && names.every((name) => name in value));
  return alike && names.length > 0 && names.length <= FIELDS ? names : null;
}

function more(root, table, next, context) {
  const button = h("button", { type: "button" }, "More");
  button.addEventListener("click", async () => {
    root.dataset.read = "on";
    button.disabled = true;
    const past = { as_of: context.params.as_of || undefined };
    try {
      const answer = await pageOf(table, context.params.key, past, context.signal, next);
      button.replaceWith(entriesTable(answer.entries, table, context), ...(answer.next ? [more(root, table, answer.next, context)] : []));
    } catch (error) {
      if (error.name === "AbortError") return;
      button.disabled = false;
      button.before(h("p", { class: "error", role: "alert" }, error.message));
    }
  });
  return button;
}

/** One key: its value, and what became of it. */
async function keyPanel(table, params, past, signal) {
  const types = typesOf(table);
  const nothing = (error) => {
    // The beginning of a key of several parts is no key.
    if (error.type === "KeyTypeError") return { found: false };
    throw error;
  };
  const key = table.key === "str" ? await nameOf(table.name, params.key, { past, signal }) : params.key;
  const answer = await ask(pathOf(table.name, "keys", key), { params: past, signal }).catch(nothing);
  const panel = h("div", { class: "stack" }, h("h3", {}, key));
  if (!answer.found) {
    panel.append(h("p", { class: "quiet" }, "The table holds nothing for this key. Keys that begin with it are listed below."));
    return panel;
  }
  const entries = entryCount(table, answer.value);
  const number = `${answer.next ? "More than " : ""}${shown(entries)} ${entries === 1 ? "entry" : "entries"}, listed below.`;
  panel.append(entries === null ? valueView(answer.value, types, table.name) : h("p", {}, number),
    h("p", { class: "quiet mono" }, shownPosition(answer.position)));
  if (entries !== null) return panel;
  const { versions } = await ask(pathOf(table.name, "history", key), { signal });
  const numbers = versions.filter(({ value }) => typeof value === "number").reverse();
  if (numbers.length > 1) {
    const root = h("div", { class: "chart" });
    panel.append(root);
    requestAnimationFrame(() => {
      if (signal.aborted) return;
      const drawn = stepChart(root, { x: numbers.map(({ batch }) => batch), y: numbers.map(({ value }) => value), label: table.name });
      signal.addEventListener("abort", drawn.destroy);
    });
  }
  panel.append(tableOf(["Batch", "Committed (UTC)", "Value"], versions.slice(0, PAGE).map((version) =>
    [String(version.batch), h("span", { class: "time" }, shownTime(version.processing_time)), version.removed ? "removed" : cellOf(version.value, types.value, table.name)]), `History of ${key}`));
  return panel;
}

/** How many entries a key has; null where the table holds one value for each. */
function entryCount(table, value) {
  if (Array.isArray(value) && table.kind === "list") return value.length;
  if (["map", "broadcast", "table", "window"].includes(table.kind) && value !== null && typeof value === "object") return Object.keys(value).length;
  return null;
}

/** One value: its fields, if it has some. */
function valueView(value, types, name) {
  if (isFields(value)) {
    return tableOf(["Field", "Value"], Object.entries(value).map(([field, each]) =>
      [document.createTextNode(field), cellOf(each, types.fields[field], field)]), "Value");
  }
  if (Array.isArray(value)) return h("div", { class: "value" }, cellOf(value));
  return h("p", { class: "value" }, shown(value, types.value, name));
}

/** The timers of an operator that are pending, in the order of their keys. */
function showTimers(root, context) {
  const { params, signal } = context;
  const found = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading."));
  root.replaceChildren(h("section", { class: "panel stack" },
    h("div", {}, h("h2", {}, "timers"), h("p", { class: "quiet" }, `pending timers of ${params.timers}`)), found));
  context.onBatch(oneAtATime(() => filled(found, async () => {
    const { timers } = await ask("/timers", { params: { operator: params.timers, limit: PAGE }, signal });
    if (!timers.length) return h("p", { class: "quiet" }, "No timer is pending.");
    const rows = timers.map(({ timestamp, domain, name, key }) =>
      [h("span", { class: "time" }, shownTime(timestamp)), domain.replace("_", " "), cellOf(name), cellOf(key)]);
    const about = timers.length < PAGE ? `${timers.length} pending` : `the first ${PAGE}`;
    return h("div", { class: "stack" }, h("p", { class: "quiet" }, about), tableOf(["Fires at (UTC)", "Clock", "Name", "Key"], rows, "Timers"));
  })));
}

/** The changes as they come, the newest first. */
function followed(root, button, table, params, signal) {
  let stopping = null;
  const types = typesOf(table);
  const begins = (key) => !params.key || typeof key !== "string" || key.toLowerCase().startsWith(params.key.toLowerCase());
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
    // Text is compared here, whatever its case.
    const query = new URLSearchParams({ after: "now", ...(params.key && table.key === "tuple" ? { prefix: params.key } : {}) });
    let resumed = false;
    follow(`/tables/${encodeURIComponent(table.name)}/changes?${query}`, ["change", "snapshot", "error"], {
      signal: stopping.signal,
      onEvent: (kind, change) => {
        if (kind === "error") return root.append(h("p", { class: "error", role: "alert" }, change.message));
        if (kind === "snapshot" && !resumed) return;
        resumed = true;
        if (!begins(change.key)) return;
        const cells = [String(change.batch), shown(change.key, types.key, table.key_columns.length === 1 ? table.key_columns[0] : undefined), change.entry === null ? shownNamespace(change.namespace) : shown(change.entry, types.entry),
          brief(change.old, change.new, types.value, table.name), change.removed ? "removed" : brief(change.new, change.old, types.value, table.name)];
        body.prepend(h("tr", { class: "changed" }, cells.map((cell) => h("td", {}, cell))));
        while (body.children.length > FOLLOWED) body.lastChild.remove();
      },
    });
  });
}
