"""The content of a key group, both entries and rows of tables. Only this package distinguishes them.

- `addresses`: where an entry lives. `table_entries`: rows of tables as entries.
  `entry_decoder`: entries as typed values.
- `blocks`: changes in parts, as they stand in records. `delta`: changes as a whole, from and to blocks, applied, and
  folded into the newest of each address and row.
- `local_store`: the protocols of what state is read from and applied to. `contents`: all that a store holds, and the
  hash of it. `row_hash`: of rows, by whole columns.
"""
