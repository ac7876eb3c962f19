// The page over the tables of any job.
import { start } from "/page/keyed.js";
import { sqlView } from "/page/sql.js";
import { tablesView } from "/page/tables.js";

start({ title: "State tables", views: [tablesView(), sqlView()] });
