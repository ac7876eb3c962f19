"""The Nexmark queries in Flink SQL and in Spark SQL, and the reasons of those that an engine cannot run.

Columns are those of the oracles, in their order. Where a query can be written in several ways it is the one that costs
that engine least.
"""

from __future__ import annotations

__all__ = ["FLINK", "FLINK_CANNOT", "FLINK_TABLES", "SPARK", "SPARK_CANNOT", "SPARK_MODES"]

#: Columns of the CSV files; times are milliseconds.
FLINK_TABLES = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, ms BIGINT, "
    "extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, ms BIGINT, "
    "expires_ms BIGINT, seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ms BIGINT, extra STRING",
}
_TIME = "CAST({0}`dateTime` AS TIMESTAMP(3))"
_T = _TIME.format("")
_EXPIRES = "CAST({0}expires AS TIMESTAMP(3))"
_WHOLE = f"auction, bidder, price, channel, url, {_T} AS `dateTime`, extra"
_ITEM = f"A.itemName, A.description, A.initialBid, A.reserve, {_TIME.format('A.')}, {_EXPIRES.format('A.')}, A.seller, "
_ITEM += "A.category, A.extra"
_RANGES = {"total": "TRUE", "rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000"}
_RANGES |= {"rank3": "price >= 1000000"}
_COUNTS = ", ".join(f"COUNT(*) FILTER (WHERE {range_}) AS {name}_bids" for name, range_ in _RANGES.items())
_DISTINCT = ", ".join(
    f"COUNT(DISTINCT {of}) FILTER (WHERE {range_}) AS {name}_{of}s"
    for of in ("bidder", "auction")
    for name, range_ in _RANGES.items()
)
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_HOPS = """
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
_TUMBLE = "TABLE(TUMBLE(TABLE {0}, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"
_IN_TIME = "A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires"
_CHANNELS = "('apple', 'google', 'facebook', 'baidu')"
_ID = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"

#: By query. The view `bid` has a column `proctime` too.
FLINK = {
    "q0": f"SELECT auction, bidder, price, {_T}, extra FROM bid",
    "q1": f"SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), {_T}, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""
        SELECT category, AVG(final) FROM (
            SELECT MAX(B.price) AS final, A.category FROM auction A JOIN bid B ON {_IN_TIME} GROUP BY A.id, A.category
        ) GROUP BY category""",
    "q5": f"""
        SELECT C.auction, C.num FROM ({_HOPS}) C JOIN (
            SELECT MAX(num) AS num, window_start, window_end FROM ({_HOPS}) GROUP BY window_start, window_end
        ) M ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num = M.num""",
    "q7": f"""
        SELECT B.auction, B.price, B.bidder, {_TIME.format("B.")}, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS price, window_time FROM {_TUMBLE.format("bid")}
            GROUP BY window_start, window_end, window_time
        ) M ON B.price = M.price
        AND B.`dateTime` BETWEEN M.window_time - INTERVAL '9.999' SECOND AND M.window_time + INTERVAL '0.001' SECOND""",
    "q8": f"""
        SELECT P.id, P.name, P.window_start FROM (
            SELECT id, name, window_start, window_end FROM {_TUMBLE.format("person")}
            GROUP BY id, name, window_start, window_end
        ) P JOIN (
            SELECT seller, window_start, window_end FROM {_TUMBLE.format("auction")}
            GROUP BY seller, window_start, window_end
        ) A ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, {_T}, {_EXPIRES.format("")}, seller, category, extra,
               auction, bidder, price, CAST(bid_time AS TIMESTAMP(3)), bid_extra FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.`dateTime` AS bid_time, B.extra AS bid_extra,
                   ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime`) AS n
            FROM auction A JOIN bid B ON {_IN_TIME}
        ) WHERE n <= 1""",
    "q11": """
        SELECT bidder, COUNT(*), window_start, window_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """
        SELECT bidder, COUNT(*), window_start, window_end
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(proctime), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q14": f"""
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)),
               CASE WHEN HOUR({_T}) BETWEEN 8 AND 18 THEN 'dayTime'
                    WHEN HOUR({_T}) <= 6 OR HOUR({_T}) >= 20 THEN 'nightTime' ELSE 'otherTime' END,
               {_T}, extra, CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS BIGINT)
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY}, {_COUNTS}, {_DISTINCT} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY}, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')), {_COUNTS}, {_DISTINCT}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""
        SELECT auction, {_DAY}, {_COUNTS}, MIN(price), MAX(price), AVG(price), SUM(price)
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": f"""
        SELECT {_WHOLE} FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS n FROM bid
        ) WHERE n <= 1""",
    "q19": f"""
        SELECT {_WHOLE}, n FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, `dateTime`) AS n FROM bid
        ) WHERE n <= 10""",
    "q20": f"""
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, {_TIME.format("B.")}, B.extra, {_ITEM}
        FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": f"""
        SELECT auction, bidder, price, channel,
               CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                    WHEN 'baidu' THEN '3' ELSE {_ID} END
        FROM bid WHERE {_ID} IS NOT NULL OR LOWER(channel) IN {_CHANNELS}""",
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),
               SPLIT_INDEX(url, '/', 5) FROM bid""",
    "q23": f"""
        SELECT B.bidder, B.price, B.channel, B.url, B.extra, P.id, P.name, P.emailAddress, P.creditCard, P.city,
               P.state, P.extra, {_ITEM}
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}
FLINK_CANNOT = {
    "q6": "an OVER aggregate takes no rows that are updated",
    "q10": "not compared: it measures the sink",
    "q13": "the file connector cannot be looked up in",
}

_BID_TIME = "`dateTime`"
_SPARK_DAY = "date_format(`dateTime`, 'yyyy-MM-dd')"
_SPARK_COUNTS = ", ".join(f"count_if({range_}) AS {name}_bids" for name, range_ in _RANGES.items())
#: Names of the views: `person`, `auction` and `bid`, with a watermark of 4 s, and `static_side`.
SPARK = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": FLINK["q3"],
    "q5": """
        SELECT explode(hottest) AS auction, num FROM (
            SELECT max(num) AS num, max_by(auctions, num) AS hottest FROM (
                SELECT collect_list(auction) AS auctions, num, w FROM (
                    SELECT auction, count(*) AS num, window(`dateTime`, '10 seconds', '2 seconds') AS w
                    FROM bid GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
                ) GROUP BY num, w
            ) GROUP BY w
        )""",
    "q8": """
        SELECT P.id, P.name, P.w.start AS stime FROM (
            SELECT id, name, window(`dateTime`, '10 seconds') AS w FROM person
            GROUP BY id, name, window(`dateTime`, '10 seconds')
        ) P JOIN (
            SELECT seller, window(`dateTime`, '10 seconds') AS w FROM auction
            GROUP BY seller, window(`dateTime`, '10 seconds')
        ) A ON P.id = A.seller AND P.w = A.w""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
        FROM bid GROUP BY bidder, session_window(`dateTime`, '10 seconds')""",
    "q13": """
        SELECT auction, bidder, price, `dateTime`, value FROM bid JOIN static_side ON auction % 10000 = key""",
    "q14": """
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
               CASE WHEN hour(`dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
                    WHEN hour(`dateTime`) <= 6 OR hour(`dateTime`) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind,
               `dateTime`, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q17": f"""
        SELECT auction, {_SPARK_DAY} AS day, {_SPARK_COUNTS}, min(price) AS least, max(price) AS most,
               sum(price) div count(*) AS average, sum(price) AS total
        FROM bid GROUP BY auction, {_SPARK_DAY}""",
    "q18": """
        SELECT auction, bidder, last.price, last.channel, last.url, last.`dateTime`, last.extra FROM (
            SELECT auction, bidder, max_by(struct(price, channel, url, `dateTime`, extra), `dateTime`) AS last
            FROM bid GROUP BY bidder, auction
        )""",
    "q20": """
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime` AS bid_time, B.extra AS bid_extra,
               A.itemName, A.description, A.initialBid, A.reserve, A.`dateTime`, A.expires, A.seller, A.category,
               A.extra
        FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": r"""
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                   CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                        WHEN 'baidu' THEN '3'
                        ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
            FROM bid
        ) WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
               split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """
        SELECT B.bidder, B.price, B.channel, B.url, B.extra AS bid_extra, P.id AS person_id, P.name, P.emailAddress,
               P.creditCard, P.city, P.state, P.extra AS person_extra, A.itemName, A.description, A.initialBid,
               A.reserve, A.`dateTime`, A.expires, A.seller, A.category, A.extra
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}
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
