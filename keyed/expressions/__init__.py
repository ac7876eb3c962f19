"""Expressions in SQL over the columns of a batch, which DuckDB computes: for scripts, push queries and conditions.

- `tokens` cuts a text into words, gives values to those that stand for one, and raises errors at places in it.
- `engine` binds and runs expressions; `macros` are names of functions that DuckDB lacks, `duckdb_settings` what it may
  reach. `row_conditions`: conditions over rows, for operators of libraries.
"""
