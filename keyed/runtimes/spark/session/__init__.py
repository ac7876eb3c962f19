"""The Spark session, the Java that it needs, and how keyed reaches remote workers."""
