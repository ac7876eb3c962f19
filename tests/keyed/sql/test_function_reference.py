"""The reference of SQL functions has all of them with their forms and results, and each example has the value shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from keyed import sql
from keyed.sql.expressions import function_names
from keyed.sql.registered import _registered
from keyed.sql.scalar_functions import FUNCTIONS, Form
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.formats.sql_types import BIGINT, INTEGER, NAMED, STRING, SqlType, array, decimal, map_of
from keyed.sql.table_functions import TABLE_FUNCTIONS

PAGE = (Path(__file__).parents[3] / "docs/reference/sql-functions.md").read_text()
#: Functions whose value differs from call to call have no example.
WITHOUT_EXAMPLE = {"RANDOM", "UUID"}
#: The forms of these without an argument depend on the clock, so the example is of another form.
OF_THE_CLOCK = {"UNIX_DATE()", "UNIX_TIMESTAMP()"}
#: Each expression with a syntax of its own, by words that its forms have in common.
EXPRESSIONS = [
    "CASE",
    "CAST",
    "LIKE",
    "BETWEEN",
    "IN (",
    "IS",
    "DISTINCT FROM",
    "+",
    "ARRAY[",
    "MAP(",
    "STRUCT(",
    "[",
    "->",
]
#: The patterns that the page writes as a word, and a type that fits.
WORDS: dict[str, tuple[set[str | SqlType], SqlType]] = {
    "T": ({"common", "any"}, STRING),
    "any": ({"any"}, STRING),
    "unit": ({"unit"}, STRING),
    "DECIMAL": ({"decimal"}, decimal(6, 2)),
    "ARRAY<T>": ({"array"}, array(STRING)),
    "ARRAY<STRING>": ({"strings"}, array(STRING)),
    "MAP<T, U>": ({"map"}, map_of(STRING, BIGINT)),
    **{name: ({type_}, type_) for name, type_ in NAMED.items()},
}
#: The types that replace words in results, to compare them with those of the code.
SAMPLES = {"T": str(STRING), "U": str(BIGINT), "INT": str(INTEGER)}


class Row(NamedTuple):
    """A row of a table: its forms, the result of each form, and the examples with their values."""

    forms: list[str]
    results: list[str]
    meaning: str
    examples: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.forms[0].partition("(")[0]


def rows_of(text: str) -> list[Row]:
    """Return the rows of the tables of a text."""
    found = []
    for line in text.splitlines():
        if line.startswith("| `"):
            forms, results, meaning, examples = line.removeprefix("| ").removesuffix(" |").split(" | ")
            each = re.findall(r"`([^`]+)`", results)
            shown = [cell.partition(" = ") for cell in examples.split("<br>") if cell.strip()]
            written = re.findall(r"`([^`]+)`", forms)
            found.append(
                Row(
                    written,
                    each if len(each) > 1 else each * len(written),
                    meaning,
                    {_unquoted(example): _unquoted(value) for example, _, value in shown},
                )
            )
    return found


def _unquoted(cell: str) -> str:
    assert cell.strip().startswith("`"), cell
    assert cell.strip().endswith("`"), cell
    return cell.strip()[1:-1].replace("`, `", ", ")


SCALAR, _, _rest = PAGE.partition("\n## Lambdas and table functions\n")
CALLED, _, SYNTAX = _rest.partition("\n## Expressions\n")


def built_in() -> set[str]:
    """Return the names of the scalar functions that no other test registered."""
    return FUNCTIONS.keys() - _registered


def test_the_page_has_exactly_the_scalar_functions():
    names = [row.name for row in rows_of(SCALAR)]
    assert len(names) == len(set(names))
    assert set(names) == built_in()


def test_the_page_has_the_functions_with_lambdas_and_the_table_functions():
    special = function_names() - FUNCTIONS.keys() - AGGREGATES - _registered
    assert special > TABLE_FUNCTIONS
    assert {row.name for row in rows_of(CALLED)} == special


def test_the_page_has_the_expressions_with_a_syntax_of_their_own():
    rows = rows_of(SYNTAX)
    assert len(rows) == len(EXPRESSIONS)
    for words, row in zip(EXPRESSIONS, rows, strict=True):
        assert all(words in form for form in row.forms), row.forms


def _arguments(form: str) -> list[str]:
    inside = form.partition("(")[2].removesuffix(")")
    return re.split(r", (?![^<]*>)", inside) if inside else []


def _result(form: Form, types: list[SqlType]) -> str:
    result = form.result if isinstance(form.result, SqlType) else form.result(types)
    return re.sub(r"\(\d+, \d+\)", "", str(result))


@pytest.mark.parametrize("row", rows_of(SCALAR), ids=lambda row: row.name)
def test_the_forms_and_results_are_those_of_the_code(row):
    forms = FUNCTIONS[row.name].forms
    assert len(row.forms) == len(row.results) == len(forms)
    for written, result, form in zip(row.forms, row.results, forms, strict=True):
        assert written.partition("(")[0] == row.name
        arguments = _arguments(written)
        assert form.is_variadic == (arguments[-1:] == ["…"]), written
        arguments = arguments[:-1] if form.is_variadic else arguments
        assert len(arguments) == len(form.takes), written
        for argument, pattern in zip(arguments, form.takes, strict=True):
            assert pattern in WORDS[argument][0], f"{written}: {argument} is {pattern}"
        named = re.sub(r"\b(?:T|U|INT)\b", lambda word: SAMPLES[word[0]], result)
        assert named == _result(form, [WORDS[argument][1] for argument in arguments]), written


def test_each_row_has_a_meaning_and_an_example_if_its_value_is_fixed():
    rows = [*rows_of(SCALAR), *rows_of(CALLED), *rows_of(SYNTAX)]
    assert [row.name for row in rows if not row.meaning.endswith(".")] == []
    assert {row.name for row in rows if not row.examples} == WITHOUT_EXAMPLE
    assert {form for row in rows for form in row.forms} >= OF_THE_CLOCK
    examples = [example for row in rows for example in row.examples]
    assert [each for each in examples if any(call in each for call in (*OF_THE_CLOCK, "RANDOM(", "UUID("))] == []
    wrong = [example for row in [*rows_of(SCALAR), *rows_of(CALLED)] for example in row.examples
             if not example.startswith(f"{row.name}(")]  # fmt: skip
    assert wrong == []


def test_each_example_has_the_value_shown():
    shown: dict[str, str] = {}
    for row in rows_of(PAGE):
        shown |= row.examples
    one = [example for example in shown if example.partition("(")[0] not in TABLE_FUNCTIONS]
    many = [example for example in shown if example not in one]
    columns = ", ".join(f"{example} AS v{number}" for number, example in enumerate(one))
    text = f"CREATE STREAM s (k INT) WITH (FORMAT = 'JSON'); {_stream('o', columns)}"
    text += "".join(_stream(f"r{number}", f"{example} AS v") for number, example in enumerate(many))
    result = sql.script(text, {"s": [{"k": 1}]})
    (record,) = result["o"]
    found = {example: repr(record.value[f"V{number}"]) for number, example in enumerate(one)}
    for number, example in enumerate(many):
        found[example] = ", ".join(repr(each.value["V"]) for each in result[f"r{number}"])
    assert found == shown


def _stream(name: str, columns: str) -> str:
    # JSON has no infinity, and AVRO has it.
    return f"CREATE STREAM {name} WITH (VALUE_FORMAT = 'AVRO') AS SELECT {columns} FROM s;\n"
