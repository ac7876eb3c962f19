"""Random ``MATCH_RECOGNIZE`` queries over random rows: scripts find what Flink SQL finds.

It needs Flink, which `flink_python` installs into an environment in ``.environments/`` the first time. Not drawn is
what differs by decision (``AVG`` of integers, which is an integer in Flink; loops without ``WITHIN``, which are
refused), and what both refuse: a variable that may be left out after a greedy loop, and a greedy loop at the end.

The first and last row of each variable and their number are compared, so that a match that can be read in several ways,
as A A C or as A B C, is read as Flink reads it.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from keyed import sql
from tests.support.flink import flink_python

PROGRAM = Path(__file__).with_name("flink_match_recognize.py")
COLUMNS = (
    "symbol STRING, price BIGINT, tax BIGINT, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), "
    "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
)
TICKS = (
    "CREATE STREAM ticks (symbol STRING, price BIGINT, tax BIGINT, ms BIGINT, ts TIMESTAMP) "
    "WITH (FORMAT = 'JSON', TIMESTAMP = 'ts');"
)
QUERIES = 40
#: Quantifiers of a variable that occurs once at least, of one that may be left out, and of the last one.
REQUIRED = ["", "", "+", "+?", "{2}", "{1,2}", "{1,2}?", "{2,}"]
OPTIONAL = ["*", "*?", "?", "{0,2}"]
GREEDY = {"+", "{1,2}", "{2,}", "*", "{0,2}"}
LAST = ["", "", "", "{2}", "+?", "{1,2}?"]


@attrs.frozen
class Query:
    """A query without its names for time and source, which differ."""

    names: list[str]
    clause: str


def query_of(chance: random.Random) -> Query:
    """Draw a query."""
    names = list("ABCD")[: chance.randint(2, 4)]
    quantifiers = [chance.choice(REQUIRED)]
    for _ in names[2:]:
        is_required = quantifiers[-1] in GREEDY or chance.random() < 0.6
        quantifiers.append(chance.choice(REQUIRED if is_required else OPTIONAL))
    quantifiers.append(chance.choice(LAST))
    required = [name for name, each in zip(names[1:], quantifiers[1:], strict=True) if each not in OPTIONAL]
    skip = chance.choice(["", "PAST LAST ROW", "TO NEXT ROW", "TO FIRST {}", "TO LAST {}"])
    after = f"AFTER MATCH SKIP {skip.format(chance.choice(required))}" if skip else ""
    defined = [f"{name} AS {condition}" for name in names if (condition := condition_of(chance, name, names))]
    measures = ["SUM(price) AS total"]
    for name in names:
        measures += [
            f"FIRST({name}.ms) AS from_{name}",
            f"LAST({name}.ms) AS to_{name}",
            f"COUNT({name}.ms) AS n_{name}",
        ]
    pattern = " ".join(map("".join, zip(names, quantifiers, strict=True)))
    within = chance.choice([3, 6, 60])
    clause = (
        f"PARTITION BY symbol ORDER BY ts MEASURES {', '.join(measures)} ONE ROW PER MATCH {after} "
        f"PATTERN ({pattern}) WITHIN INTERVAL '{within}' SECOND DEFINE {', '.join(defined or ['A AS A.price > 0'])}"
    )
    return Query([measure.rpartition(" ")[2] for measure in measures], clause)


def condition_of(chance: random.Random, name: str, names: list[str]) -> str:
    """Draw the condition of a variable; none is often."""
    number, place = chance.randint(3, 17), names.index(name)
    other, earlier = chance.choice(names[: place + 1]), chance.choice(names[:place] or [""])
    return chance.choice(
        [
            "",
            f"{name}.price > {number}",
            f"{name}.price BETWEEN {number - 5} AND {number} OR {name}.tax = 1",
            f"price < {number} AND tax <> 2",
            f"LAST({name}.price, 1) IS NULL OR {name}.price > LAST({name}.price, 1)",
            f"{name}.price >= {other}.price",
            f"{name}.price - FIRST({name}.price) < {number - 9}",
            f"{name}.price - FIRST({earlier}.price) < {number - 10} OR {name}.tax = 3" if earlier else "",
            f"NOT ({name}.price < LAST({other}.price))",
            f"SUM({name}.price) < {3 * number}",
            f"COUNT({name}.price) < 3 AND {name}.price > {number - 8}",
        ]
    )


def rows_of(chance: random.Random) -> list[dict[str, Any]]:
    """Draw rows in the order of their times, of which no two are equal."""
    times = sorted(chance.sample(range(0, 60_000, 500), 60))
    return [
        {"symbol": chance.choice("xy"), "price": chance.randint(0, 20), "tax": chance.randint(1, 3), "ms": time}
        for time in times
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_random_queries_find_what_flink_finds(tmp_path, seed):
    chance = random.Random(seed)
    rows, queries = rows_of(chance), [query_of(chance) for _ in range(QUERIES)]
    (tmp_path / "ticks.csv").write_text("".join(f"{','.join(map(str, row.values()))}\n" for row in rows))
    selects = [f"SELECT symbol, {', '.join(each.names)} FROM ticks MATCH_RECOGNIZE ({each.clause})" for each in queries]
    program = {"path": str(tmp_path / "ticks.csv"), "columns": COLUMNS, "queries": selects}
    (tmp_path / "program.json").write_text(json.dumps(program))
    command = [flink_python(), str(PROGRAM), str(tmp_path / "program.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == QUERIES
    assert sum(map(len, answers)) > QUERIES
    for each, answer in zip(queries, answers, strict=True):
        text = f"{TICKS} CREATE STREAM found AS SELECT * FROM ticks MATCH_RECOGNIZE ({each.clause}) EMIT CHANGES;"
        given = [{**row, "ts": row["ms"]} for row in rows]
        result = sql.script(text, {"ticks": given}, drain=True, rows_per_batch=chance.choice([1, 7, 10_000]))
        found = [[row.key, *(row.value[name] for name in each.names)] for row in result["found"]]
        assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, answer)), each.clause
