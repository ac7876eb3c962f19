"""The reference of SQL functions has all of them with their forms, and each example has the value that it shows."""

from __future__ import annotations

import re
from pathlib import Path

from keyed import sql
from keyed.sql.scalar_functions import FUNCTIONS
from keyed.sql.sql_types import SqlType

PAGE = (Path(__file__).parents[3] / "docs/reference/sql-functions.md").read_text()
#: Functions of chance have no example.
OF_CHANCE = {"RANDOM", "UUID"}
_ROW = re.compile(r"\| (`[A-Z0-9_]+\(.*?\)`) \| [^|]+ \| (?:`([^|]+)` \| `([^|]+)`)? ?\|?")


def rows():
    """The rows of the page: the forms of a function, an example and its value."""
    scalar = PAGE.partition("\n## With lambdas")[0]
    lines = [line for line in scalar.splitlines() if line.startswith("| `")]
    found = [_ROW.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return [match.groups() for match in found if match]


def shown(pattern):
    return str(pattern) if isinstance(pattern, SqlType) else {"strings": "ARRAY<STRING>"}.get(pattern, pattern)


def test_the_page_has_each_function_with_its_forms():
    page = {}
    for forms, *_ in rows():
        each = re.findall(r"`([A-Z0-9_]+)\(([^`]*)\)`", forms)
        page[each[0][0]] = [takes for _, takes in each]
    code = {
        name: [", ".join([*map(shown, form.takes), *(["…"] if form.is_variadic else [])]) for form in function.forms]
        for name, function in FUNCTIONS.items()
    }
    words = {"common": "any", "array": "ARRAY", "map": "MAP", "decimal": "DECIMAL"}
    code = {name: [re.sub(r"\b[a-z]+\b", lambda word: words.get(word[0], word[0]), each) for each in forms]
            for name, forms in code.items()}  # fmt: skip
    assert page == code


def test_each_example_has_its_value():
    examples = [(example, value) for _, example, value in rows() if example]
    assert len(examples) == len(FUNCTIONS) - len(OF_CHANCE)
    columns = ", ".join(f"{example} AS v{number}" for number, (example, _) in enumerate(examples))
    text = f"CREATE STREAM s (k INT) WITH (FORMAT = 'JSON'); CREATE STREAM o AS SELECT {columns} FROM s;"
    (record,) = sql.script(text, {"s": [{"k": 1}]})["o"]
    found = {example: repr(record.value[f"V{number}"]) for number, (example, _) in enumerate(examples)}
    assert found == dict(examples)
