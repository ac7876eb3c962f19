"""The hash of keys: Spark's numbers, in Python."""

import datetime as dt
import math
from decimal import Decimal
from functools import reduce
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.key_hash import encoded_key_hash, group_of, key_hash, spark_hash_expression
from keyed.codec.keys import decode_key, encode_key
from keyed.errors import CorruptionError, EncodingError
from keyed.rows import row
from tests.keyed.codec.support import KEYS

UTC = dt.UTC

# Spark type, value, and what Spark 4.3.0 gives for `spark_hash_expression` of it.
KNOWN: list[tuple[str, Any, int]] = [
    ("tinyint", -1, 3858142552250413010),
    ("tinyint", None, 42),
    ("smallint", -32768, -6137856927263092174),
    ("int", 2**31 - 1, 3305624883719161019),
    ("bigint", 0, -5252525462095825812),
    ("bigint", 5, 6251837290343458373),
    ("bigint", 2**63 - 1, -3246596055638297850),
    ("bigint", -(2**63), -8619748838626508300),
    ("float", 1.5, 7738255526519901366),
    ("float", math.nan, -3127944061524951246),
    ("double", 0.1, -4684694357984311926),
    ("double", -0.0, -5252525462095825812),
    ("double", math.nan, -3127944061524951246),
    ("double", -math.inf, 5326262080505358431),
    ("boolean", True, -6698625589789238999),
    ("boolean", False, 3614696996920510707),
    ("string", "", -7444071767201028348),
    ("string", "JFK", 5255761036782674168),
    ("string", "Zürich 日本", -3742685392142980921),
    ("string", "x" * 31, -1716462135722163746),
    ("string", "x" * 32, 1299777543150008824),
    ("string", "a\0b", -7028150433230623758),
    ("string collate UTF8_LCASE", "AbC", 8691960349093287633),
    ("binary", b"\xff\0", 7330825074997746532),
    ("date", dt.date(1, 1, 1), 6773727150484150602),
    ("date", dt.date(2024, 2, 29), 4183429117450946631),
    ("timestamp", dt.datetime(1970, 1, 1, tzinfo=UTC), -5252525462095825812),
    ("timestamp", dt.datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 2175902272871335541),
    ("interval day to second", dt.timedelta(days=-1, microseconds=1), -7709105386179979520),
    ("interval hour", dt.timedelta(hours=5), -4046135109051420118),
    ("decimal(10,2)", Decimal("1.50"), 3258831802764358886),
    ("decimal(10,2)", Decimal("-12345678.90"), 6951929642976776743),
    ("decimal(10,2)", Decimal("100.00"), -1920172158692255954),
    ("decimal(38,18)", Decimal("0E-18"), -6091425354261976140),
    ("decimal(38,18)", Decimal("1E-18"), -168372344152605561),
    ("decimal(38,0)", Decimal(10) ** 37, -339130334664860175),
    ("decimal(38,38)", Decimal("1E-38"), -2891014675221726548),
]


@pytest.mark.parametrize(("type_", "value", "hashed"), KNOWN, ids=str)
def test_a_key_hashes_as_in_spark(type_, value, hashed):
    assert key_hash(value) == hashed
    assert key_hash((value,)) == hashed


def test_a_tuple_is_the_chain_of_its_elements():
    assert key_hash(("JFK", 5, None, Decimal("1.1"))) == -7091408586051690109
    assert key_hash((("JFK", 5), (None, Decimal("1.1")))) == -7091408586051690109
    assert key_hash(row(a="JFK", b=5)) == key_hash(("JFK", 5))
    assert key_hash(()) == key_hash(None) == 42


@given(KEYS)
def test_the_hash_does_not_need_the_key_as_it_was(key):
    assert key_hash(decode_key(encode_key(key))) == key_hash(key)
    assert -(2**63) <= key_hash(key) < 2**63


def test_values_that_spark_does_not_have_are_hashed_too():
    values = [
        2**63,
        -(2**70),
        UUID(int=1),
        dt.timedelta.max,
        Decimal("Infinity"),
        Decimal("1E+1000"),
        Decimal("1E-1000"),
    ]
    assert len({key_hash(value) for value in values}) == len(values)


NOTHING: Any = ()
DEEP = reduce(lambda inner, _: (inner,), range(40), NOTHING)


@pytest.mark.parametrize("key", [[1], dt.datetime(2024, 1, 1), "\ud800", Decimal("NaN"), object(), (1, [2]), DEEP])
def test_what_cannot_be_a_key_is_refused_as_by_the_encoding(key):
    with pytest.raises(EncodingError) as hashing:
        key_hash(key)
    with pytest.raises(EncodingError) as encoding:
        encode_key(key)
    assert str(hashing.value) == str(encoding.value)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 1000))
def test_a_group_is_one_of_the_parallelism(hashed, parallelism):
    assert 0 <= group_of(hashed, parallelism) < parallelism


def test_groups_are_as_documented_and_even():
    assert [group_of(hashed, 7) for hashed in (0, 1 << 33, 15 << 33, -1, -(2**63))] == [
        0,
        1,
        1,
        (2**31 - 1) % 7,
        2**30 % 7,
    ]
    counts = [0] * 8
    for number in range(8000):
        counts[group_of(key_hash(number), 8)] += 1
    assert min(counts) > 900


def test_the_expression_normalises_each_column():
    columns = [(type_, type_) for type_ in dict.fromkeys(type_ for type_, _, _ in KNOWN)]
    assert spark_hash_expression(columns) == (
        "xxhash64(CAST(`tinyint` AS BIGINT), CAST(`smallint` AS BIGINT), CAST(`int` AS BIGINT), "
        "CAST(`bigint` AS BIGINT), CAST(`float` AS DOUBLE), CAST(`double` AS DOUBLE), `boolean`, "
        "CAST(`string` AS BINARY), CAST(`string collate UTF8_LCASE` AS BINARY), `binary`, `date`, `timestamp`, "
        "CAST(`interval day to second` AS INTERVAL DAY TO SECOND), CAST(`interval hour` AS INTERVAL DAY TO SECOND), "
        "format_number(`decimal(10,2)`, '0.##'), format_number(`decimal(38,18)`, '0.##################'), "
        "format_number(`decimal(38,0)`, '0'), "
        "format_number(`decimal(38,38)`, '0.######################################'))"
    )
    assert spark_hash_expression([("a`b.c", "int")]) == "xxhash64(CAST(`a``b.c` AS BIGINT))"


@pytest.mark.parametrize(
    ("type_", "remedy"),
    [
        ("struct<a:int>", "name its fields"),
        ("array<int>", "computed"),
        ("map<string,int>", "computed"),
        ("variant", "computed"),
        ("timestamp_ntz", "AS TIMESTAMP"),
        ("interval year to month", "AS STRING"),
        ("void", "AS STRING"),
        ("time(6)", "AS STRING"),
    ],
)
def test_columns_that_cannot_be_keys_are_refused_with_a_remedy(type_, remedy):
    with pytest.raises(EncodingError, match=f"the column 'c' of type .*{remedy}"):
        spark_hash_expression([("c", type_)])


def test_no_column_is_refused():
    with pytest.raises(EncodingError, match="at least one column"):
        spark_hash_expression([])


@pytest.mark.smoke
def test_spark_gives_the_same_hashes_and_groups(spark):
    from pyspark.sql import functions

    # One row with a column per known value, and four more columns that are one key together.
    several = ("JFK", 5, None, Decimal("1.10"))
    bases = [type_.partition(" collate ")[0] for type_, _, _ in KNOWN]
    ddl = ", ".join(f"c{i} {base}" for i, base in enumerate(bases))
    frame = spark.createDataFrame(
        [(*(value for _, value, _ in KNOWN), *several)],
        f"{ddl}, `a``b` string, `b.c` smallint, d double, e decimal(5,2)",
    )
    for i, (type_, _, _) in enumerate(KNOWN):
        if " collate " in type_:
            frame = frame.withColumn(f"c{i}", functions.expr(f"c{i} collate {type_.partition(' collate ')[2]}"))
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    keys = [[f"c{i}"] for i in range(len(KNOWN))] + [["a`b", "b.c", "d", "e"]]
    hashes = [spark_hash_expression([(name, types[name]) for name in names]) for names in keys]
    groups = [f"CAST(shiftrightunsigned({hashed}, 33) % 7 AS INT)" for hashed in hashes]
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            found = list(frame.selectExpr(*hashes, *groups).first())
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
        expected = [hashed for _, _, hashed in KNOWN] + [key_hash(several)]
        assert found == expected + [group_of(hashed, 7) for hashed in expected]


@given(KEYS, st.binary(max_size=4), st.binary(max_size=4))
def test_an_encoded_key_has_the_hash_of_the_key(key, before, after):
    assert encoded_key_hash(before + encode_key(key) + after, len(before)) == key_hash(decode_key(encode_key(key)))


@pytest.mark.parametrize("data", [b"", b"\x40", b"\x40abc", b"\x40a\x01\x07\x00", b"\x99"])
def test_what_is_no_encoded_key_has_no_hash(data):
    with pytest.raises(CorruptionError):
        encoded_key_hash(data)
