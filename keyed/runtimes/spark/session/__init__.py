"""The Spark session.

- `spark_session`: its settings and their checks. `java`: its Java runtime. `ship`: keyed for remote workers.
"""
