// The page of the top-N job: the page over all tables, and the ranking before it.
import { start } from "/page/keyed.js";
import { sqlView } from "/page/sql.js";
import { tablesView } from "/page/tables.js";
import { rankingView } from "/ranking.js";

const EXAMPLES = [
  ["Most of all", "select key as item, sum(value)::bigint as count\nfrom history group by all order by count desc limit 10"],
  ["Busiest windows", 'select window_start, sum("count")::bigint as in_top\nfrom ranking group by all order by in_top desc limit 10'],
  ["Most often first", "select item, count(*) as windows\nfrom ranking where rank = 1 group by all order by windows desc limit 10"],
  ["By hour of the day", "select hour(entry) as hour_utc, sum(value)::bigint as count\nfrom history group by all order by hour_utc"],
  ["Open windows", "select key as item, namespace as window_end, value as count\nfrom count order by value desc limit 20"],
];

start({ title: "Top N", views: [rankingView(), tablesView(), sqlView(EXAMPLES)] });
