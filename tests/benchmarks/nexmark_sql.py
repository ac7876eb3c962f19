"""The Nexmark queries in Flink SQL and in Spark SQL, and the reasons of those that an engine cannot run.

They are in `nexmark_flink.sql` and `nexmark_spark.sql`, and the reasons in `nexmark.json`.

Columns are those of the oracles, in their order. Where a query can be written in several ways it is the one that costs
that engine least.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.data_files import read_data
from tests.support.sql_files import read_queries

__all__ = ["FLINK", "FLINK_CANNOT", "FLINK_CHANGES", "FLINK_TABLES", "SPARK", "SPARK_CANNOT", "SPARK_MODES"]

_DATA = read_data("benchmarks/nexmark.json")
FLINK_TABLES: dict[str, str] = _DATA["columns of Flink's tables"]
FLINK_CHANGES = {*_DATA["queries whose rows change later"]}
FLINK = read_queries(Path(__file__).with_name("nexmark_flink.sql"))
FLINK_CANNOT: dict[str, str] = _DATA["Flink cannot"]
SPARK = read_queries(Path(__file__).with_name("nexmark_spark.sql"))
SPARK_MODES: dict[str, str] = _DATA["output modes of Spark, append where there is none"]
SPARK_CANNOT: dict[str, str] = _DATA["Spark cannot"]
