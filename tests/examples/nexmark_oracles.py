"""The Nexmark queries in DuckDB's SQL, which `nexmark_duckdb.sql` has, over a folder of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from tests.support.sql_files import read_queries

ORACLES = read_queries(Path(__file__).with_name("nexmark_duckdb.sql"))
#: The winning bid of each auction.
_WINNERS = ORACLES.pop("winners")
#: Keys of the final tables.
KEYS = {"q4": "id", "q6": "seller, id", "q9": "id", "q15": "day", "q16": "channel, day", "q17": "auction, day"}
KEYS |= {"q18": "bidder, auction", "q19": "auction, rank_number"}


class Oracle:
    """DuckDB over a folder of events."""

    def __init__(self, folder: Path) -> None:
        self.connection = duckdb.connect()
        files = f"read_parquet('{folder}/*.parquet', file_row_number=true, filename=true)"
        order = "row_number() OVER (ORDER BY filename, file_row_number)"
        self.connection.execute(f"CREATE TABLE events AS SELECT *, {order} AS place FROM {files}")
        for type_, name in enumerate(("person", "auction", "bid")):
            self.connection.execute(
                f"CREATE TABLE {name} AS SELECT unnest({name}), place FROM events WHERE event_type = {type_}"
            )
        self.connection.execute(f"CREATE TABLE side_input AS SELECT * FROM read_csv('{folder}/side_input.csv')")
        self.connection.execute(f"CREATE VIEW winners AS {_WINNERS}")

    def expected(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query in order, without times of processing."""
        return self._rows(ORACLES[query])

    def found(self, query: str, folder: Path) -> list[tuple[Any, ...]]:
        """Return the rows that a run of the query has written, those of a final table by key."""
        files = f"read_parquet('{folder}/**/*.parquet', hive_partitioning={query == 'q10'}, hive_types_autocast=false)"
        if query == "q12":
            return self._rows(f"SELECT bidder, sum(bid_count)::BIGINT FROM {files} GROUP BY bidder")
        if query not in KEYS:
            return self._rows(f"SELECT * FROM {files}")
        number = f"row_number() OVER (PARTITION BY {KEYS[query]} ORDER BY batch DESC)"
        last = f"SELECT *, {number} AS last_n FROM {files}"
        return self._rows(f"SELECT * EXCLUDE (batch, deleted, last_n) FROM ({last}) WHERE last_n = 1 AND NOT deleted")

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return sorted(self.connection.execute(sql).fetchall())
