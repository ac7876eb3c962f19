"""Arrow columns: the types of Spark as Arrow types, values written to columns and read from them, times."""
