"""Scripts as data: their outputs, the values of expressions, and what is refused.

- `script_outputs.json`: a claim, and scripts with the records or rows that they read, and each record of each output:
  key, value, timestamp, and the window if there is one. ``batches`` are numbers of rows a batch; a join may write
  records ``in_any_order``.
- `script_values.json`: a script with ``{}`` for an expression, what it reads, and expressions with their values.
- `script_refusals.json`: a script with ``{}`` for a statement or a part of it, and for each the line and column of the
  error, and a part of its message.
- `script_changes.json`: a script with its rows; a part of it, what replaces that, and a part of the error of the run
  that goes on with the checkpoint.

A ``note`` names the case of ksqlDB's functional tests, or how a fault was found.
"""

import json

import pytest

from keyed import sql
from keyed.errors import CheckpointError, SqlError
from tests.support.data_files import read_data

OUTPUTS = [
    pytest.param(case, size, id=f"{claim}-{number}-{size}")
    for claim, cases in read_data("keyed/sql/script_outputs.json").items()
    for number, case in enumerate(cases)
    for size in case.get("batches", [None])
]
VALUES, REFUSALS = (
    [
        pytest.param(group, *case, id=f"{claim}-{case[0]}")
        for claim, group in read_data(f"keyed/sql/{name}").items()
        for case in group["cases"]
    ]
    for name in ("script_values.json", "script_refusals.json")
)


@pytest.mark.parametrize(("case", "rows_per_batch"), OUTPUTS)
def test_outputs(case, rows_per_batch):
    records = case.get("records", case.get("topics"))
    options = {} if rows_per_batch is None else {"rows_per_batch": rows_per_batch}
    result = sql.script("\n".join(case["script"]), case.get("rows"), topics=records, **options)
    for name, expected in case["outputs"].items():
        rows = [(each.key, each.value, each.timestamp, *filter(None, [each.window])) for each in result[name]]
        found = json.loads(json.dumps(rows))
        if case.get("in_any_order"):
            found, expected = (sorted(rows, key=repr) for rows in (found, expected))
        assert found == expected, name
    assert result.records.keys() == case["outputs"].keys()
    assert result.skipped == case.get("skipped", {})


@pytest.mark.parametrize(("group", "expression", "value"), VALUES)
def test_values(group, expression, value):
    text = "\n".join(group["script"]).replace("{}", expression)
    result = sql.script(text, topics=[tuple(record) for record in group["records"]], rows_per_batch=1)
    found = result["out"][-1].value["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("group", "statement", "place", "message"), REFUSALS)
def test_refusals(group, statement, place, message):
    with pytest.raises(SqlError) as error:
        sql.script("\n".join(group["script"]).replace("{}", statement))
    shown = str(error.value)
    assert message in shown
    assert f"{error.value.line}:{error.value.column}" == place
    assert shown.startswith(f"line {error.value.line}, column {error.value.column}: ")
    assert shown.splitlines()[-1].strip() == "^"


@pytest.mark.parametrize(
    ("group", "old", "new", "message"),
    [(group, *case) for group in read_data("keyed/sql/script_changes.json") for case in group["cases"]],
)
def test_a_changed_query_is_refused_at_the_start_also_without_a_new_row(tmp_path, group, old, new, message):
    text = "\n".join(group["script"])
    sql.script(text, group["rows"], checkpoint=tmp_path)
    with pytest.raises(CheckpointError) as error:
        sql.script(text.replace(old, new), group["rows"], checkpoint=tmp_path)
    assert message in str(error.value)
