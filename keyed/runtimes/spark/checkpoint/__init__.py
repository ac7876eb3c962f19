"""The checkpoint of a query.

- `folder`: its files. `checkpoint_lease`: the lock that one query holds.
- `begin`: the position of a query, and its start. `spark_recovery`: flush and verify, without the query.
- `ticks`, `global_table_files`: files that a query reads as streams, beside its sources.
"""
