"""The local runtime: keyed functions in this process, without Spark or Java, for tests and small jobs."""

from keyed.runtimes.local.local_query import LocalQuery, dataframe, run, start

__all__ = ["LocalQuery", "dataframe", "run", "start"]
