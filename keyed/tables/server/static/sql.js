// The SQL view: a query over all tables as one batch left them, or the changes of one table as they come.
import { ask, cellOf, filled, follow, h, tableOf } from "/page/keyed.js";

const PUSH = /\bemit\s+changes\b(\s+limit\s+\d+)?[\s;]*$/i;
const FOLLOWED = 200;
const OPEN = 4; // tables whose columns are shown from the start

/** Examples are [label, query] pairs, or a function of the tables that gives them. */
export function sqlView(examples = examplesFor) {
  return {
    id: "sql",
    label: "SQL",
    async show(root, context) {
      const { params, signal } = context;
      const query = h("textarea", { name: "query", spellcheck: "false", "aria-label": "Query", rows: 6 });
      const asOf = h("input", { name: "as_of", value: params.as_of ?? "", placeholder: "newest", size: 10, inputmode: "numeric" });
      const run = h("button", { class: "main" }, "Run");
      const ready = h("div", { class: "bar", role: "group", "aria-label": "Examples" });
      const result = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "The rows of a query are shown here."));
      const schema = h("div", { class: "schema" }, h("p", { class: "quiet" }, "Waiting for the tables."));
      query.value = params.query ?? "";
      const form = h("form", { class: "panel stack" },
        h("h2", {}, "SQL"),
        h("p", { class: "quiet" }, "One SELECT in DuckDB's dialect, or one of a table in ksqlDB's that ends with EMIT CHANGES. Ctrl+Enter runs it."),
        ready, query, h("div", { class: "bar" }, h("label", {}, "As of batch", asOf), run));
      root.append(
        h("div", { class: "columns right" },
          h("div", { class: "stack" }, form, h("section", { class: "panel", "aria-label": "Result" }, result)),
          h("nav", { class: "panel stack", "aria-label": "Tables and columns" }, h("h3", {}, "Tables and columns"), schema)));
      let running = new AbortController();
      const submit = () => {
        // The newest query is the one that is shown, whichever answer comes last.
        running.abort();
        const mine = running = new AbortController();
        result.ariaBusy = "true";
        if (!result.querySelector("table")) result.replaceChildren(h("p", { class: "quiet" }, "Running."));
        context.params.query = query.value;
        history.replaceState(null, "", context.link({ view: "sql", query: query.value, as_of: asOf.value }));
        const both = AbortSignal.any([signal, mine.signal]);
        filled(result, async () => {
          if (PUSH.test(query.value)) {
            if (asOf.value) throw new Error("A query that ends with EMIT CHANGES begins now: leave the batch empty.");
            return pushed(query.value, both);
          }
          const began = performance.now();
          const as_of = asOf.value === "" ? null : /^\d+$/.test(asOf.value) ? Number(asOf.value) : asOf.value;
          const answer = await ask("/sql", { body: { query: query.value, as_of }, signal: both });
          const rows = `${answer.rows.length}${answer.more ? " and more" : ""} rows`;
          const cells = answer.rows.map((row) => row.map((value, at) => cellOf(value, answer.columns[at].type, answer.columns[at].name)));
          return h("div", { class: "stack" },
            h("p", { class: "quiet" }, `${rows}, ${Math.round(performance.now() - began)} ms`),
            tableOf(answer.columns.map(({ name }) => name), cells, "Rows"));
        }).finally(() => { if (mine === running) result.ariaBusy = null; });
      };
      form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
      query.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); }
      });
      const insert = (name) => {
        query.setRangeText(quoted(name), query.selectionStart, query.selectionEnd, "end");
        query.focus();
      };
      if (params.query) submit();
      let listed = "";
      context.onBatch(async () => {
        // Tables come with the first rows of their operators.
        const tables = (await ask("/tables", { signal }).catch(() => ({ tables: [] }))).tables;
        const names = JSON.stringify(tables.map(({ name }) => name));
        if (names === listed || signal.aborted) return;
        listed = names;
        ready.replaceChildren(...(Array.isArray(examples) ? examples : examples(tables)).map(([label, text]) =>
          h("button", { type: "button", onclick: () => { query.value = text; submit(); } }, label)));
        schema.replaceChildren(...schemaOf(tables, insert, signal));
      });
    },
  };
}

/** The rows of a push query as they change, the newest first. */
async function pushed(query, signal) {
  const { columns } = await ask("/sql/changes", { params: { query, check: true }, signal });
  const stopping = new AbortController();
  const about = h("p", { class: "quiet", role: "status" }, "Live: waiting for rows.");
  const stop = h("button", { type: "button", onclick: () => end("Stopped") }, "Stop");
  const body = h("tbody");
  let count = 0;
  let resets = false;
  const tell = (state) => { about.textContent = `${state}: ${count} ${count === 1 ? "change" : "changes"}${count > FOLLOWED ? `, the last ${FOLLOWED} are shown` : ""}`; };
  const end = (state) => {
    stopping.abort();
    stop.remove();
    tell(state);
  };
  follow(`/sql/changes?${new URLSearchParams({ query })}`, ["snapshot", "change", "end", "error"], {
    signal: AbortSignal.any([signal, stopping.signal]),
    onEvent: (kind, { batch, row, old, message }) => {
      if (kind === "end") return end("The limit is reached");
      if (kind === "error") {
        about.after(h("p", { class: "error", role: "alert" }, message));
        return end("Ended");
      }
      // The state comes again when the reader was away for too long.
      if (kind === "snapshot" && resets) body.replaceChildren();
      resets = kind === "change";
      const cells = columns.map((name) => {
        const cell = cellOf((row ?? old)[name], undefined, name);
        return h("td", { class: typeof cell === "number" ? "number" : null }, typeof cell === "number" ? cell.toLocaleString("en") : cell);
      });
      const change = row === null ? "gone" : old === null ? "new" : "changed";
      body.prepend(h("tr", { class: row === null ? "gone" : "changed" }, h("td", {}, String(batch)), h("td", {}, change), cells));
      while (body.children.length > FOLLOWED) body.lastChild.remove();
      count += 1;
      tell("Live");
    },
  });
  const heads = ["Batch", "Change", ...columns].map((head) => h("th", { scope: "col" }, head));
  return h("div", { class: "stack" }, h("div", { class: "bar" }, about, h("span", { class: "push" }, stop)),
    h("div", { class: "scroll", tabindex: 0, role: "log", "aria-label": "Rows" },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), body)));
}

/** The tables with their columns, which are asked for one table after the other, when they are looked at. */
function schemaOf(tables, insert, signal) {
  let last = Promise.resolve();
  const wide = matchMedia("(min-width: 44.01rem)").matches;
  return tables.map(({ name, kind }, at) => {
    const columns = h("ul", { "aria-label": `Columns of ${name}` }, h("li", { class: "quiet" }, "Loading."));
    const entry = (label, type, insertion) =>
      h("li", {}, h("button", { type: "button", title: `Insert ${label}`, onclick: () => insert(insertion) }, label), h("small", {}, type));
    const details = h("details", { open: wide && at < OPEN }, h("summary", {}, name, " ", h("small", {}, kind)), columns);
    let loaded = false;
    const load = async () => {
      if (loaded || !details.open || signal.aborted) return;
      try {
        const answer = await ask("/sql", { body: { query: `select * from ${quoted(name)} limit 0` }, signal });
        columns.replaceChildren(...answer.columns.map((column) => entry(column.name, typeName(column.type), column.name)));
        loaded = true;
      } catch (error) {
        if (error.name !== "AbortError") columns.replaceChildren(h("li", { class: "error" }, error.message));
      }
    };
    details.addEventListener("toggle", () => { last = last.then(load); });
    return details;
  });
}

/** An Arrow type in a few characters. */
const typeName = (type) => type.replace(/timestamp\[[^\]]*\]/g, "timestamp");

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

const pushName = (name) => (/^[a-z_][a-z0-9_]*$/i.test(name) ? name : `\`${name.replaceAll("`", "``")}\``);

function examplesFor(tables) {
  const live = tables.slice(0, 1).map(({ name }) => [`${name}, live`, `SELECT * FROM ${pushName(name)} EMIT CHANGES`]);
  return [...tables.slice(0, 5).map(({ name }) => [name, `select * from ${quoted(name)} limit 50`]), ...live];
}
