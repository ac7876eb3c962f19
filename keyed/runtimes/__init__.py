"""Where keyed functions run: in this process (`local`) and on Spark (`spark`), with the same engine under both."""
