"""The Nexmark queries in DuckDB's SQL, over the views `person`, `auction`, `bid` and `side_input`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

#: The winning bid of each auction.
_WINNERS = """
    SELECT * FROM (
        SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
               row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.place) AS n
        FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    ) WHERE n = 1
"""
_RANGES = {"total": "true", "rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000"}
_RANGES |= {"rank3": "price >= 1000000"}
_COUNTS = ", ".join(f"count(*) FILTER ({range_}) AS {name}_bids" for name, range_ in _RANGES.items())
_DISTINCT = ", ".join(
    f"count(DISTINCT {of}) FILTER ({range_}) AS {name}_{of}s"
    for of in ("bidder", "auction")
    for name, range_ in _RANGES.items()
)
_DAY = "strftime(dateTime, '%Y-%m-%d')"
_WINDOW = "time_bucket(INTERVAL 10 SECOND, dateTime)"
_ITEM = "a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller, "
_ITEM += "a.category, a.extra AS auction_extra"

ORACLES = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, (price * 0.908)::DECIMAL(23, 3) AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category AS id, sum(price)::BIGINT // count(*) AS final FROM ({_WINNERS}) GROUP BY category",
    "q5": """
        WITH counts AS (
            SELECT auction, count(*) AS num, start FROM (
                SELECT auction, unnest([
                    time_bucket(INTERVAL 2 SECOND, dateTime) - i * INTERVAL 2 SECOND FOR i IN range(5)
                ]) AS start FROM bid
            ) GROUP BY auction, start
        ) SELECT auction, num FROM counts c WHERE num = (SELECT max(num) FROM counts d WHERE d.start = c.start)""",
    "q6": f"""
        SELECT seller, id, (sum(price) OVER w)::BIGINT // count(*) OVER w AS avg_price FROM ({_WINNERS})
        WINDOW w AS (PARTITION BY seller ORDER BY bid_dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)""",
    "q7": f"""
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
        FROM bid b JOIN (SELECT max(price) AS price, {_WINDOW} AS start FROM bid GROUP BY start) m
        ON b.price = m.price AND b.dateTime BETWEEN m.start AND m.start + INTERVAL 10 SECOND""",
    "q8": f"""
        SELECT DISTINCT p.id, p.name, p.stime
        FROM (SELECT *, {_WINDOW} AS stime FROM person) p JOIN (SELECT *, {_WINDOW} AS stime FROM auction) a
        ON p.id = a.seller AND p.stime = a.stime""",
    "q9": f"SELECT * EXCLUDE (n, place) FROM ({_WINNERS})",
    "q10": """
        SELECT auction, bidder, price, dateTime, extra,
               strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm FROM bid""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
               max(dateTime) + INTERVAL 10 SECOND AS endtime
        FROM (
            SELECT *, sum(is_new::INT) OVER (PARTITION BY bidder ORDER BY dateTime, place) AS session FROM (
                SELECT *, dateTime > lag(dateTime, 1, '-infinity'::TIMESTAMP) OVER (
                    PARTITION BY bidder ORDER BY dateTime, place) + INTERVAL 10 SECOND AS is_new
                FROM bid
            )
        ) GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, dateTime, s.value FROM bid JOIN side_input s ON auction % 10000 = s.key""",
    "q14": """
        SELECT auction, bidder, (price * 0.908)::DECIMAL(23, 3) AS price,
               CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                    WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END
                   AS bidTimeType,
               dateTime, extra, len(extra) - len(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE price * 0.908 > 1000000 AND price * 0.908 < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_COUNTS}, {_DISTINCT} FROM bid GROUP BY day",
    "q16": f"""
        SELECT channel, {_DAY} AS day, max(strftime(dateTime, '%H:%M')) AS minute, {_COUNTS}, {_DISTINCT}
        FROM bid GROUP BY channel, day""",
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_COUNTS}, min(price) AS min_price, max(price) AS max_price,
               sum(price)::BIGINT // count(*) AS avg_price, sum(price)::BIGINT AS sum_price
        FROM bid GROUP BY auction, day""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, place DESC) AS n FROM bid
        ) WHERE n = 1""",
    "q19": """
        SELECT auction, bidder, price, channel, url, dateTime, extra, n AS rank_number FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, place) AS n FROM bid
        ) WHERE n <= 10""",
    "q20": f"""
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra, {_ITEM}
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": r"""
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                   CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                   WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END
                       AS channel_id
            FROM bid
        ) WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
               split_part(url, '/', 6) AS dir3
        FROM bid""",
    "q23": f"""
        SELECT b.bidder, b.price, b.channel, b.url, b.extra AS bid_extra, p.id AS person_id, p.name, p.emailAddress,
               p.creditCard, p.city, p.state, p.extra AS person_extra, {_ITEM}
        FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder""",
}
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
