# ruff: noqa: E501 - statements stand on one line
"""``MATCH_RECOGNIZE``: Flink's documented examples and cases of its ``MatchRecognizeITCase``, with Flink's results.

A loop without ``WITHIN`` is refused here, so that those have ``WITHIN INTERVAL '1' DAY``, which changes no result.
"""

import datetime as dt
from decimal import Decimal

import attrs
import pytest

from keyed import sql
from keyed.errors import CheckpointError, SqlError

START = dt.datetime(2026, 1, 1, 10)
SECOND = dt.timedelta(seconds=1)
DAY = "WITHIN INTERVAL '1' DAY"
TICKER = "CREATE STREAM ticker (symbol STRING, price BIGINT, tax BIGINT, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"
EVENTS = (
    "CREATE STREAM events (id INT, name STRING, note STRING, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"
)
NUMBERS = "CREATE STREAM numbers (id INT, name STRING, price INT, rate DOUBLE, ts TIMESTAMP) WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"


def ticker(*rows, step=SECOND):
    """Rows of one stock, from prices or pairs of price and tax."""
    pairs = [row if isinstance(row, tuple) else (row, 1) for row in rows]
    return [{"symbol": "XYZ", "price": p, "tax": t, "ts": START + n * step} for n, (p, t) in enumerate(pairs)]


def events(names, *seconds):
    """Rows with ids from 1 and names, a second apart or at given seconds."""
    at = seconds or range(1, len(names) + 1)
    return [
        {"id": n, "name": name, "note": None, "ts": START + second * SECOND}
        for n, (name, second) in enumerate(zip(names, at, strict=True), 1)
    ]


def numbers(rows):
    return [
        {"id": n, "name": name, "price": price, "rate": rate, "ts": START + n * SECOND}
        for n, (name, price, rate) in enumerate(rows, 1)
    ]


def matches(declared, rows, clause, select="*", rows_per_batch=10_000, **options):
    """Return the key and the values of each match."""
    source = declared.split()[2]
    text = (
        f"{declared} CREATE STREAM found AS SELECT {select} FROM {source} MATCH_RECOGNIZE ({clause}) AS t EMIT CHANGES;"
    )
    found = sql.script(text, {source: rows}, rows_per_batch=rows_per_batch, **{"drain": True, **options})
    return [(each.key, *(each.value or {}).values()) for each in found["found"]]


def at(*seconds):
    return [int((START + second * SECOND).replace(tzinfo=dt.UTC).timestamp() * 1000) for second in seconds]


@attrs.frozen
class Case:
    declared: str
    rows: list
    clause: str
    expected: list


PRICES = ticker(7, 9, 10, 5, 10, 7, 14)
SKIPS = f"PARTITION BY symbol ORDER BY ts MEASURES SUM(A.price) AS total, FIRST(ts) AS since, LAST(ts) AS until ONE ROW PER MATCH {{}} PATTERN (A+ C) {DAY} DEFINE A AS SUM(A.price) < 30"
TO_NEXT = [
    ("XYZ", total, *at(first, last))
    for total, first, last in [(26, 0, 3), (24, 1, 4), (25, 2, 5), (22, 3, 6), (17, 4, 6)]
]
GREEDY = f"PARTITION BY symbol ORDER BY ts MEASURES C.price AS last_price ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A {{}} C) {DAY} DEFINE A AS A.price > 10, B AS B.price < 15, C AS C.price > 12"
ABC = "ORDER BY ts MEASURES A.id AS aid, B.id AS bid, C.id AS cid PATTERN (A B C) {} DEFINE A AS name = 'a', B AS name = 'b', C AS name = 'c'"

CASES = {
    # Two readings of one match: Flink's queue of complete matches decides. The results are those of Flink SQL 2.3.
    "of_two_readings_flinks_queue_has_one_in_front": Case(
        TICKER,
        ticker(3, 9, 12, 5, 7),
        f"PARTITION BY symbol ORDER BY ts MEASURES LAST(A.price) AS a, LAST(B.price) AS b, LAST(C.price) AS c AFTER MATCH SKIP TO NEXT ROW PATTERN (A+? B? C) {DAY} DEFINE B AS B.price > 8, C AS C.price < 8",
        [("XYZ", 12, None, 5), ("XYZ", 9, 12, 5), ("XYZ", 12, None, 5), ("XYZ", 5, None, 7)],
    ),
    # Flink's documentation, "Pattern Recognition".
    "price_v": Case(
        TICKER,
        ticker(12, 17, 19, 21, 25, 18, 15, 14, 24, 25, 19),
        f"""PARTITION BY symbol ORDER BY ts
            MEASURES START_ROW.ts AS start_ts, LAST(PRICE_DOWN.ts) AS bottom_ts, LAST(PRICE_UP.ts) AS end_ts
            ONE ROW PER MATCH AFTER MATCH SKIP TO LAST PRICE_UP
            PATTERN (START_ROW PRICE_DOWN+ PRICE_UP) {DAY}
            DEFINE PRICE_DOWN AS (LAST(PRICE_DOWN.price, 1) IS NULL AND PRICE_DOWN.price < START_ROW.price)
                OR PRICE_DOWN.price < LAST(PRICE_DOWN.price, 1), PRICE_UP AS PRICE_UP.price > LAST(PRICE_DOWN.price, 1)""",
        [("XYZ", *at(4, 7, 8))],
    ),
    "average": Case(
        TICKER,
        ticker(12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 30),
        f"""PARTITION BY symbol ORDER BY ts MEASURES FIRST(A.ts) AS start_ts, LAST(A.ts) AS end_ts, AVG(A.price) AS average
            ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ B) {DAY} DEFINE A AS AVG(A.price) < 15""",
        [("XYZ", *at(0, 3), 14.5), ("XYZ", *at(5, 10), 13.5)],
    ),
    "greedy": Case(TICKER, ticker(10, 11, 12, 13, 14, 16), GREEDY.format("B*"), [("XYZ", 16)]),
    "reluctant": Case(TICKER, ticker(10, 11, 12, 13, 14, 16), GREEDY.format("B*?"), [("XYZ", 13), ("XYZ", 16)]),
    # The documentation has 14, of two rows an hour apart; Flink itself finds 13, since WITHIN is exclusive.
    "time_constraint": Case(
        TICKER,
        ticker(20, 17, 18, 11, 14, 9, 15, 14, 24, 1, 19, step=1200 * SECOND),
        """PARTITION BY symbol ORDER BY ts MEASURES C.ts AS drop_ts, A.price - C.price AS difference ONE ROW PER MATCH
           AFTER MATCH SKIP PAST LAST ROW PATTERN (A B* C) WITHIN INTERVAL '1' HOUR
           DEFINE B AS B.price > A.price - 10, C AS C.price < A.price - 10""",
        [("XYZ", *at(9 * 1200), 13)],
    ),
    "output_mode": Case(
        TICKER,
        ticker(10, 12, 13, 11),
        f"""PARTITION BY symbol ORDER BY ts
            MEASURES FIRST(A.price) AS start_price, LAST(A.price) AS top_price, B.price AS last_price
            ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ B) {DAY}
            DEFINE A AS LAST(A.price, 1) IS NULL OR A.price > LAST(A.price, 1), B AS B.price < LAST(A.price)""",
        [("XYZ", 10, 13, 11)],
    ),
    "navigation": Case(
        TICKER,
        ticker(10, 15, 20, 31, 35),
        f"""PARTITION BY symbol ORDER BY ts MEASURES COUNT(B.price) AS n, SUM(price) AS total AFTER MATCH SKIP PAST LAST ROW
            PATTERN (A B+ C) {DAY} DEFINE A AS A.price >= 10,
            B AS B.price > A.price AND SUM(price) < 100 AND SUM(B.price) < 80""",
        [("XYZ", 3, 111)],
    ),
    "logical_offsets_of_the_page": Case(
        TICKER,
        ticker(10, 15, 20, 31, 35),
        f"""PARTITION BY symbol ORDER BY ts MEASURES COUNT(B.price) AS n AFTER MATCH SKIP PAST LAST ROW
            PATTERN (A B+ C) {DAY} DEFINE A AS A.price >= 10,
            B AS (LAST(B.price, 1) IS NULL OR B.price > LAST(B.price, 1))
                AND (LAST(B.price, 2) IS NULL OR B.price > 2 * LAST(B.price, 2))""",
        [("XYZ", 3)],
    ),
    "an_optional_variable": Case(
        TICKER,
        ticker(10, 15, 20, 10, 20),
        """PARTITION BY symbol ORDER BY ts MEASURES A.price AS a, B.price AS b, C.price AS c
           AFTER MATCH SKIP PAST LAST ROW PATTERN (A B? C) DEFINE B AS B.price < 20, C AS LAST(price, 1) < C.price AND C.price >= 20""",
        [("XYZ", 10, 15, 20), ("XYZ", 10, None, 20)],
    ),
    "past_last_row": Case(TICKER, PRICES, SKIPS.format("AFTER MATCH SKIP PAST LAST ROW"), [TO_NEXT[0], TO_NEXT[4]]),
    "to_next_row": Case(TICKER, PRICES, SKIPS.format("AFTER MATCH SKIP TO NEXT ROW"), TO_NEXT),
    "the_default_is_to_next_row": Case(TICKER, PRICES, SKIPS.format(""), TO_NEXT),
    "to_last": Case(TICKER, PRICES, SKIPS.format("AFTER MATCH SKIP TO LAST A"), [TO_NEXT[0], TO_NEXT[2], TO_NEXT[4]]),
    # MatchRecognizeITCase.
    "simple": Case(EVENTS, events("azbcdabch"), ABC.format(""), [(None, 6, 7, 8)]),
    "quoted_names": Case(
        EVENTS,
        events("azbcdabch"),
        """ORDER BY ts MEASURES `A"`.id AS aid, l.id AS bid PATTERN (`A"` l) DEFINE `A"` AS name = 'a', L AS name = 'b'""",
        [(None, 6, 7)],
    ),
    "a_minute": Case(
        EVENTS,
        events("zabcxabcz", 1, 2, 30, 60, 100, 101, 131, 162, 200),
        ABC.format("WITHIN INTERVAL '1' MINUTE"),
        [(None, 2, 3, 4)],
    ),
    "nulls": Case(
        EVENTS,
        events([*"abcd", None, *"abc", None]),
        """ORDER BY ts MEASURES A.id AS aid, A.note AS anote, LAST(B.note) AS bnote, C.id AS cid PATTERN (A B C)
           DEFINE A AS name = 'a' AND note IS NULL, B AS name = 'b' AND LAST(A.note) IS NULL, C AS name = 'c'""",
        [(None, 1, None, None, 3), (None, 6, None, None, 8)],
    ),
    "conditions_of_both": Case(
        EVENTS,
        events("abcdeabcf"),
        """ORDER BY ts MEASURES A.id AS aid, LAST(B.id) AS bid, C.id AS cid PATTERN (A B C)
           DEFINE A AS name = 'a' AND name LIKE '%a%' AND id > 0, B AS name = 'b' AND LAST(A.name, 2) IS NULL,
           C AS name = 'c' AND LAST(A.name) = 'a'""",
        [(None, 1, 2, 3), (None, 6, 7, 8)],
    ),
    "logical_offsets": Case(
        TICKER,
        ticker((19, 1), (17, 2), (13, 3), (20, 4), (20, 5), (26, 6), (20, 7), (25, 8)),
        f"""ORDER BY ts MEASURES FIRST(DOWN.tax) AS a, LAST(DOWN.tax) AS b, UP.tax AS c,
            FIRST(DOWN.price + DOWN.tax + 1) AS bottom, UP.price + UP.tax AS total
            ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN{{2,}} UP) {DAY}
            DEFINE DOWN AS price < LAST(DOWN.price, 1) OR LAST(DOWN.price, 1) IS NULL, UP AS price < FIRST(DOWN.price)""",
        [(None, 6, 7, 8, 33, 33)],
    ),
    "offsets_of_all_variables": Case(
        TICKER,
        ticker((20, 1), (19, 2), (18, 3), (17, 4), (16, 5), (15, 6), (14, 7), (20, 8)),
        f"""ORDER BY ts MEASURES {", ".join(f"FIRST(tax, {n}) AS f{n}, LAST(tax, {n}) AS l{n}" for n in range(9))}
            AFTER MATCH SKIP PAST LAST ROW PATTERN (`DOWN"`{{2,}} UP) {DAY}
            DEFINE `DOWN"` AS price < LAST(price, 1) OR LAST(price, 1) IS NULL,
            UP AS price = FIRST(price) AND price > FIRST(price, 3) AND price = LAST(price, 7)""",
        [(None, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4, 6, 3, 7, 2, 8, 1, None, None)],
    ),
    "an_offset_outside_of_the_match": Case(
        TICKER,
        ticker(19, 17, 13, 20),
        f"""ORDER BY ts MEASURES FIRST(DOWN.price) AS a, LAST(DOWN.price) AS b, FIRST(DOWN.price, 5) AS c
            AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN{{2,}} UP) {DAY}
            DEFINE DOWN AS price < LAST(DOWN.price, 1) OR LAST(DOWN.price, 1) IS NULL, UP AS price > LAST(DOWN.price)""",
        [(None, 19, 13, None)],
    ),
    "aggregates": Case(
        NUMBERS,
        numbers(
            zip("azbcdabchhhh", [1, 2, 1, 1, 4, 2, 2, 1, 4, 4, 2, 2], [0.8] * 4 + [0.1, 1.5] + [0.8] * 6, strict=True)
        ),
        f"""ORDER BY ts MEASURES FIRST(id) AS first_id, SUM(A.price) AS a, COUNT(D.price) AS d, SUM(D.price) AS sum_d,
            AVG(B.price) AS avg_b, ROUND(SUM(B.price * B.rate), 9) AS rated, LAST(id) AS last_id
            AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ B+ C D? E) {DAY}
            DEFINE A AS SUM(A.price) < 6, B AS SUM(B.price * B.rate) < SUM(A.price) AND SUM(B.price * B.rate) > 0.2
                AND SUM(B.price) >= 1 AND AVG(B.price) >= 1""",
        [(None, 1, 5, 0, None, 3.0, 3.4, 8), (None, 9, 4, 0, None, 4.0, 3.2, 12)],
    ),
    "aggregates_of_nulls": Case(
        NUMBERS,
        numbers(zip("azbcdcccc", [10, 10, None, None, 3, 3, 3, 3, 2], [0.0] * 9, strict=True)),
        f"""ORDER BY ts MEASURES SUM(A.price) AS a, COUNT(A.id) AS ids, COUNT(A.price) AS prices, COUNT(*) AS rows_,
            COUNT(price) AS all_prices, LAST(id) AS last_id AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ C) {DAY}
            DEFINE A AS SUM(A.price) < 30, C AS C.name = 'c'""",
        [(None, 29, 7, 5, 8, 6, 8)],
    ),
    # Beyond Flink SQL.
    "previous_rows": Case(
        TICKER,
        ticker(1, 2, 4, 3, 8, 2),
        "PARTITION BY symbol ORDER BY ts MEASURES A.price AS price, PREV(A.price) AS p, PREV(A.price, 3) AS p3 PATTERN (A) DEFINE A AS price > PREV(price) + PREV(price, 2)",
        [("XYZ", 4, 2, None), ("XYZ", 8, 3, 2)],
    ),
}


@pytest.mark.parametrize("rows_per_batch", [1, 2, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_a_pattern_finds_the_matches_of_flink_however_batches_are_cut(name, rows_per_batch):
    case = CASES[name]
    assert matches(case.declared, case.rows, case.clause, rows_per_batch=rows_per_batch) == case.expected


PAIRS = "PARTITION BY symbol ORDER BY ts MEASURES A.price AS a, B.price AS b PATTERN (A B) DEFINE B AS {}"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("B.price - A.price > 1", [(1, 3), (3, 9)]),
        ("NOT (B.price - A.price > 1)", [(9, 4)]),
        ("B.price > A.price OR A.tax IS NULL", [(1, 3), (3, 9), (9, 4)]),
        ("A.tax = 1 AND B.price > A.price", []),
        ("NOT (A.tax = 1 AND B.price > A.price)", [(9, 4)]),
        ("B.price BETWEEN A.price + 1 AND A.price + 4", [(1, 3)]),
        ("B.price NOT BETWEEN A.price + 1 AND A.price + 4 AND TRUE", [(3, 9), (9, 4)]),
        ("A.price * 0.5 >= 1.5 AND A.price / 2 < 4", [(3, 9)]),
        ("B.price / (A.price - 3) > 1e300", [(3, 9)]),
        ("abs(price) > LAST(abs(A.price))", [(1, 3), (3, 9)]),
        ("CASE WHEN price > 3 THEN 1 ELSE 2 END = A.price", [(9, 4)][:0]),
        ("symbol = A.symbol AND upper(symbol) || '!' = 'XYZ!' AND MAX(price) = 9", [(3, 9), (9, 4)]),
        (
            "epoch_ms(ts) - LAST(epoch_ms(A.ts)) <= 1000 AND B.ts > A.ts AND MIN(A.ts) < ts AND ROWTIME > A.ROWTIME",
            [(1, 3), (3, 9), (9, 4)],
        ),
    ],
)
def test_conditions_on_matched_rows_are_comparisons_and_arithmetic_with_three_values(condition, expected):
    rows = ticker((1, None), (3, None), (9, None), (4, None))
    assert matches(TICKER, rows, PAIRS.format(condition), "a, b, symbol") == [("XYZ", *pair) for pair in expected]


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
    clause = SKIPS.format("AFTER MATCH SKIP TO NEXT ROW")
    text = f"""{TICKER}
        CREATE TABLE counted AS SELECT m.symbol AS symbol, COUNT(*) AS n FROM ticker MATCH_RECOGNIZE ({clause}) m
            WHERE total > 20 GROUP BY m.symbol;
        CREATE STREAM sums AS SELECT * FROM ticker MATCH_RECOGNIZE ({clause}) WHERE total > 24;
        CREATE STREAM doubled AS SELECT symbol, total * 2 AS twice FROM sums;
        EXPLAIN sums;"""
    found = sql.script(text, {"ticker": PRICES}, drain=True)
    assert found.table("counted") == {"XYZ": {"n": 4}}
    assert [each.value["twice"] for each in found["doubled"]] == [52, 50]
    (line,) = [row["detail"] for row in found.answers[0].rows if row["step"] == "function"]
    assert "next A 1 to any times" in line


def test_a_restart_goes_on_within_a_match_and_refuses_another_pattern(tmp_path):
    clause = SKIPS.format("AFTER MATCH SKIP PAST LAST ROW")
    found = [
        matches(TICKER, PRICES[:end], clause, checkpoint=tmp_path, drain=end == len(PRICES))
        for end in (2, 4, len(PRICES))
    ]
    assert [match for part in found for match in part] == [TO_NEXT[0], TO_NEXT[4]]
    for other in (clause.replace("< 30", "< 40"), clause.replace("1' DAY", "2' DAY"), clause.replace("A+ C", "A+ B C")):
        matches(TICKER, PRICES[:4], clause, checkpoint=tmp_path / "other", drain=False)
        with pytest.raises(CheckpointError, match="found"):
            matches(TICKER, PRICES, other, checkpoint=tmp_path / "other", drain=False)


def test_a_late_row_is_counted_and_takes_no_part():
    rows = [*PRICES, {**PRICES[0], "price": 1}]
    text = f"{TICKER} CREATE STREAM found AS SELECT * FROM ticker MATCH_RECOGNIZE ({SKIPS.format('')});"
    found = sql.script(text, {"ticker": rows}, rows_per_batch=1, drain=True)
    assert [each.value["total"] for each in found["found"]] == [26, 24, 25, 22, 17]
    assert sum(found.skipped["found"].values()) == 1


@pytest.mark.parametrize(
    ("clause", "place", "message"),
    [
        ("PATTERN (A | B)", 12, "PATTERN has variables one after the other"),
        ("PATTERN (A (B C)+)", 12, "PATTERN has variables one after the other"),
        ("PATTERN (PERMUTE(A, B))", 10, "PATTERN has variables one after the other"),
        ("PATTERN ({- A -} B)", 10, "PATTERN has variables one after the other"),
        ("PATTERN ()", 10, "PATTERN has variables one after the other"),
        ("PATTERN (A A)", 12, "two steps of the pattern have the name 'A'"),
        ("PATTERN (A?? B)", 10, "write A?"),
        ("PATTERN (A B+) WITHIN INTERVAL '1' DAY", 12, "does not end with a greedy quantifier"),
        ("PATTERN (A* B*) WITHIN INTERVAL '1' DAY", 1, "may match no row at all"),
        ("PATTERN (A B* C)", 12, "WITHIN INTERVAL '10' MINUTE"),
        ("PATTERN (A{3,2} B)", 10, "in order"),
        ("PATTERN (A B* C? D) WITHIN INTERVAL '1' DAY", 15, "the step before it, 'B', is greedy"),
        ("ALL ROWS PER MATCH PATTERN (A)", 1, "ALL ROWS PER MATCH is not supported; write ONE ROW PER MATCH"),
        ("AFTER MATCH SKIP TO FIRST A PATTERN (A B)", 29, "finds the same match again"),
        ("AFTER MATCH SKIP TO LAST X PATTERN (A B)", 39, "the pattern has no such step"),
        ("AFTER MATCH SKIP THERE PATTERN (A B)", 1, "or AFTER MATCH SKIP and PAST LAST ROW"),
        ("PATTERN (A B) SUBSET U = (A, B)", 15, "SUBSET is not supported"),
        ("PATTERN (A B) DEFINE C AS price > 1", 22, "DEFINE has one condition of each of A, B, and not C"),
        ("PATTERN (A B) DEFINE A AS price > 1, A AS price > 2", 38, "and not A"),
        ("PATTERN (A B) DEFINE A AS price", 27, "DEFINE takes a condition, and this is of type BIGINT"),
        ("PATTERN (A B) DEFINE A AS prce > 1", 27, "unknown column prce; did you mean price"),
        ("PATTERN (A B) DEFINE A AS A.prce > 1", 29, "A has no column prce; did you mean price"),
        ("PATTERN (A B) DEFINE B AS sqrt(A.price) > 1", 27, r"sqrt of BIGINT is not supported .* with LAST\(function"),
        ("PATTERN (A B) DEFINE B AS price > 1 AND A.symbol LIKE 'x%'", 50, "is not supported"),
        ("PATTERN (A B) DEFINE B AS A.symbol > 'x' AND A.ts > '2026-01-01'", 46, "greaterthan of TIMESTAMP, STRING"),
        ("PATTERN (A B) DEFINE B AS SUM(A.price + B.price) > 1", 27, "one row of one variable"),
        ("PATTERN (A B) DEFINE B AS SUM(LAST(price)) > 1", 27, "one row of one variable"),
        ("PATTERN (A B) DEFINE B AS SUM(DISTINCT price) > 1", 31, "DISTINCT"),
        ("PATTERN (A B) DEFINE B AS SUM(symbol) > 1", 27, "has no SUM of the type STRING"),
        ("PATTERN (A B) DEFINE B AS COLLECT_LIST(price)[1] > 1", 27, "has no COLLECT_LIST"),
        ("PATTERN (A B) DEFINE B AS LAST(A.price, B.price) > 1", 27, "whole number"),
        ("PATTERN (A B) DEFINE B AS NEXT(A.price) > 1", 27, "unknown function next"),
        ("PATTERN (A B) DEFINE B AS CLASSIFIER() = 'A'", 27, "unknown function classifier"),
    ],
)
def test_what_flink_or_the_standard_lacks_is_refused_at_its_place(clause, place, message):
    text = f"{TICKER} CREATE STREAM m AS SELECT * FROM ticker MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES A.price AS p\n{clause});"
    with pytest.raises(SqlError, match=message) as error:
        sql.script(text, {"ticker": []})
    assert (error.value.line, error.value.column) == (2, place)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ticker MATCH_RECOGNIZE (ORDER BY price MEASURES A.price AS p PATTERN (A))", "the event time of ticker is ts"),
        ("ticker MATCH_RECOGNIZE (ORDER BY ts DESC MEASURES A.price AS p PATTERN (A))", "in ascending order"),
        ("ticker MATCH_RECOGNIZE (ORDER BY ts, price MEASURES A.price AS p PATTERN (A))", "in ascending order"),
        ("ticker MATCH_RECOGNIZE (PARTITION BY price + 1 ORDER BY ts MEASURES A.price AS p PATTERN (A))", "by columns"),
        ("ticker MATCH_RECOGNIZE (ORDER BY ts MEASURES A.price PATTERN (A))", "a name of its own"),
        ("ticker MATCH_RECOGNIZE (ORDER BY ts MEASURES A.price AS p, A.tax AS P PATTERN (A))", "a name of its own"),
        ("ticker MATCH_RECOGNIZE (ORDER BY ts MEASURES A.prise AS p PATTERN (A))", "did you mean price"),
        ("people MATCH_RECOGNIZE (ORDER BY ROWTIME MEASURES A.name AS p PATTERN (A))", "people is a table"),
    ],
)
def test_sources_orders_and_measures_that_do_not_fit_are_refused(source, message):
    text = f"{TICKER} CREATE TABLE people (id INT PRIMARY KEY, name STRING) WITH (FORMAT = 'JSON'); CREATE STREAM m AS SELECT * FROM {source};"
    with pytest.raises(SqlError, match=message):
        sql.script(text, {"ticker": []})


@pytest.mark.slow
def test_spark_finds_the_same_matches(spark):
    clause = SKIPS.format("AFTER MATCH SKIP TO NEXT ROW")
    rows = [(each["symbol"], each["price"], each["tax"], each["ts"]) for each in PRICES]
    frame = spark.createDataFrame(rows, "symbol string, price bigint, tax bigint, ts timestamp_ntz").coalesce(1)
    assert matches(TICKER, frame, clause) == TO_NEXT
