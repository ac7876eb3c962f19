"""Streams and tables declared in SQL, with ksqlDB's statements: ``CREATE TABLE … AS SELECT … EMIT CHANGES``.

For writers of jobs. `script` runs a text of statements over records or Kafka topics, in this process, and `start` does
so in a thread. `subscribe` follows a table by a push query. `register` gives a Python function or aggregate a name in
SQL. A script is a front over the rest of `keyed`: its statements become the same operators, with the same state,
checkpoints and changelogs, as Python code.

How a script becomes operators, a module each:

1. `grammar` parses the text into a tree (`syntax`). The tokens are those of a dialect of sqlglot; errors have line,
   column and the line of the text (`script_errors`).
2. `definitions` checks the statements in order, and knows the streams and tables (`catalog`) with their formats
   (`value_formats`); `registry_schemas` reads columns from schemas. `planner` checks each query and plans it: what is
   read, filtered, grouped and emitted.
   `expressions` compiles expressions to functions of a row, with the functions of `scalar_functions`, the aggregates of
   `sql_aggregates` and ksqlDB's types (`sql_types`) and conversions (`conversions`). All of the script is checked
   before anything runs. Functions with Java's meaning are in `text_functions`, `json_functions`,
   `java_regexes`, `java_formats`, `java_uris` and `java_values`.
3. `compiler` builds the streams and operators (`sql_operators`) of the plans with the public API: ``flat_map``,
   ``key_by``, ``connect`` and ``process``. Elements between them are `row_changes`.
4. `script_runs` reads the records, and runs the query with `keyed.run`. `kafka_deployment` finds the Kafka topics that
   are read and written, whose bytes `wire_formats` decodes and encodes.

Expressions are evaluated in Python, row by row, on purpose: an error in one row is a null in that row and nothing else,
and the meaning is the same wherever the operators run.
"""

from keyed.sql.definitions import Answer
from keyed.sql.kafka_deployment import Kafka
from keyed.sql.push_queries import PushedRow, PushQuery, subscribe
from keyed.sql.registered import register
from keyed.sql.script_runs import OutputRecord, ScriptResult, script, start

__all__ = [
    "Answer",
    "Kafka",
    "OutputRecord",
    "PushQuery",
    "PushedRow",
    "ScriptResult",
    "register",
    "script",
    "start",
    "subscribe",
]
