"""Windows over whole columns: the same windows and aggregates as row by row, on Arrow tables and numpy arrays.

Pure functions of columns, without state and clocks:

- `row_groups`: rows → dense group numbers, and sums, minima and so on by group.
- `accumulators`: aggregates whose accumulator is one or two numbers or values, and aggregate functions of the user's,
  whose accumulators are bytes.
- `list_accumulators`: aggregates whose accumulator is a list: top-k, distinct values and their counts, registers.
- `fold`: the accumulators of a definition side by side, and running merges of them.
- `session_merging`: which sessions merge, which elements are late, and when sessions fire.

Built on these, with a table as state:

- `window_tables`: the base of both kinds of windows: columns of input, slices of time, state and results.
- `slice_windows`, `session_windows`: the windows of both kinds.
- `running_totals`: aggregates over all elements so far, for `keyed.windows.aggregate`.

All load pyarrow and numpy, so `keyed.windows.window_operator`, the vectorized function, imports them with the first
column.
"""

__all__: list[str] = []
