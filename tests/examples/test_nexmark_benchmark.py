"""The benchmark of the Nexmark queries: its table, its chart, and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.nexmark.catalog import QUERIES, run
from examples.nexmark.generator import BASE_TIME, Generator
from tests.benchmarks import nexmark
from tests.benchmarks.nexmark import Figures, chart, main, table
from tests.benchmarks.nexmark_latency import LATENCY_QUERIES, completed
from tests.benchmarks.nexmark_sql import FLINK, FLINK_CANNOT, SPARK, SPARK_CANNOT

_ENGINES = ["local", "flink"]
_FIGURES: dict[str, dict[str, Figures | str]] = {
    "q0": {"local": Figures(2.0, 1.5, 2.5, 10**9, None, True), "flink": Figures(1.0, 1.0, 1.0, 2 * 10**9, None, True)},
    "q5": {"local": Figures(4.0, 4.0, 4.0, 10**9, 3_000, True), "flink": Figures(9.0, 8.0, 9.5, 10**9, 4_000, True)},
    "q6": {"local": Figures(3.0, 3.0, 3.0, 10**9, 1_000, True), "flink": "cannot: it has no such thing"},
}


def test_the_table_has_the_spread_of_rounds_the_ratio_and_the_reasons():
    lines = table(_FIGURES, _ENGINES).splitlines()
    assert lines[2] == "| q0 | 2.00 (1.50 to 2.50) | 1.00 | 0.5 |"
    assert lines[3] == "| q5 | 4.00 | 9.00 (8.00 to 9.50) | 2.2 |"
    assert lines[4] == "| q6 | 3.00 |  |  |"
    assert lines[-1] == "- q6, Flink SQL: cannot: it has no such thing"
    assert {line.count("|") for line in lines[:5]} == {5}


def test_figures_are_without_the_cheapest_start_and_what_is_logged_is_not_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nexmark, "_FOLDER", tmp_path / "bench")
    log = tmp_path / "log"
    runs = ["5000-125", "250000-10000", *["5000-125"] * 3, *["1005000-10000"] * 2]
    record = {"query": "q0", "engine": "local", "runs": runs, "cpu_seconds": [9.0, 8.0, 0.5, 0.25, 0.75, 3.25, 2.25]}
    log.write_text(json.dumps(record | {"peak_bytes": 7_000_000, "state_bytes": None, "agrees": True}))
    arguments = ["--only", "q0", "--engines", "local", "--events", "1005000", "--rounds", "2", "--log"]
    assert main([*arguments, str(log)]) == 0
    printed = capsys.readouterr().out
    assert "| q0 | 2.50 (2.00 to 3.00) |\n" in printed
    assert "peak memory of keyed, local: 7 to 7 MB" in printed


def test_the_chart_has_a_bar_for_each_figure():
    picture = ET.fromstring(chart(_FIGURES, _ENGINES))
    bars = [each for each in picture.iter("{http://www.w3.org/2000/svg}rect") if each.get("x") == "44"]
    widths = [float(each.get("width", "0")) for each in bars if each.get("y") != "26"]
    assert widths == pytest.approx([560 * cpu / 9 for cpu in (2, 1, 4, 9, 3)], abs=0.1)


@pytest.mark.parametrize(
    "arguments", [("--only", "q24"), ("--engines", "keyed,beam"), ("--rate", "0"), ("--events", "many")]
)
def test_unknown_names_and_impossible_numbers_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"argument {arguments[0]}: '{arguments[1].split(',')[-1]}'" in capsys.readouterr().err


def test_an_engine_has_each_query_or_a_reason():
    assert sorted([*FLINK, *FLINK_CANNOT]) == sorted([*SPARK, *SPARK_CANNOT]) == sorted(QUERIES)


def test_the_latency_of_a_result_counts_from_the_event_that_completes_it(tmp_path):
    Generator(events=2_000, rate=100, seed=7).write(tmp_path / "events")
    found = {}
    for query in LATENCY_QUERIES:
        run(query, tmp_path / "events", tmp_path / query)
        rows = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / query).rglob("*.parquet"))])
        found[query] = [each - BASE_TIME for each in completed(query, tmp_path / "events")(rows)]
    assert {*found["q1"]} >= {*found["q18"]}
    assert max(found["q1"]) == 19_990
    # The event that is 4 s after the end of the window.
    assert {*found["q5"]} == {*range(6_000, 34_000, 2_000)}
    assert {*found["q8"]} <= {14_000, 24_000}


def test_what_is_left_when_the_time_is_over_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(nexmark, "_FOLDER", tmp_path / "bench")
    monkeypatch.setattr(nexmark, "time", SimpleNamespace(monotonic=iter((0, 1_000, 2_000)).__next__))
    assert main(["--only", "q0,q5", "--engines", "local", "--events", "6000", "--minutes", "1"]) == 0
    assert "- q5, keyed, local: not measured: --minutes 1 are over" in capsys.readouterr().out


def test_latency_has_queries_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["--latency", "--only", "q0"])
    assert "--latency measures q1, q5, q8, q18" in capsys.readouterr().err
