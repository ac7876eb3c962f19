"""The Nexmark queries in Flink SQL and in Spark SQL, and the reasons of those that an engine cannot run.

They are in `nexmark_flink.sql` and `nexmark_spark.sql`.

Columns are those of the oracles, in their order. Where a query can be written in several ways it is the one that costs
that engine least.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.sql_files import read_queries

__all__ = ["FLINK", "FLINK_CANNOT", "FLINK_CHANGES", "FLINK_TABLES", "SPARK", "SPARK_CANNOT", "SPARK_MODES"]

#: Columns of the files of Flink's tables.
FLINK_TABLES = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, "
    "`dateTime` TIMESTAMP(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
    "`dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP(3), "
    "extra STRING",
}
#: Queries whose rows change later.
FLINK_CHANGES = {"q4", "q9", "q15", "q16", "q17", "q18", "q19"}

FLINK = read_queries(Path(__file__).with_name("nexmark_flink.sql"))
FLINK_CANNOT = {
    "q6": "an OVER aggregate takes no rows that are updated",
    "q10": "not compared: it measures the sink",
    "q13": "the file connector cannot be looked up in",
}

SPARK = read_queries(Path(__file__).with_name("nexmark_spark.sql"))
#: Output modes that are not ``append``.
SPARK_MODES = {"q17": "update", "q18": "update"}
_NO_RANK = "ranks of a stream are not supported"
_NO_DISTINCT = "distinct counts of a stream are not supported"
SPARK_CANNOT = {
    "q4": "an aggregate that updates takes no join of streams",
    "q6": _NO_RANK,
    "q7": "the join with the highest prices of windows did not end within three minutes, over 5,000 events",
    "q9": _NO_RANK,
    "q10": "not compared: it measures the sink",
    "q12": "no windows of processing time",
    "q15": _NO_DISTINCT,
    "q16": _NO_DISTINCT,
    "q19": _NO_RANK,
}
