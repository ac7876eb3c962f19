"""Streams and tables declared in SQL, with ksqlDB's statements: ``CREATE TABLE … AS SELECT … EMIT CHANGES``.

`script` runs statements over rows, files or Kafka topics, `start` in a thread. `subscribe` follows a table by a push
query, and `register` gives a Python function or aggregate a name in SQL.
"""

from keyed.sql.kafka_deployment import Kafka
from keyed.sql.push_queries import subscribe
from keyed.sql.registered import register
from keyed.sql.script_runs import OutputRecord, script, start

__all__ = [
    "Kafka",
    "OutputRecord",
    "register",
    "script",
    "start",
    "subscribe",
]
