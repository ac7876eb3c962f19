// The SQL view: a query over all tables as one batch left them.
import { ask, filled, h, tableOf } from "/page/keyed.js";

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
      const result = h("div", { "aria-live": "polite" });
      query.value = params.query ?? "";
      const form = h("form", { class: "panel stack" },
        h("h2", {}, "SQL"),
        h("p", { class: "quiet" }, "One SELECT in DuckDB's dialect. Ctrl+Enter runs it."),
        ready, query, h("div", { class: "bar" }, h("label", {}, "As of batch", asOf), run));
      root.append(form, h("section", { class: "panel", "aria-label": "Result" }, result));
      let running = new AbortController();
      const submit = () => {
        // The newest query is the one that is shown, whichever answer comes last.
        running.abort();
        const mine = running = new AbortController();
        result.ariaBusy = "true";
        context.params.query = query.value;
        history.replaceState(null, "", context.link({ view: "sql", query: query.value, as_of: asOf.value }));
        filled(result, async () => {
          const began = performance.now();
          const as_of = asOf.value === "" ? null : /^\d+$/.test(asOf.value) ? Number(asOf.value) : asOf.value;
          const answer = await ask("/sql", { body: { query: query.value, as_of }, signal: AbortSignal.any([signal, mine.signal]) });
          const rows = `${answer.rows.length}${answer.more ? " and more" : ""} rows`;
          return h("div", { class: "stack" },
            h("p", { class: "quiet" }, `${rows}, ${Math.round(performance.now() - began)} ms`),
            tableOf(answer.columns.map(({ name }) => name), answer.rows, "Rows"));
        }).finally(() => { if (mine === running) result.ariaBusy = null; });
      };
      form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
      query.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); }
      });
      const { tables } = await ask("/tables", { signal }).catch(() => ({ tables: [] }));
      for (const [label, text] of Array.isArray(examples) ? examples : examples(tables)) {
        ready.append(h("button", { type: "button", onclick: () => { query.value = text; submit(); } }, label));
      }
      if (params.query) submit();
    },
  };
}

const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

function examplesFor(tables) {
  return tables.slice(0, 5).map(({ name }) => [name, `select * from ${quoted(name)} limit 50`]);
}
