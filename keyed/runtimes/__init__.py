"""The runtimes: in this process (`local`) and on Spark (`spark`), with the same engine."""
