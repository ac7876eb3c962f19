// The ranking of a window as bars, the newest full one as the job goes on, or any other; all windows; an item's counts.
import {
  ask, barChart, completing, filled, h, nameOf, oneAtATime, pathOf, shown, shownPosition, shownTime, tableOf,
} from "/page/keyed.js";

const ROW = 40; // pixels
/** Rows among which the newest full ranking is looked for: a night of hours has few. */
const RECENT = 200;
/** Milliseconds between two looks at all windows, which cost more than those at one. */
const OFTEN = 10_000;
const ALL = 'select epoch(window_start)::bigint as start, sum("count")::bigint as counted from ranking group by all order by start';

export function rankingView() {
  return {
    id: "ranking",
    label: "Ranking",
    async show(root, context) {
      const { params, signal } = context;
      const title = h("h2", { "aria-live": "polite" }, "Waiting for the first window");
      const at = h("input", { type: "datetime-local", name: "window", step: 60, "aria-label": "Window at (UTC)" });
      const asOf = h("input", { name: "as_of", size: 8, placeholder: "newest", inputmode: "numeric", value: params.as_of ?? "", "aria-label": "As known at batch" });
      const button = (label, name, act) => h("button", { type: "button", "aria-label": name, title: name, onclick: act }, label);
      const earlier = button("‹", "Earlier window", () => step("desc"));
      const later = button("›", "Later window", () => step("asc"));
      const latest = button("Latest", "Follow the latest window", () => context.go({ view: "ranking", item: params.item }));
      const list = h("ol", { class: "ranking", "aria-label": "Ranking" });
      const source = h("p", { class: "quiet mono" });
      const strip = h("div", { class: "strip" });
      const search = h("input", { type: "search", name: "item", value: params.item ?? "", autocomplete: "off", spellcheck: "false" });
      const item = h("div");
      const past = { as_of: params.as_of || undefined };
      const find = h("form", { class: "bar" },
        h("label", {}, "Item", search, completing(search, "history", { past, signal })), h("button", { class: "main" }, "Show"));
      root.append(
        h("section", { class: "panel stack" },
          h("div", { class: "window" }, title, h("div", { class: "steps" }, earlier, later, latest),
            h("div", { class: "steps fields" }, h("label", {}, "Window at (UTC)", at))),
          list, strip),
        h("section", { class: "panel stack", "aria-label": "Item" }, find, item),
        h("div", { class: "bar" }, h("label", {}, "As of batch", asOf), source));
      latest.setAttribute("aria-pressed", String(!params.window && !params.as_of));

      const bars = new Map();
      const range = { from: -Infinity, to: Infinity }; // of the chart
      let chart = null;
      let windows = null;
      let drawnWindows = "";
      let waiting = null; // the timer of the next look at all windows
      let first; // in the ranking
      let current = null;

      /** The key of the first window in a direction; windows are keyed by their start and end. */
      const windowOf = async (order, range) =>
        (await ask("/tables/ranking", { params: { order, limit: 1, ...range, ...past }, signal })).entries[0]?.key;

      /** The key of the newest of the recent windows that has as many rows as any of them. */
      async function latestFull() {
        const { entries, next } = await ask("/tables/ranking", { params: { order: "desc", limit: RECENT, ...past }, signal });
        const windowsOf = Map.groupBy(entries, ({ key }) => key[0]);
        const whole = [...windowsOf.values()];
        if (next && whole.length > 1) whole.pop(); // It may go on behind what was read.
        const most = Math.max(...whole.map((rows) => rows.length));
        return whole.find((rows) => rows.length === most)?.[0].key;
      }

      async function showWindows() {
        const { rows } = await ask("/sql", { body: { query: ALL, as_of: /^\d+$/.test(past.as_of ?? "") ? Number(past.as_of) : past.as_of }, signal });
        const text = JSON.stringify(rows);
        if (text === drawnWindows || rows.length < 2) return;
        drawnWindows = text;
        windows?.destroy();
        strip.replaceChildren();
        windows = barChart(strip, {
          x: rows.map(([start]) => start), y: rows.map(([, counted]) => counted), label: "Counted in the rankings", height: 120,
          pick: (start) => goTo(new Date(start * 1000).toISOString().replace(".000", "")),
        });
      }

      /** Shows all windows at once the first time, and later at most every ten seconds. */
      function soonShowWindows() {
        waiting ??= setTimeout(async () => {
          try {
            await showWindows();
          } catch (error) {
            if (error.name !== "AbortError") {
              drawnWindows = "";
              strip.replaceChildren(h("p", { class: "quiet" }, error.message));
            }
          }
          waiting = null;
        }, windows ? OFTEN : 0);
      }

      async function step(order) {
        if (!current) return;
        const range = order === "desc" ? { to: JSON.stringify([current[0]]) } : { from: JSON.stringify([current[1]]) };
        const found = await windowOf(order, range);
        if (found) goTo(found[0]);
      }
      const goTo = (start) => context.go({ view: "ranking", window: start, item: params.item, as_of: asOf.value });

      async function load() {
        const key = params.window
          ? await windowOf("asc", { from: JSON.stringify([params.window]) })
          : await latestFull();
        if (!key) {
          title.textContent = params.window ? "No window from here on yet" : "Waiting for the first window";
          return false;
        }
        const before = await windowOf("desc", { to: JSON.stringify([key[0]]) });
        const [answer, earlierAnswer] = await Promise.all([key, before].map((each) =>
          each ? ask(pathOf("ranking", "keys", each), { params: past, signal }) : { value: [] }));
        current = key;
        title.replaceChildren(`${shownTime(key[0])} to ${shownTime(key[1]).slice(11)}`,
          h("small", {}, params.window ? "UTC" : "UTC, the latest full ranking"));
        at.value = new Date(key[0]).toISOString().slice(0, 16);
        earlier.disabled = !before;
        first = answer.value?.[0]?.item;
        draw(answer.value ?? [], new Map((earlierAnswer.value ?? []).map((row) => [row.item, row.rank])));
        source.textContent = shownPosition(answer.position);
        return true;
      }

      function draw(rows, ranks) {
        const most = Math.max(...rows.map((row) => row.count), 1);
        list.style.height = `${rows.length * ROW}px`;
        const gone = new Set(bars.keys());
        for (const row of rows) {
          gone.delete(row.item);
          if (!bars.has(row.item)) bars.set(row.item, bar(row.item, rows.length));
          bars.get(row.item).tell(row, most, ranks.get(row.item), ranks.size > 0);
        }
        for (const name of gone) {
          bars.get(name).leave();
          bars.delete(name);
        }
        // The order in the document is the order that is read out.
        list.append(...rows.map((row) => bars.get(row.item).element));
      }

      function bar(name, place) {
        const rank = h("span", { class: "rank" });
        const count = h("span", { class: "count" });
        const change = h("span", { class: "change" });
        const fill = h("div", { class: "fill" });
        const element = h("li", {}, rank,
          h("button", { class: "item", type: "button", title: name, onclick: () => context.go({ ...params, item: name }) }, name),
          h("div", { class: "track", "aria-hidden": "true" }, fill), count, change);
        element.style.transform = `translateY(${place * ROW}px)`;
        fill.style.transform = "scaleX(0)";
        list.append(element);
        element.getBoundingClientRect(); // so that it moves from where it is put
        return {
          element,
          tell(row, most, before, compared) {
            rank.textContent = row.rank;
            count.textContent = shown(row.count);
            const [sign, words] = !compared ? ["", ""]
              : before === undefined ? ["new", "new"]
              : before === row.rank ? ["", "as before"]
              : before > row.rank ? [`▲${before - row.rank}`, `up ${before - row.rank}`]
              : [`▼${row.rank - before}`, `down ${row.rank - before}`];
            change.replaceChildren(h("span", { "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, words));
            element.style.transform = `translateY(${(row.rank - 1) * ROW}px)`;
            fill.style.transform = `scaleX(${row.count / most})`;
          },
          leave() {
            element.classList.add("leaving");
            setTimeout(() => element.remove(), 400);
          },
        };
      }

      async function showItem() {
        const name = await nameOf("history", params.item ?? first, { past, signal });
        const counts = [];
        let after;
        do {
          const answer = await ask(pathOf("history", "keys", name), { params: { ...past, after }, signal });
          for (const [start, count] of Object.entries(answer.value ?? {})) counts.push([Date.parse(start) / 1000, count]);
          after = answer.next;
        } while (after);
        counts.sort(([a], [b]) => a - b);
        const heading = h("h3", {}, name);
        if (!counts.length) return h("div", { class: "stack" }, heading, h("p", { class: "quiet" }, "Nothing was counted of it yet."));
        const total = counts.reduce((sum, [, count]) => sum + count, 0);
        const most = counts.reduce((best, each) => (each[1] > best[1] ? each : best));
        const plot = h("div", { class: "chart" });
        requestAnimationFrame(() => {
          if (signal.aborted) return;
          chart?.destroy();
          chart = barChart(plot, { x: counts.map(([start]) => start), y: counts.map(([, count]) => count), label: name, range });
        });
        return h("div", { class: "stack" }, heading,
          h("p", { class: "quiet" }, `${shown(total)} in ${shown(counts.length)} windows, most in that of ${shownTime(most[0] * 1000)}: ${shown(most[1])}`),
          plot,
          tableOf(["Window (UTC)", "Count"], counts.slice(-8).reverse().map(([start, count]) => [shownTime(start * 1000), count]), `The last windows of ${name}`));
      }

      find.addEventListener("submit", (event) => {
        event.preventDefault();
        context.go({ ...params, item: search.value.trim() });
      });
      at.addEventListener("change", () => at.value && goTo(`${at.value}:00Z`));
      asOf.addEventListener("change", () => context.go({ ...params, as_of: asOf.value.trim() }));
      addEventListener("keydown", (event) => {
        if (event.target.closest?.("input, textarea, select") || event.altKey || event.ctrlKey || event.metaKey) return;
        if (event.key === "ArrowLeft") step("desc");
        if (event.key === "ArrowRight") step("asc");
      }, { signal });

      signal.addEventListener("abort", () => {
        clearTimeout(waiting);
        [chart, windows].forEach((each) => each?.destroy());
      });
      const fixed = Boolean(params.window || params.as_of);
      let done = false;
      context.onBatch(oneAtATime(async () => {
        if (done) return;
        try {
          done = (await load()) && fixed;
          if (params.item ?? first) await filled(item, showItem);
          soonShowWindows();
        } catch (error) {
          if (error.name !== "AbortError") source.textContent = error.message;
        }
      }));
    },
  };
}
