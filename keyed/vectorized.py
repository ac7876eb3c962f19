"""The second level of the API: functions over whole Arrow columns, with tables as their state.

```python
import keyed
from keyed.vectorized import TableState, VectorizedFunction


class Totals(VectorizedFunction):
    totals = TableState("shop string, amount long", key="shop")

    def process_batch(self, table, ctx):
        self.totals.merge(table, {"amount": "sum"})
        ctx.emit(self.totals.lookup(table.group_by("shop").aggregate([])))


sales = [{"shop": "A", "amount": 2}, {"shop": "A", "amount": 3}]
print(keyed.stream(sales).key_by("shop").process(Totals(), "shop string, amount long").run().values)
```

```output
[Row(shop='A', amount=5)]
```
"""

from keyed.job.context import TaskContext
from keyed.job.functions import TIMESTAMP_COLUMN, BatchContext, VectorizedCoFunction, VectorizedFunction
from keyed.job.table_declaration import TableState

__all__ = [
    "TIMESTAMP_COLUMN",
    "BatchContext",
    "TableState",
    "TaskContext",
    "VectorizedCoFunction",
    "VectorizedFunction",
]
