# ruff: noqa: E501, T201 - it prints
"""How many of ksqlDB's functional cases hold: ``python -m tests.keyed.sql.count_ksqldb_cases FOLDER``.

FOLDER is ``ksqldb-functional-tests/src/test/resources/query-validation-tests`` of ksqlDB's repository. Each case runs in
batches of one row; names match in any case. A failure is printed with its reason; ``--only FILE`` runs one file's.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from keyed import sql
from keyed.errors import KeyedError

#: Texts of errors and of statements that are decided differences, with the reason; the first that fits counts.
DECIDED = {
    "lambda": "lambda x: ... in place of x => ...",
    "unknown function": "functions are DuckDB's, and ksqlDB's names that are a macro",
    "scripts have no such aggregate": "aggregates that scripts do not have",
    "no value": "records of streams without a value are skipped",
}


def cases(folder: Path, only: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each case, one for each format of it."""
    for path in sorted(folder.glob("*.json")):
        if only not in (None, path.stem):
            continue
        for case in json.loads(path.read_text(), parse_float=Decimal)["tests"]:
            for format_ in case.get("format") or [None]:
                text = json.dumps(case, default=float)
                found = case if format_ is None else json.loads(text.replace("{FORMAT}", format_), parse_float=Decimal)
                yield f"{path.stem}: {case['name']}" + (f" - {format_}" if format_ else ""), found


def plain(value: Any) -> Any:
    """Return a value with names in upper case, numbers of one kind, and without nulls in objects."""
    if isinstance(value, dict):
        found = {str(name).upper(): plain(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return "NaN" if math.isnan(value) else float(f"{float(value):.12g}")
    return value


def fits(expected: Any, seen: Any) -> bool:
    """Return whether a key or value is the expected one."""
    if expected is None or seen is None:
        return expected is None and seen is None
    if isinstance(expected, str) and isinstance(seen, dict):
        # Delimited.
        cells = next(iter(csv.reader([expected])), [""])
        own = list(seen.values())
        return len(cells) == len(own) and all(map(_is_cell, cells, own))
    if not isinstance(expected, dict) and isinstance(seen, dict) and len(seen) == 1:
        seen = next(iter(seen.values()))
    elif isinstance(expected, dict) and not isinstance(seen, dict) and len(expected) == 1:
        expected = next(iter(expected.values()))
    if isinstance(expected, str) != isinstance(seen, str):
        return _is_cell(expected, seen) if isinstance(expected, str) else _is_cell(seen, expected)
    return bool(plain(expected) == plain(seen))


def _is_cell(text: str, value: Any) -> bool:
    if value is None:
        return text == ""
    try:
        return bool(plain(Decimal(text)) == plain(value))
    except ArithmeticError:
        return text.lower() == str(value).lower() or text == plain(value)


def difference(case: dict[str, Any]) -> str | None:
    """Return how a case fails; ``None`` if it holds."""
    refused = case.get("expectedException")
    topics = [
        (
            each["topic"],
            each.get("key"),
            each.get("value"),
            each.get("timestamp", 0),
            0,
            None,
            [
                (head["KEY"], base64.b64decode(head["VALUE"]) if head["VALUE"] else None)
                for head in each.get("headers", [])
            ],
            (each["window"]["start"], each["window"]["end"]) if each.get("window") else None,
        )
        for each in case.get("inputs", [])
    ]
    properties = {name: str(value) for name, value in case.get("properties", {}).items()}
    schemas = {}
    for topic in case.get("topics", []):
        if isinstance(topic, dict):
            given = {part: topic[f"{part}Schema"] for part in ("key", "value") if topic.get(f"{part}Schema")}
            if given:
                schemas[topic["name"]] = given
    try:
        result = sql.script(
            "\n".join(case["statements"]), topics=topics, properties=properties, schemas=schemas, rows_per_batch=1
        )
    except KeyedError as error:
        said = str(error).partition("\n")[0]
        return None if refused else f"refused: {said.partition(': ')[2] or said}"
    if refused:
        return f"not refused: {refused.get('message', refused.get('type', ''))!s:.120}"
    names = {name.upper(): name for name in result.records}
    wanted: dict[str, list[Any]] = {}
    for each in case.get("outputs", []):
        wanted.setdefault(each["topic"], []).append(each)
    for topic, expected in wanted.items():
        name = names.get(topic.upper())
        if name is None:
            return f"no output is named {topic}"
        records = result.records[name]
        if len(records) != len(expected):
            return f"{len(records)} records, expected {len(expected)}"
        for one, record in zip(expected, records, strict=True):
            bounds = (one["window"]["start"], one["window"]["end"]) if one.get("window") else None
            for what, mine, theirs in (
                ("timestamp", record.timestamp, one.get("timestamp", 0)),
                ("window", record.window, bounds),
            ):
                if mine != theirs:
                    return f"{what} {mine}, expected {theirs}"
            for what, mine, theirs in (("key", record.key, one.get("key")), ("value", record.value, one.get("value"))):
                if not fits(theirs, mine):
                    return f"{what} {mine!s:.90}, expected {theirs!s:.90}"
    return None


def main() -> int:
    """Count the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    given = parser.parse_args()
    reasons: Counter[str] = Counter()
    held = count = 0
    for name, case in cases(given.folder, given.only):
        count += 1
        try:
            found = difference(case)
        except Exception as error:  # noqa: BLE001 - the case is what counts
            found = f"fails: {type(error).__name__}: {error!s:.150}"
        if found is None:
            held += 1
            continue
        reason = next((reason for text, reason in DECIDED.items() if text in found), found.partition(":")[0].split()[0])
        reasons[reason] += 1
        print(f"{name}: {found}", flush=True)
    print(f"{held} of {count} cases hold")
    for reason, number in reasons.most_common():
        print(f"{number:5} {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
