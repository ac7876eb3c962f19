"""The Spark session, its Java runtime, and the shipping of keyed to remote workers."""
