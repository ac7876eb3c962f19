"""Joins: library code on the public names of `keyed`, as a third party could write it.

For writers of jobs. The modules:

- Joins of two connected streams, functions for ``left.connect(right).key_by(...).process(IntervalJoin(...), output)``:
  `interval`, `as_of`, `windowed`, and with the latest value `tables`. The first stream is the left side. The output of
  a pair is the result of a function, ``join(left, right)``, with ``None`` for a missing partner; a result of ``None``
  emits nothing. `select`: a function that returns columns of both. An interval join also takes a
  `ProcessJoinFunction`. `pairs`: their common parts.
- The joins over whole columns, which are used if possible: `interval_columns`, `as_of_columns`, `window_columns`,
  `table_columns`; `join_path` chooses the path, `column_join` and `matching` are their common parts. `key_index`: the
  rows of a foreign key.
- `lookups`: rows enriched by an external function, which is called with many keys at once. `async_lookup`: a function
  of this kind with concurrent calls.
"""

from keyed.joins.as_of import AsOfJoin
from keyed.joins.async_lookup import AsyncLookup
from keyed.joins.interval import IntervalJoin, JoinContext, ProcessJoinFunction
from keyed.joins.lookups import LookupJoin, lookup_join
from keyed.joins.select import Select
from keyed.joins.tables import EnrichmentJoin, TableJoin
from keyed.joins.windowed import WindowCoGroup, WindowJoin

__all__ = [
    "AsOfJoin",
    "AsyncLookup",
    "EnrichmentJoin",
    "IntervalJoin",
    "JoinContext",
    "LookupJoin",
    "ProcessJoinFunction",
    "Select",
    "TableJoin",
    "WindowCoGroup",
    "WindowJoin",
    "lookup_join",
]
