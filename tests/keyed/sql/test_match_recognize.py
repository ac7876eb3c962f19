# ruff: noqa: E501 - statements stand on one line
"""``MATCH_RECOGNIZE``: Flink's documented examples and cases of its ``MatchRecognizeITCase``, with Flink's results.

A loop without ``WITHIN`` is refused here, so that those have ``WITHIN INTERVAL '1' DAY``, which changes no result.
`match_recognize.json` has them: prices a second or a ``step`` apart, names or rows, the clause, and the matches.
"""

import datetime as dt
from decimal import Decimal

import pytest

from keyed import sql
from keyed.errors import CheckpointError
from tests.support.data_files import read_data

START = dt.datetime(2026, 1, 1, 10)
SECOND = dt.timedelta(seconds=1)
CASES = read_data("keyed/sql/match_recognize.json")
TICKER = "CREATE STREAM ticker (symbol STRING, price BIGINT, tax BIGINT, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"
EVENTS = (
    "CREATE STREAM events (id INT, name STRING, note STRING, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"
)
NUMBERS = "CREATE STREAM numbers (id INT, name STRING, price INT, rate DOUBLE, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"


STREAMS = {"ticker": TICKER, "events": EVENTS, "numbers": NUMBERS}


def ticker(*rows, step=1):
    """Rows of one stock, from prices or pairs of price and tax."""
    pairs = [row if isinstance(row, list) else (row, 1) for row in rows]
    return [{"symbol": "XYZ", "price": p, "tax": t, "ts": START + n * step * SECOND} for n, (p, t) in enumerate(pairs)]


def rows_of(case):
    """The rows of a case: those with names have ids from 1, and are a second apart or at given seconds."""
    if "prices" in case:
        return ticker(*case["prices"], step=case.get("step", 1))
    if "names" in case:
        cells = [{"name": name, "note": None} for name in case["names"]]
    else:
        cells = [dict(zip(("name", "price", "rate"), row, strict=True)) for row in case["rows"]]
    seconds = case.get("seconds", range(1, len(cells) + 1))
    return [{"id": n, **row, "ts": START + seconds[n - 1] * SECOND} for n, row in enumerate(cells, 1)]


def matches(declared, rows, clause, select="*", rows_per_batch=10_000, **options):
    """Return the key and the values of each match."""
    source = declared.split()[2]
    text = (
        f"{declared} CREATE STREAM found AS SELECT {select} FROM {source} MATCH_RECOGNIZE ({clause}) AS t EMIT CHANGES;"
    )
    found = sql.script(text, {source: rows}, rows_per_batch=rows_per_batch, **{"drain": True, **options})
    return [(each.key, *(each.value or {}).values()) for each in found["found"]]


@pytest.mark.parametrize("rows_per_batch", [1, 2, 10_000])
@pytest.mark.parametrize("name", CASES["patterns"])
def test_a_pattern_finds_the_matches_of_flink_however_batches_are_cut(name, rows_per_batch):
    case = CASES["patterns"][name]
    found = matches(STREAMS[case["stream"]], rows_of(case), " ".join(case["clause"]), rows_per_batch=rows_per_batch)
    assert list(map(list, found)) == case["matches"]


@pytest.mark.parametrize(("condition", "expected"), CASES["conditions"])
def test_conditions_on_matched_rows_are_comparisons_and_arithmetic_with_three_values(condition, expected):
    clause = (
        f"PARTITION BY symbol ORDER BY ts MEASURES A.price AS a, B.price AS b PATTERN (A B) DEFINE B AS {condition}"
    )
    found = matches(TICKER, ticker([1, None], [3, None], [9, None], [4, None]), clause, "a, b, symbol")
    assert found == [("XYZ", *pair) for pair in expected]


#: Cases whose rows and results further tests use.
PAST_LAST_ROW, TO_NEXT_ROW = (CASES["patterns"][name] for name in ("past last row", "to next row"))
PRICES = rows_of(TO_NEXT_ROW)
CLAUSE = " ".join(TO_NEXT_ROW["clause"])


def test_measures_have_the_types_of_their_expressions():
    declared = "CREATE STREAM s (k INT, d DECIMAL(6, 2), at TIME, on_day DATE, x DOUBLE) WITH (FORMAT = 'JSON');"
    rows = [
        {"k": 1, "d": d, "at": dt.time(12, n), "on_day": dt.date(2026, 1, n + 1), "x": x, "ROWTIME": n}
        for n, (d, x) in enumerate([(Decimal("1.50"), 1.0), (Decimal("2.25"), float("nan"))])
    ]
    clause = """PARTITION BY k ORDER BY ROWTIME MEASURES SUM(d) AS total, AVG(d) AS mean, FIRST(A.at) AS first_at, A.d + B.d AS added,
        B.on_day AS on_day, MATCH_ROWTIME() AS ended, MAX(x) AS most PATTERN (A B)
        DEFINE B AS B.d > A.d AND B.at > A.at AND B.on_day > A.on_day AND B.x > A.x AND SUM(d) = 3.75"""
    text = (
        f"{declared} CREATE STREAM found AS SELECT * FROM s MATCH_RECOGNIZE ({clause}) WHERE mean > 1; DESCRIBE found;"
    )
    found = sql.script(text, {"s": rows}, drain=True)
    (record,) = found["found"]
    assert record.value["total"] == Decimal("3.75") == record.value["added"]
    assert (record.value["mean"], record.value["ended"], str(record.value["most"])) == (1.875, 1, "nan")
    types = {row["column"]: row["type"] for row in found.answers[0].rows}
    assert types["total"] == "DECIMAL(38, 2)"
    assert types["added"] == "DECIMAL(7, 2)"
    assert [types[each] for each in ("first_at", "on_day", "ended")] == ["TIME", "DATE", "TIMESTAMP"]


def test_matches_are_a_stream_that_is_filtered_grouped_and_read_by_other_queries():
    text = f"""{TICKER}
        CREATE TABLE counted AS SELECT m.symbol AS symbol, COUNT(*) AS n FROM ticker MATCH_RECOGNIZE ({CLAUSE}) m
            WHERE total > 20 GROUP BY m.symbol;
        CREATE STREAM sums AS SELECT * FROM ticker MATCH_RECOGNIZE ({CLAUSE}) WHERE total > 24;
        CREATE STREAM doubled AS SELECT symbol, total * 2 AS twice FROM sums;
        EXPLAIN sums;"""
    found = sql.script(text, {"ticker": PRICES}, drain=True)
    assert found.table("counted") == {"XYZ": {"n": 4}}
    assert [each.value["twice"] for each in found["doubled"]] == [52, 50]
    (line,) = [row["detail"] for row in found.answers[0].rows if row["step"] == "function"]
    assert "next A 1 to any times" in line


def test_a_restart_goes_on_within_a_match_and_refuses_another_pattern(tmp_path):
    clause = " ".join(PAST_LAST_ROW["clause"])
    found = [
        matches(TICKER, PRICES[:end], clause, checkpoint=tmp_path, drain=end == len(PRICES))
        for end in (2, 4, len(PRICES))
    ]
    assert [list(match) for part in found for match in part] == PAST_LAST_ROW["matches"]
    for other in (clause.replace("< 30", "< 40"), clause.replace("1' DAY", "2' DAY"), clause.replace("A+ C", "A+ B C")):
        matches(TICKER, PRICES[:4], clause, checkpoint=tmp_path / "other", drain=False)
        with pytest.raises(CheckpointError, match="found"):
            matches(TICKER, PRICES, other, checkpoint=tmp_path / "other", drain=False)


def test_a_late_row_is_counted_and_takes_no_part():
    rows = [*PRICES, {**PRICES[0], "price": 1}]
    text = f"{TICKER} CREATE STREAM found AS SELECT * FROM ticker MATCH_RECOGNIZE ({CLAUSE});"
    found = sql.script(text, {"ticker": rows}, rows_per_batch=1, drain=True)
    assert [each.value["total"] for each in found["found"]] == [26, 24, 25, 22, 17]
    assert sum(found.skipped["found"].values()) == 1


@pytest.mark.slow
def test_spark_finds_the_same_matches(spark):
    rows = [(each["symbol"], each["price"], each["tax"], each["ts"]) for each in PRICES]
    frame = spark.createDataFrame(rows, "symbol string, price bigint, tax bigint, ts timestamp_ntz").coalesce(1)
    assert list(map(list, matches(TICKER, frame, CLAUSE))) == TO_NEXT_ROW["matches"]
