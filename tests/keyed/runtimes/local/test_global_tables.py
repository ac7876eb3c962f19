"""Global tables in the local runtime: read before the first row, taken whole when they change, kept over restarts."""

import logging
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError, RowError, SourceError, StateDefinitionError
from keyed.job.global_tables import TableReader
from tests.keyed.runtimes.spark.functions import COUNTRIES, RATES, Convert, Limits
from tests.support.waiting import logged

PAYMENTS = [{"user": user, "currency": currency} for user in "abc" for currency in ("EUR", "USD")]


def rates(**of):
    return pa.table({"currency": list(of), "rate": list(map(float, of.values()))})


def converted(payments, *tables, **options):
    stream = keyed.stream(payments).key_by("user")
    for table in tables:
        stream = stream.connect(table)
    return stream.process(Convert(), name="convert", **options)


def table_of(source, **options):
    return keyed.global_table(source, RATES, key="currency", **{"every": 0, **options})


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", ["arrow", "pandas", "function", "folder"])
def test_every_row_sees_the_whole_table(tmp_path, kind, parallelism):
    table = rates(EUR=1, USD=2)
    pq.write_table(table, tmp_path / "rates.parquet")
    source = {"arrow": table, "pandas": table.to_pandas(), "function": lambda: table, "folder": tmp_path}[kind]
    found = converted(PAYMENTS, table_of(source), parallelism=parallelism).run(rows_per_batch=1)
    assert sorted(found.values) == [(user, rate, None) for user in "abc" for rate in (1.0, 2.0)]
    # A version is one element, counted once.
    assert found.metrics["convert"]["rows_in"] == 7


def test_a_changed_table_takes_the_place_of_the_old_one_at_once():
    versions = iter([rates(EUR=1, USD=2), rates(EUR=1, USD=2), rates(USD=3), rates(EUR=4, GBP=5)])
    last = [rates()]

    def load():
        last[0] = next(versions, last[0])
        return last[0]

    payments = [{"user": "a", "currency": currency} for currency in ("EUR", "USD") * 4]
    countries = keyed.global_table(pd.DataFrame({"code": ["a"], "name": ["Aruba"]}), COUNTRIES, key=("code", "name"))
    found = converted(payments, table_of(load), countries).run(rows_per_batch=2)
    aruba = {"code": "a", "name": "Aruba"}
    assert [value[1] for value in found.values] == [1.0, 2.0, 1.0, 2.0, None, 3.0, 4.0, None]
    assert {str(value[2]) for value in found.values} == {str(aruba)}
    # Three versions of the one table, one of the other.
    assert found.metrics["convert"]["rows_in"] == 8 + 4


def test_it_is_kept_over_restarts_and_restores(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    table = [rates(EUR=1, USD=2)]

    def run(count, checkpoint, **options):
        job = converted(PAYMENTS[:count], table_of(lambda: table[0]), **options)
        return job.run(checkpoint=tmp_path / checkpoint)

    first = run(2, "ck", parallelism=2, changelog=changelog)
    assert [value[1] for value in first.values] == [1.0, 2.0]
    again = run(4, "ck", parallelism=2, changelog=changelog)
    # What it has is not read into the state again.
    assert again.metrics["convert"]["rows_in"] == 2 + 1 + 2
    restored = run(5, "ck2", parallelism=3, restore_from=changelog)
    assert [value[1] for value in restored.values] == [1.0]
    assert restored.metrics["convert"]["rows_in"] == 6
    table[0] = rates(EUR=7)
    changed = run(6, "ck2", parallelism=3)
    assert [value[1] for value in changed.values] == [None]


def test_a_table_that_cannot_be_read_again_stays(caplog):
    calls = []

    def load():
        calls.append(1)
        if len(calls) > 1:
            raise OSError("the server is gone")
        return rates(EUR=1)

    with caplog.at_level(logging.WARNING):
        found = converted([{"user": "a", "currency": "EUR"}] * 3, table_of(load)).run(rows_per_batch=1)
    assert [value[1] for value in found.values] == [1.0] * 3
    assert "global table 'rates' cannot be read: the server is gone; the last version is kept" in caplog.text


def test_a_table_that_cannot_be_read_for_long_is_logged_twice(caplog):
    now, fails = [0.0], [False]

    def load():
        if fails[0]:
            raise OSError("the server is gone")
        return rates(EUR=1)

    reader = TableReader(table_of(load, every=10_000), lambda: now[0])
    for seconds in range(0, 86_400, 10):
        now[0], fails[0] = float(seconds), 0 < seconds < 86_000
        reader.changed()
    gone = "global table 'rates' cannot be read: the server is gone"
    assert logged(caplog, "global table 'rates'") == [
        f"{gone}; the last version is kept; further failures are counted",
        "global table 'rates' is read again after 8599 failures",
    ]


def test_it_is_not_looked_at_again_before_its_time():
    now, calls = [0.0], []

    def load():
        calls.append(now[0])
        return rates(EUR=len(calls))

    reader = TableReader(table_of(load, every=2_000), lambda: now[0])
    found = []
    for now[0] in (0.0, 1.9, 2.0, 3.0, 4.5):
        found.append(reader.changed() is not None)
    assert (found, calls) == ([True, False, True, False, True], [0.0, 2.0, 4.5])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (pa.table({"rate": [1.0]}), "has no column 'currency'"),
        (pa.table({"currency": ["EUR", "EUR"], "rate": [1.0, 2.0]}), "is null or occurs twice"),
        (pa.table({"currency": [None], "rate": [1.0]}), "is null or occurs twice"),
        ("/nowhere/at/all", "cannot be read"),
    ],
)
def test_a_table_that_was_never_read_fails_the_query(source, said):
    with pytest.raises(SourceError, match=said):
        converted(PAYMENTS, table_of(source)).run()


def test_what_does_not_fit_is_refused():
    nothing: Any = 3
    with pytest.raises(DefinitionError, match="int is not a table"):
        converted(PAYMENTS, table_of(nothing)).run()
    with pytest.raises(RowError, match=r"global table 'rates', row .*: Expected `float`, got `str`"):
        converted(PAYMENTS, table_of(pa.table({"currency": ["EUR"], "rate": ["x"]}))).run()
    stream = keyed.stream(PAYMENTS).key_by("user").connect(table_of(rates()))
    with pytest.raises(DefinitionError, match="is not a KeyedProcessFunction"):
        stream.process(Limits())
    with pytest.raises(StateDefinitionError, match="two descriptors have the name 'rates'"):
        stream.connect(table_of(rates()))
    with pytest.raises(DefinitionError, match="one of these is connected"):
        stream.connect(keyed.stream([]).broadcast(COUNTRIES))
    with pytest.raises(DefinitionError, match="give one or more column names"):
        keyed.global_table(rates(), RATES, key=())
    assert repr(table_of(rates())) == f"GlobalTable(Table, {RATES!r}, key=currency)"
