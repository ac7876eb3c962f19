"""State tables: the state of a job's functions, as tables that any program can query while the job runs.

```python
import keyed
from keyed.changelog import DirectoryChangelog
from keyed.rows import row
from keyed.tables import open_tables


class Visits(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, 0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)


log = DirectoryChangelog("visits-log")
keyed.stream([row(user="u"), row(user="u")]).key_by("user").process(Visits(), changelog=log).run()
with open_tables(log, "visits-tables") as tables:
    tables.poll()
    print(tables["count"].get("u"))
    print(tables.sql("SELECT user, value FROM count").to_pylist())
```

```output
2
[{'user': 'u', 'value': 2}]
```

``tables.start()`` follows the changelog in a thread.
"""

from keyed.tables.state_table import StateTable
from keyed.tables.state_tables import StateTables, open_tables, read_tables
from keyed.tables.subscription import Change

__all__ = [
    "Change",
    "StateTable",
    "StateTables",
    "open_tables",
    "read_tables",
]
