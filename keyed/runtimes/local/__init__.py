"""The local runtime: keyed functions in this process, without Spark or Java, for tests and small jobs."""
