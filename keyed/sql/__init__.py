"""Streams and tables declared in SQL, with ksqlDB's statements: ``CREATE TABLE … AS SELECT … EMIT CHANGES``.

`script` runs statements over rows, files or Kafka topics, `start` in a thread. `subscribe` follows a table by a push
query, and `register` gives a Python function or aggregate a name in SQL.
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
