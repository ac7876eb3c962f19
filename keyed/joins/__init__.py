"""Joins: of two streams, with a table, and with an external function.

Functions for ``left.connect(right).key_by(...).process(...)``; the first stream is the left side.

```python
import keyed
from keyed.joins import IntervalJoin, Select
from keyed.rows import row

orders = keyed.stream([row(id=1, at=0)], timestamp="at")
payments = keyed.stream([row(order=1, paid=5, at=30)], timestamp="at")
pairs = orders.connect(payments).key_by("id", "order")
join = IntervalJoin(Select(left=["id"], right=["paid"]), lower=0, upper=60_000)
print(pairs.process(join, "id long, paid long").run().values)
```

```output
[Row(id=1, paid=5)]
```

Parameters of all joins: ``join(left, right)`` returns the output of a pair, with `None` for a missing partner; a result
of `None` emits nothing; `Select` is such a function. Times are milliseconds or a `timedelta`. ``how`` names the sides
that keep elements without a partner. ``late_left`` and ``late_right`` are side outputs for late elements, which are
otherwise dropped and counted (``rows_dropped``). ``path`` is ``"vectorized"`` (whole columns), ``"row"``, or
``"auto"``, which chooses; ``explain`` shows the choice, and a checkpoint keeps it.

The modules:

- ``interval``, ``as_of``, ``windowed``, and with the latest value ``tables``: joins of two connected streams.
  ``select``: the function that returns columns of both. ``pairs``: their common parts.
- The joins over whole columns, which are used if possible: ``interval_columns``, ``as_of_columns``,
  ``window_columns``, ``table_columns``, and ``stream_join`` of scripts, by the time of the streams; ``join_path``
  chooses the path, ``column_join`` and ``matching`` are their common parts. ``key_index``: the rows of a foreign key.
- ``lookups``: rows enriched by an external function. ``async_lookup``: such a function with concurrent calls.
"""

from keyed.joins.as_of import AsOfJoin
from keyed.joins.async_lookup import AsyncLookup
from keyed.joins.interval import IntervalJoin, ProcessJoinFunction
from keyed.joins.lookups import lookup_join
from keyed.joins.select import Select
from keyed.joins.tables import EnrichmentJoin, TableJoin
from keyed.joins.windowed import WindowCoGroup, WindowJoin

__all__ = [
    "AsOfJoin",
    "AsyncLookup",
    "EnrichmentJoin",
    "IntervalJoin",
    "ProcessJoinFunction",
    "Select",
    "TableJoin",
    "WindowCoGroup",
    "WindowJoin",
    "lookup_join",
]
