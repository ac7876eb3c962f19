"""``keyed run``: scripts of SQL statements over files and topics."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyed.cli.main import main
from keyed.tables import read_tables
from tests.keyed.changelog.kafka import topics
from tests.support.data_files import read_data
from tests.support.waiting import until

COMMANDS = read_data("keyed/cli/commands.json")
SCRIPT = """
CREATE STREAM readings (sensor STRING KEY, reading INT, at TIMESTAMP) WITH (TIMESTAMP = 'at');
CREATE TABLE avg_readings AS SELECT sensor, AVG(reading) AS avg, COUNT(*) AS n FROM readings GROUP BY sensor;
CREATE TABLE hourly AS SELECT sensor, COUNT(*) AS n FROM readings WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY sensor;
"""
ROWS = [("attic", 45, "00:00"), ("cellar", 41, "00:10"), ("attic", 92, "01:00")]


def _row(sensor, reading, time):
    return {"sensor": sensor, "reading": reading, "at": f"2026-01-01T{time}:00", "other": True}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.sql").write_text(SCRIPT)
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(_row(*row)) + "\n" for row in ROWS))
    return tmp_path


def _run(files, capsys, *options, script="a.sql", rows="r.jsonl", status=0):
    assert main(["run", str(files / script), "--input", f"readings={files / rows}", *options]) == status
    return capsys.readouterr()


def _records(printed):
    return [json.loads(line) for line in printed.out.splitlines()]


def test_the_records_of_outputs_are_printed(files, capsys):
    printed = _run(files, capsys).out.splitlines()
    assert printed[:4] == [
        "avg_readings, batch 0",
        "key     avg   n  timestamp",
        "attic   68.5  2  2026-01-01T01:00:00Z",
        "cellar  41.0  1  2026-01-01T00:10:00Z",
    ]
    at = printed.index("hourly, batch 0")
    assert printed[at + 1].split() == ["key", "window_start", "window_end", "n", "timestamp"]
    assert printed[at + 2].split()[1:3] == ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]


def test_an_output_folder_has_each_record_once(files, capsys):
    options = ("--checkpoint", str(files / "state"), "--output", str(files / "records"), "--rows-per-batch", "2")
    assert _run(files, capsys, *options).out == ""
    with (files / "r.jsonl").open("a") as file:
        file.write(json.dumps(_row("attic", 1, "01:10")) + "\n")
    _run(files, capsys, *options)
    found = pq.read_table(files / "records" / "avg_readings").to_pylist()
    assert [(each["sensor"], each["avg"], each["DELETED"]) for each in found] == [
        ("attic", 45.0, False),
        ("cellar", 41.0, False),
        ("attic", 68.5, False),
        ("attic", 46.0, False),
    ]
    assert found[0]["ROWTIME"] == 1_767_225_600_000
    hourly = pq.read_table(files / "records" / "hourly").to_pylist()
    assert {each["WINDOWEND"] - each["WINDOWSTART"] for each in hourly} == {3_600_000}


def test_a_column_that_a_file_lacks_is_refused_or_reported(files, capsys, caplog):
    (files / "r.csv").write_text("sensor,raeding,at\nattic,1,2026-01-01T00:00:00\n")
    err = _run(files, capsys, rows="r.csv", status=1).err
    assert "has no column 'reading'; did you mean raeding?" in err
    row = _row("attic", 1, "00:00")
    row["raeding"] = row.pop("reading")
    (files / "r.jsonl").write_text(json.dumps(row))
    assert "no row has the column reading" in _run(files, capsys).err


@pytest.mark.slow
def test_a_run_that_is_killed_has_printed_what_it_has_committed(files):
    (files / "a.sql").write_text(SCRIPT + "CREATE STREAM copies AS SELECT sensor, reading FROM readings;")
    rows = [{"sensor": "attic", "reading": number, "at": "2026-01-01T00:00:00"} for number in range(3000)]
    (files / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "keyed.cli", "run", str(files / "a.sql"), "--json", "--rows-per-batch", "20"]
    command += ["--input", f"readings={files / 'r.jsonl'}", "--checkpoint", str(files / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(200)]
        process.kill()
        # The last line may be half.
        printed += [line for line in process.stdout.readlines() if line.endswith("\n")]
    printed += subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [json.loads(line) for line in printed]
    assert {each["value"]["reading"] for each in found if each["output"] == "copies"} == set(range(3000))


def test_another_run_reads_only_new_rows_and_tables_have_all(files, capsys):
    options = ("--checkpoint", str(files / "state"), "--tables", str(files / "tables"), "--json")
    assert len(_records(_run(files, capsys, *options))) == 5
    with (files / "r.jsonl").open("a") as file:
        file.write(json.dumps(_row("attic", 1, "01:10")) + "\n")
    assert _records(_run(files, capsys, *options)) == COMMANDS["records of another run"]
    with read_tables(files / "tables") as tables:
        assert tables.sql("select sensor, avg, n from avg_readings order by 1").to_pylist() == [
            {"sensor": "attic", "avg": 46.0, "n": 3},
            {"sensor": "cellar", "avg": 41.0, "n": 1},
        ]
        found = tables.sql("select n from hourly where sensor = ? order by windowstart", ["attic"]).to_pylist()
        assert found == [{"n": 1}, {"n": 2}]


def test_rows_are_looked_up_by_the_plain_value_of_their_key(files, capsys):
    _run(files, capsys, "--tables", str(files / "tables"))
    assert main(["get", str(files / "tables"), "avg_readings", "attic"]) == 0
    assert "68.5" in capsys.readouterr().out


def test_a_checkpoint_refuses_other_first_rows(files, capsys):
    state = ("--checkpoint", str(files / "state"))
    _run(files, capsys, *state)
    (files / "r.jsonl").write_text(json.dumps(_row("attic", 1, "00:00")) + "\n")
    assert "3 records of the rows of readings" in _run(files, capsys, *state, status=1).err


def test_csv_and_parquet_files_give_the_same_records(files, capsys):
    expected = _run(files, capsys, "--json").out
    (files / "r.csv").write_text("sensor,reading,at\n" + "".join(f"{s},{r},2026-01-01T{t}:00\n" for s, r, t in ROWS))
    assert _run(files, capsys, "--json", rows="r.csv").out == expected
    times = pa.array([_row(*row)["at"] for row in ROWS]).cast(pa.timestamp("ms"))
    columns = {"sensor": [row[0] for row in ROWS], "reading": [row[1] for row in ROWS], "at": times}
    pq.write_table(pa.table(columns), files / "r.parquet")
    assert _run(files, capsys, "--json", rows="r.parquet").out == expected


def test_skipped_records_are_counted_by_reason(files, capsys):
    with (files / "r.jsonl").open("a") as file:
        for reading, at in (("x", "2026-01-01T01:00:00"), (1, None), (2, None)):
            file.write(json.dumps({"sensor": "attic", "reading": reading, "at": at}) + "\n")
    err = _run(files, capsys).err
    assert "readings: 1 records skipped: the format cannot read them" in err
    assert "readings: 2 records skipped: no usable timestamp" in err


@pytest.mark.parametrize(("options", "message"), COMMANDS["bad options of run"])
def test_bad_options_are_refused(files, capsys, options, message):
    assert main(["run", str(files / "a.sql"), *options]) == 1
    assert message in capsys.readouterr().err


def test_errors_of_the_script_have_their_place_and_nothing_runs(files, capsys):
    (files / "a.sql").write_text(SCRIPT.replace("AVG(reading)", "AVG(raeding)"))
    err = _run(files, capsys, "--checkpoint", str(files / "state"), status=1).err
    assert "line 3, column 49: unknown column raeding" in err
    assert not (files / "state").exists()


def test_answers_and_parameters(files, capsys):
    text = (
        SCRIPT.replace("FROM readings GROUP", "FROM readings WHERE sensor = $sensor GROUP") + "DESCRIBE avg_readings;"
    )
    (files / "a.sql").write_text(text)
    found = _records(_run(files, capsys, "--json", "--parameter", "sensor=cellar"))
    assert next(each for each in found if "statement" in each) == {
        "statement": "DESCRIBE avg_readings",
        "column": "sensor",
        "type": "STRING",
        "role": "PRIMARY KEY",
    }
    assert [each["key"] for each in found if each.get("output") == "avg_readings"] == ["cellar"]


def test_a_push_query_over_the_tables(files, capsys):
    tables = str(files / "tables")
    _run(files, capsys, "--tables", tables)
    query = "SELECT UCASE(sensor) AS s, n FROM avg_readings WHERE n > 1 EMIT CHANGES LIMIT 1"
    assert main(["sql", tables, query]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row"] == {"s": "ATTIC", "n": 2}
    assert main(["sql", tables, "select 1", "--after", found["token"]]) == 1
    assert "is for queries that end with EMIT CHANGES" in capsys.readouterr().err


def _get(address):
    try:
        with urllib.request.urlopen(address) as answer:
            return answer.read().replace(b" ", b"")
    except urllib.error.HTTPError as error:
        # A table is there once the follower has read its first batch.
        return error.read()


@pytest.mark.slow
def test_a_run_over_topics_serves_its_tables_until_it_is_interrupted(kafka, tmp_path):
    source = topics.created(kafka, 1)
    (tmp_path / "a.sql").write_text(f"""
    CREATE STREAM readings (sensor STRING KEY, reading INT) WITH (KAFKA_TOPIC = '{source}');
    CREATE TABLE highest AS SELECT sensor, MAX(reading) AS most FROM readings GROUP BY sensor;
    """)
    command = [sys.executable, "-m", "keyed.cli", "run", str(tmp_path / "a.sql"), "--bootstrap", kafka]
    command += ["--serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            for reading in (4, 9):
                topics.produce(kafka, source, [(b"attic", b'{"reading": %d}' % reading)])
                found = json.loads(process.stdout.readline())
                assert (found["output"], found["key"], found["value"]) == ("highest", "attic", {"most": reading})
            until(lambda: b'"most":9' in _get(f"{address}/tables/highest"))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode in (0, -2, 130)
