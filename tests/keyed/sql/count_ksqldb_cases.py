# ruff: noqa: T201 - it prints
"""How many of ksqlDB's functional cases hold: ``python -m tests.keyed.sql.count_ksqldb_cases FOLDER``.

FOLDER is ``ksqldb-functional-tests/src/test/resources/query-validation-tests`` of ksqlDB's repository. Each case runs
in batches of one row; names match in any case; numbers are compared as ksqlDB compares them. A case that fails has a
reason of ``REASONS``, each of which is a row of ``docs/coming-from/ksqldb.md``; those without a reason are printed.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import logging
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from keyed import sql
from keyed.errors import KeyedError
from tests.support.data_files import read_data

#: Reasons of decided differences, each with the pattern of a failure: the name of the case, how it fails, what the log
#: says, and the statements. The first that fits counts.
_PARTS = read_data("keyed/sql/ksqldb_reasons.json")
REASONS: list[tuple[str, str]] = [(pattern, reason) for part in _PARTS.values() for pattern, reason in part]
#: A text, or a comment, which JSON does not have.
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ASK = "SHOW STREAMS; SHOW TABLES;"


def cases(folder: Path, only: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each case, one for each format of it."""
    for path in sorted(folder.glob("*.json")):
        if only not in (None, path.stem):
            continue
        text = _COMMENT.sub(lambda found: found.group(1) or "", path.read_text())
        for case in json.loads(text, parse_float=Decimal)["tests"]:
            for format_ in case.get("format") or [None]:
                found = case if format_ is None else _with_format(case, format_)
                yield f"{path.stem}: {case['name']}" + (f" - {format_}" if format_ else ""), found


def _with_format(value: Any, format_: str) -> Any:
    if isinstance(value, dict):
        return {_with_format(name, format_): _with_format(each, format_) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_format(each, format_) for each in value]
    return value.replace("{FORMAT}", format_) if isinstance(value, str) else value


def fits(expected: Any, seen: Any, *, has_defaults: bool = False) -> bool:
    """Return whether a key or value is the expected one.

    Args:
        expected: Of a case.
        seen: What a script has written.
        has_defaults: A null is written as the default of its type.
    """
    if isinstance(seen, dict) and isinstance(expected, dict):
        (inner,) = seen.values() if len(seen) == 1 else (None,)
        if isinstance(inner, dict) and fits(expected, inner, has_defaults=has_defaults):
            # A value of one column that is not wrapped.
            return True
        mine = {str(name).upper(): each for name, each in seen.items()}
        theirs = {str(name).upper(): each for name, each in expected.items()}
        names = mine.keys() | theirs.keys()
        return all(fits(theirs.get(each), mine.get(each), has_defaults=has_defaults) for each in names)
    if isinstance(seen, dict) and isinstance(expected, str) and (len(seen) > 1 or expected[:1] == '"'):
        # Delimited.
        rows = (next(iter(csv.reader([expected], delimiter=each)), [""]) for each in (",", "|", "$", " ", "\t", "-"))
        return any(len(cells) == len(seen) and all(map(fits, cells, seen.values())) for cells in rows)
    if isinstance(seen, dict) and len(seen) == 1:
        return fits(expected, next(iter(seen.values())), has_defaults=has_defaults)
    if isinstance(expected, dict) and len(expected) == 1 and not isinstance(seen, dict):
        return fits(next(iter(expected.values())), seen, has_defaults=has_defaults)
    if seen is None:
        return expected is None or expected == "" or (has_defaults and not expected)
    if isinstance(seen, list):
        same = isinstance(expected, list) and len(expected) == len(seen)
        return same and all(fits(*pair, has_defaults=has_defaults) for pair in zip(expected, seen, strict=True))
    if isinstance(seen, bytes):
        return bool(expected in (base64.b64encode(seen).decode(), seen.decode(errors="replace")))
    if isinstance(seen, bool) or isinstance(expected, bool):
        return str(expected).lower() == str(seen).lower()
    if isinstance(seen, int | float | Decimal):
        return _is_number(expected, seen)
    return isinstance(seen, str) and str(expected) == seen


def _is_number(expected: Any, seen: float | Decimal) -> bool:
    if not isinstance(expected, str | int | float | Decimal):
        return False
    try:
        number = Decimal(expected)
    except ArithmeticError:
        return False
    if not number.is_finite() or not math.isfinite(seen):
        return str(float(number)) == str(float(seen))
    far = abs(number - Decimal(seen))
    return far < Decimal("0.000001") or far < abs(number) * Decimal("1e-12")


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
            "\n".join([*case["statements"], _ASK]),
            topics=topics,
            properties=properties,
            schemas=schemas,
            rows_per_batch=1,
        )
    except KeyedError as error:
        return None if refused else f"refused: {str(error)[:300]}"
    if refused:
        return f"not refused: {refused.get('message', refused.get('type', ''))!s:.120}"
    written = [row for answer in result.answers[-2:] for row in answer.rows if row["is_written_by_a_query"]]
    written += [row for answer in result.answers[-2:] for row in answer.rows if row["name"] in result.records]
    sources = {row["topic"].upper(): row for row in written}
    wanted: dict[str, list[Any]] = {}
    for each in case.get("outputs", []):
        wanted.setdefault(each["topic"], []).append(each)
    for topic, expected in wanted.items():
        source = sources.get(topic.upper())
        if source is None or source["name"] not in result.records:
            return f"no output has the topic {topic}"
        records = result.records[source["name"]]
        has_defaults = source["value_format"].startswith("PROTOBUF")
        found = [
            _record(one, record, has_defaults=has_defaults) for one, record in zip(expected, records, strict=False)
        ]
        wrong = next((each for each in found if each is not None), None)
        if len(records) != len(expected):
            rest = iter(expected)
            is_part = all(
                any(_record(one, each, has_defaults=has_defaults) is None for one in rest) for each in records
            )
            what = f"lacks {len(expected) - len(records)} of {len(expected)} records" if is_part else f"{wrong}"
            return f"{what} ({len(records)} of {len(expected)} records)"
        if wrong is not None:
            return wrong
    return None


def _record(expected: dict[str, Any], record: Any, *, has_defaults: bool) -> str | None:
    """Return how a record differs."""
    bounds = (expected["window"]["start"], expected["window"]["end"]) if expected.get("window") else None
    moment = expected.get("timestamp", record.timestamp)
    for what, mine, theirs in (("timestamp", record.timestamp, moment), ("window", record.window, bounds)):
        if mine != theirs:
            return f"{what} {mine}, expected {theirs}"
    for what, mine, theirs in (
        ("key", record.key, expected.get("key")),
        ("value", record.value, expected.get("value")),
    ):
        is_null = theirs is None and (mine is None or (len(mine) == 1 and None in mine.values()))
        is_gone = what == "value" and (mine is None or theirs is None) and not is_null
        if is_gone or not fits(theirs, mine, has_defaults=has_defaults):
            return f"{what} {mine!s:.300}, expected {json.dumps(theirs, default=float, ensure_ascii=False):.300}"
    return None


def main() -> int:
    """Count the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="one file, without .json")
    parser.add_argument("--all", action="store_true", help="print the failures that have a reason, too")
    options = parser.parse_args()
    logged = BufferingHandler(capacity=100_000)
    logging.getLogger("keyed").addHandler(logged)
    logging.getLogger("keyed").propagate = False
    reasons: Counter[str] = Counter()
    files: dict[str, list[int]] = {}
    for name, case in cases(options.folder, options.only):
        counts = files.setdefault(name.partition(":")[0], [0, 0])
        counts[1] += 1
        logged.flush()
        try:
            found = difference(case)
        except Exception as error:  # noqa: BLE001 - the case is what counts
            found = f"fails: {type(error).__name__}: {error!s:.150}"
        if found is None:
            counts[0] += 1
            continue
        text = "\n".join([f"{name}: {found}", *(record.getMessage() for record in logged.buffer), *case["statements"]])
        reason = next((reason for pattern, reason in REASONS if re.search(pattern, text)), None)
        reasons[reason or "without a reason"] += 1
        if reason is None or options.all:
            print(f"[{reason}] {text}\n", flush=True)
    for name, (held, count) in files.items():
        print(f"{held:5} of {count:4} {name}")
    print(f"{sum(held for held, _ in files.values())} of {sum(count for _, count in files.values())} cases hold")
    for reason, number in reasons.most_common():
        print(f"{number:5} {reason}")
    return min(1, reasons["without a reason"])


if __name__ == "__main__":
    sys.exit(main())
