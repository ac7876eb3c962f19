"""The code in Spark's tasks.

- `pack`: rows become payloads, by key group. `processor`: the engine in Spark's stateful operator.
- `wire`: data between tasks, as bytes. `worker_caches`: the stores and changelog writers of a process.
"""
