"""The code in Spark's tasks: packing, the key groups, emitting."""
