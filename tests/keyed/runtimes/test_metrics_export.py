"""Exports of metrics: over a port, in a file and through OpenTelemetry, while a query runs and when it has ended."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import keyed
from keyed.base.background import Status
from keyed.base.background import _running as running_threads
from keyed.engine.group_log import COUNTERS
from keyed.errors import DefinitionError, ExtraNotInstalled
from keyed.job.results import Progress
from keyed.metrics import OpenTelemetry, Prometheus
from keyed.runtimes import metrics_export
from keyed.runtimes.job_metrics import METRICS, OF_OPERATORS, OF_QUERY, OF_REPLICATIONS, JobMetrics, MetricsSource
from keyed.tables import open_tables
from keyed.tables.replication import Replication
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.spark.functions import COUNTED, SCHEMA, files_source, write_file
from tests.keyed.runtimes.spark.functions import Count as CountAll
from tests.support.limits import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
BAD = keyed.OutputTag("bad", "reason string")


class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        if value.v < 0:
            raise LookupError("unlucky")
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5_000)
        yield ctx.get_current_key(), self.count.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -timestamp


def rows(*values, start=0):
    return [{"k": "ab"[i % 2], "ts": 1_000 * i, "v": v} for i, v in enumerate(values, start)]


class Steps:
    """A source that gives its batches one after the other, when the test asks for them."""

    def __init__(self, *batches):
        self.batches = batches
        self.allowed = threading.Semaphore(0)

    def __iter__(self):
        for batch in self.batches:
            while not self.allowed.acquire(timeout=0.05):
                yield keyed.PAUSE
            yield from batch
            yield keyed.PAUSE


def counts(source, **options):
    stream = keyed.stream(source, timestamp="ts", on_bad_row=BAD)
    return stream.key_by("k").process(Count(), output="k string, n bigint", name="counts", **options)


@contextmanager
def running(source, metrics, *, changelog=None, **options):
    """A query that is stopped in the end."""
    query = counts(source, changelog=changelog).start(keyed.collect_sink(), metrics=metrics, **options)
    try:
        yield query
    finally:
        query.stop()


def wait_for(query, batch):
    """Wait until a batch is committed."""
    until(lambda: query.progress is not None and query.progress.batch_id >= batch)


@pytest.fixture
def port():
    """A port that is free."""
    return free_port()


def read(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300) as answer:
        return answer.read().decode()


def parsed(text):
    """The samples of a text: (name, operator) → value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("query") == "counts"
            found[sample.name, sample.labels.get("operator", "")] = sample.value
    return found


def test_a_scrape_of_a_running_query_has_the_counters_of_its_last_batch(port, tmp_path):
    source = Steps(rows(1, 2, 3, 4), [*rows(5, start=9), {"k": None, "ts": 9_000, "v": 1}], [])
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    options = {"checkpoint": tmp_path / "c", "processing_time": lambda: 60_000}
    with running(source, Prometheus(port), changelog=changelog, **options) as query:
        assert ("keyed_rows_in_total", "counts") not in parsed(read(port))
        for batch in (0, 1):
            source.allowed.release()
            wait_for(query, batch)
        until(lambda: parsed(read(port))["keyed_changelog_lag_seconds", ""] == 0)
        found = parsed(read(port))
        counters = query.metrics()["counts"]
    assert found["keyed_rows_in_total", "counts"] == 5
    assert found["keyed_rows_bad_total", "counts"] == 1
    assert found["keyed_query_status", ""] == 1
    assert found["keyed_batches_total", ""] == 2
    assert found["keyed_watermark_seconds", ""] == 8.999
    assert found["keyed_watermark_lag_seconds", ""] == 60 - 8.999
    assert found["keyed_timers_pending", "counts"] == 1
    assert counters.keys() <= {each.counter for each in OF_OPERATORS} | {each.name for each in OF_QUERY}
    for metric in OF_OPERATORS:
        if metric.counter in counters:
            assert found[metric.prometheus_name, "counts"] == counters[metric.counter] / metric.scale, metric.name


def test_the_port_and_its_thread_end_with_the_query(port):
    before = set(running_threads)
    counts(rows(1, 2)).run(metrics=Prometheus(port))
    assert set(running_threads) <= before
    with pytest.raises(urllib.error.URLError):
        read(port)
    with pytest.raises(keyed.errors.UserFunctionError):
        counts(rows(-1)).run(metrics=Prometheus(port))
    with pytest.raises(urllib.error.URLError):
        read(port)
    query = counts(rows(-1)).start(keyed.collect_sink(), metrics=Prometheus(port))
    with pytest.raises(keyed.errors.UserFunctionError):
        query.await_termination()
    until(lambda: set(running_threads) <= before)


def test_a_port_in_use_is_refused_before_any_damage(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = counts(rows(1)).to(keyed.collect_sink())
        for call in (keyed.run, keyed.start):
            with pytest.raises(DefinitionError, match=f"127.0.0.1:{port} cannot be opened.*choose another port"):
                call(output, checkpoint=tmp_path / "c", metrics=Prometheus(port))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("options", "message"), CASES["options of Prometheus"])
def test_bad_options_are_refused(options, message):
    with pytest.raises(DefinitionError, match=message):
        Prometheus(**options)


def test_another_object_is_refused():
    with pytest.raises(DefinitionError, match=r"metrics=9464 must be a keyed.metrics.Prometheus"):
        counts(rows(1)).run(metrics=9464)


def test_a_failing_scrape_is_answered_counted_and_logged_once(port, caplog, monkeypatch):
    source = Steps(rows(1))
    with running(source, Prometheus(port)) as query:
        monkeypatch.setattr(JobMetrics, "samples", lambda self: 1 / 0)
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                read(port)
        assert query.metrics()["counts"]["metrics_failures"] == 3
        assert "ZeroDivisionError" in repr(query)
        monkeypatch.undo()
        assert parsed(read(port))["keyed_metrics_failures_total", ""] == 3
        assert "ZeroDivisionError" not in repr(query)
        source.allowed.release()
        assert query.await_termination(300)
    assert [each.message for each in caplog.records if "division" in each.message] == [
        f"the export of metrics at 127.0.0.1:{port}: division by zero; retrying; further failures are counted"
    ]


def test_a_file_has_the_last_values(tmp_path):
    file = tmp_path / "counts.prom"
    counts(rows(1, 2, 3)).run(metrics=Prometheus(file=file))
    found = parsed(file.read_text())
    assert found["keyed_rows_in_total", "counts"] == 3
    assert found["keyed_query_status", ""] == 3
    assert found["keyed_watermark_seconds", ""] == float("inf")
    assert [each.name for each in tmp_path.iterdir()] == ["counts.prom"]


def test_a_file_is_replaced_while_the_query_runs_and_its_failures_do_not_end_it(tmp_path):
    folder = tmp_path / "metrics"
    folder.mkdir()
    file = folder / "counts.prom"
    source = Steps(rows(1), rows(2), rows(3))
    with running(source, Prometheus(file=file, every=1)) as query:
        source.allowed.release()
        until(lambda: parsed(file.read_text()).get(("keyed_rows_in_total", "counts")) == 1)
        folder.rename(tmp_path / "away")
        until(lambda: query.metrics()["counts"]["metrics_failures"] > 0)
        source.allowed.release()
        until(lambda: query.metrics()["counts"]["rows_in"] == 2)
        (tmp_path / "away").rename(folder)
        until(lambda: parsed(file.read_text())["keyed_rows_in_total", "counts"] == 2)
        source.allowed.release()
        assert query.await_termination(300)
    assert query.status.value == "closed"


def test_what_a_killed_program_left_of_a_file_is_removed(tmp_path):
    for name in (".counts.prom.17.tmp", ".other.prom.17.tmp"):
        (tmp_path / name).touch()
    counts(rows(1)).run(metrics=Prometheus(file=tmp_path / "counts.prom"))
    assert sorted(each.name for each in tmp_path.iterdir()) == [".other.prom.17.tmp", "counts.prom"]


def test_two_queries_do_not_write_one_file(tmp_path, caplog):
    file = tmp_path / "counts.prom"
    source = Steps(rows(1))
    with running(source, Prometheus(file=file, every=1)) as query:
        with pytest.raises(DefinitionError, match="another query of this program writes the file"):
            counts(rows(1)).run(metrics=Prometheus(file=file))

        def is_reported():
            # As another program does.
            (tmp_path / "other").write_text("")
            (tmp_path / "other").replace(file)
            return "give each query a file of its own" in caplog.text

        until(is_reported)
        assert query.metrics()["counts"]["metrics_failures"] > 0
        source.allowed.release()
        assert query.await_termination(300)
    counts(rows(1)).run(metrics=Prometheus(file=file))


def test_a_file_that_cannot_be_written_is_refused_before_any_damage(tmp_path):
    with pytest.raises(DefinitionError, match="cannot be written"):
        counts(rows(1)).run(checkpoint=tmp_path / "c", metrics=Prometheus(file=tmp_path / "missing" / "counts.prom"))
    assert not (tmp_path / "c").exists()


def observed(reader):
    """What OpenTelemetry has collected: (name, query, operator) → value, and its units."""
    data = reader.get_metrics_data()
    found, units = {}, {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data is not None else ():
        units[metric.name] = metric.unit
        for point in metric.data.data_points:
            found[metric.name, point.attributes["query"], point.attributes.get("operator", "")] = point.value
    return found, units


def test_opentelemetry_observes_all_running_queries_of_a_provider_and_only_those():
    reader = InMemoryMetricReader()
    export = OpenTelemetry(MeterProvider(metric_readers=[reader]))
    sources = Steps(rows(1), []), Steps(rows(1, 2), [])
    queries = [counts(each).start(keyed.collect_sink(), metrics=export) for each in sources[:1]]
    try:
        other = keyed.stream(sources[1], timestamp="ts").key_by("k").process(Count(), name="others")
        queries.append(other.start(keyed.collect_sink(), metrics=export))
        for source, query in zip(sources, queries, strict=True):
            source.allowed.release()
            wait_for(query, 0)
        found, units = observed(reader)
        assert found["keyed.rows_in", "counts", "counts"] == 1
        assert found["keyed.rows_in", "others", "others"] == 2
        assert found["keyed.batches", "counts", ""] >= 1
        assert (units["keyed.rows_in"], units["keyed.live_entries"]) == ("{row}", "{entry}")
        assert (units["keyed.live_bytes"], units["keyed.watermark_lag_seconds"]) == ("By", "s")
        queries[0].stop()
        found, _ = observed(reader)
        assert {query for _, query, _ in found} == {"others"}
    finally:
        for query in queries:
            query.stop()
    assert observed(reader)[0] == {}


def test_a_failing_collection_is_counted_once_and_hides_no_other_query(monkeypatch):
    reader = InMemoryMetricReader()
    config = OpenTelemetry(MeterProvider(metric_readers=[reader]))
    broken, sound = JobMetrics("broken", []), JobMetrics("sound", [])
    exports = [metrics_export._Callbacks(config, each) for each in (broken, sound)]
    monkeypatch.setattr(broken, "samples", lambda: 1 / 0)
    found, _ = observed(reader)
    assert {query for _, query, _ in found} == {"sound"}
    assert [each.work.failures for each in exports] == [1, 0]
    observed(reader)
    assert [each.work.failures for each in exports] == [2, 0]
    for each in exports:
        each.close()


def test_opentelemetry_without_a_provider_is_refused():
    with pytest.raises(DefinitionError, match="set up no meter provider"):
        counts(rows(1)).run(metrics=OpenTelemetry())
    with pytest.raises(DefinitionError, match="must be a MeterProvider"):
        counts(rows(1)).run(metrics=OpenTelemetry("http://collector"))


@pytest.mark.parametrize(
    ("module", "export"),
    [
        ("opentelemetry.metrics", OpenTelemetry()),
        ("prometheus_client", Prometheus(9464)),
        ("prometheus_client", Prometheus(file="a.prom")),
    ],
)
def test_an_export_names_its_extra(module, export, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    name = module.removesuffix(".metrics").removesuffix("_client")
    with pytest.raises(ExtraNotInstalled, match=rf"pip install 'keyed-streams\[{name}\]'"):
        counts(rows(1)).run(metrics=export)


def test_lags_are_those_of_the_moment():
    now = 100_000
    exported: bool | None = None
    metrics = JobMetrics("counts", ["counts"])
    metrics.source = MetricsSource(lambda: None, dict, lambda: exported, lambda: now)

    def values():
        return {each.metric.name: each.value for each in metrics.samples()[0] if not each.operator}

    assert "watermark_lag_seconds" not in values()
    metrics.add(Progress(0, 0, keyed.MIN_TIMESTAMP, 0, {}, 1), committed=0.0)
    assert not {"watermark_lag_seconds", "watermark_seconds", "changelog_lag_seconds"} & values().keys()
    metrics.add(Progress(1, 5, 70_000, 90_000, {"counts": {"rows_in": 5}}, 2_000), committed=0.0)
    metrics.add(Progress(1, 5, 70_000, 90_000, {}, 2_000))
    assert values()["watermark_lag_seconds"] == 30
    now, exported = 110_000, False
    assert values()["watermark_lag_seconds"] == 40
    assert values()["changelog_lag_seconds"] > 1e9
    assert (values()["batches"], values()["batch_seconds"], values()["last_batch_seconds"]) == (2, 2.001, 2)
    exported = True
    assert values()["changelog_lag_seconds"] == 0
    metrics.add(Progress(2, 0, keyed.MAX_TIMESTAMP, 90_000, {}, 1))
    assert values()["watermark_seconds"] == float("inf")
    assert "watermark_lag_seconds" not in values()


def test_every_counter_and_status_is_exported():
    assert {each.counter for each in OF_OPERATORS if each.kind == "counter"} == {*COUNTERS}
    assert len({each.name for each in METRICS}) == len(METRICS)


def test_a_replication_is_exported_until_the_context_ends(tmp_path, monkeypatch):
    counters = dict.fromkeys((each.name for each in OF_REPLICATIONS), 2)
    replication = Replication.__new__(Replication)
    replication.table = "sales.by_day"
    monkeypatch.setattr(replication, "metrics", lambda: counters)
    file = tmp_path / "copy.prom"
    with keyed.metrics.export(replication, Prometheus(file=file)):
        pass
    families = {each.name: each for each in text_string_to_metric_families(file.read_text())}
    assert {each.prometheus_name.removesuffix("_total") for each in OF_REPLICATIONS} == {*families}
    assert families["keyed_replication_lag"].samples[0].labels == {"query": "sales.by_day"}
    assert families["keyed_replication_lag"].samples[0].value == 2
    with pytest.raises(DefinitionError, match="give the result of StateTable"):
        keyed.metrics.export("sales", Prometheus(file=file)).__enter__()  # type: ignore[arg-type]


@contextmanager
def failed_replication(tmp_path, log, export):
    """A replication whose tables have failed."""
    counts(rows(1, 2), changelog=log).run(checkpoint=tmp_path / "c")
    with open_tables(log, tmp_path / "tables").start(every=0.01) as tables:
        copy = tables["count"].replicate(keyed.delta_sink(tmp_path / "delta", mode="upsert", key=["k"]))
        with keyed.metrics.export(copy, export):
            copy.wait_for(0, 300)
            shutil.rmtree(tmp_path / "tables")
            until(lambda: copy.status is Status.FAILED)
            yield "replication_status", "replication_failures"


@contextmanager
def failed_tables(tmp_path, log, export):
    """A running query whose tables have failed."""
    source = Steps(rows(1), rows(2))
    query = counts(source, changelog=log).start(
        keyed.collect_sink(), checkpoint=tmp_path / "c", tables=tmp_path / "tables", metrics=export
    )
    try:
        source.allowed.release()
        wait_for(query, 0)
        query.tables.wait_for(0, 300)
        shutil.rmtree(tmp_path / "tables")
        until(lambda: query.tables.status is Status.FAILED)
        yield "tables_status", "rows_in"
    finally:
        with suppress(keyed.errors.KeyedError):
            query.stop()


@contextmanager
def failed_batches(tmp_path, log, export):
    """A query whose batches cannot be read, as those of a Spark query whose export has failed."""
    metrics = JobMetrics("counts", ["counts"])
    running = metrics_export._begun(export, metrics)
    metrics.source = MetricsSource(
        lambda: 1 / 0, lambda: {"export_status": Status.FAILED.number, "query_status": 1}, lambda: None
    )
    yield "export_status", "query_status"
    assert isinstance(running.work.trouble, ZeroDivisionError)
    assert running.work.failures == 1
    running.close()


@pytest.mark.parametrize("failed", [failed_replication, failed_tables, failed_batches])
def test_the_status_of_a_part_that_has_failed_is_on_the_page_and_in_opentelemetry(failed, port, tmp_path):
    logs = [keyed.DirectoryChangelog(tmp_path / name / "log") for name in "ab"]
    with failed(tmp_path / "a", logs[0], Prometheus(port)) as (status, other):
        text = read(port)
    found = {each.name: each.samples[0].value for each in text_string_to_metric_families(text)}
    assert found[f"keyed_{status}"] == Status.FAILED.number
    assert f"keyed_{other}" in found
    reader = InMemoryMetricReader()
    with failed(tmp_path / "b", logs[1], OpenTelemetry(MeterProvider(metric_readers=[reader]))) as (status, other):
        found = {name: value for (name, *_), value in observed(reader)[0].items()}
    assert found[f"keyed.{status}"] == Status.FAILED.number
    assert f"keyed.{other}" in found


def test_the_file_of_a_query_that_failed_has_the_status_of_its_tables(tmp_path):
    file, log = tmp_path / "counts.prom", keyed.DirectoryChangelog(tmp_path / "log")
    query = counts(rows(1, -1), changelog=log).start(
        keyed.collect_sink(),
        checkpoint=tmp_path / "c",
        tables=tmp_path / "tables",
        metrics=Prometheus(file=file),
        rows_per_batch=1,
    )
    with pytest.raises(keyed.errors.UserFunctionError):
        query.await_termination(300)
    found = parsed(file.read_text())
    assert (found["keyed_query_status", ""], found["keyed_tables_status", ""]) == (2, Status.CLOSED.number)


def test_the_counters_of_a_replication_are_all_exported():
    source = inspect.getsource(Replication.metrics)
    assert {*re.findall(r'"(replication_\w+)"', source)} == {each.name for each in OF_REPLICATIONS}


def test_the_dashboard_shows_metrics_that_exist():
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    texts += [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    assert len(dashboard["panels"]) == len({panel["id"] for panel in dashboard["panels"]})
    named = {name for text in texts for name in re.findall(r"keyed_\w+", text)}
    assert named <= {each.prometheus_name for each in METRICS}
    wanted = "rows_in rows_out rows_late rows_bad watermark_lag_seconds changelog_lag_seconds last_batch_seconds "
    wanted += "live_entries live_bytes timers_pending entries_replayed start_time_seconds query_status"
    assert {each.prometheus_name for each in METRICS if each.name in wanted.split()} <= named


# On Spark ------------------------------------------------------------------------------------------------------------


def counts_on_spark(source, changelog=None):
    return source.key_by("k").process(CountAll(), COUNTED, name="counts", parallelism=2, changelog=changelog)


def test_a_running_query_is_scraped_and_a_bounded_run_leaves_a_file_on_spark(spark, port, tmp_path):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(DefinitionError, match="cannot be opened"):
        counts_on_spark(files_source(spark, tmp_path / "in")).run(checkpoint=tmp_path / "c", metrics=Prometheus(port))
    assert not (tmp_path / "c").exists()

    def scraped():
        return parsed(read(port))

    seen: list[keyed.Progress] = []
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    write_file(tmp_path / "in", 0, [("a", 1_000, 1), ("b", 2_000, 1), ("c", 3_000, 1)])
    query = counts_on_spark(files_source(spark, tmp_path / "in"), changelog).start(
        tmp_path / "out",
        checkpoint=tmp_path / "c",
        trigger="100 milliseconds",
        metrics=Prometheus(port),
        on_progress=seen.append,
    )
    try:
        until(lambda: scraped().get(("keyed_rows_in_total", "counts")) == 3)
        until(lambda: scraped()["keyed_changelog_lag_seconds", ""] == 0)
        assert seen == []  # a scrape calls nobody
        found = scraped()
        counters = query.metrics()["counts"]
        for name in ("rows_in", "live_entries", "live_bytes", "timers_pending"):
            suffix = "_total" if name == "rows_in" else ""
            assert found[f"keyed_{name}{suffix}", "counts"] == counters[name], name
        assert found["keyed_watermark_seconds", ""] == 2.999
        assert found["keyed_watermark_lag_seconds", ""] > 1e9
        assert found["keyed_last_batch_seconds", ""] > 0
        assert (found["keyed_query_status", ""], found["keyed_export_status", ""]) == (1, 1)
        assert found["keyed_export_failures_total", ""] == 0
        assert seen
    finally:
        query.stop()
    with pytest.raises(urllib.error.URLError):
        scraped()

    file = tmp_path / "counts.prom"
    write_file(tmp_path / "in", 1, [("a", 4_000, 1)])
    counts_on_spark(files_source(spark, tmp_path / "in"), changelog).run(
        tmp_path / "out", checkpoint=tmp_path / "c", metrics=Prometheus(file=file)
    )
    found = parsed(file.read_text())
    assert found["keyed_rows_in_total", "counts"] == 4
    assert (found["keyed_query_status", ""], found["keyed_changelog_lag_seconds", ""]) == (3, 0)

    batch = spark.createDataFrame([("a", 1_000, 1)], SCHEMA)
    counts_on_spark(keyed.stream(batch, timestamp="t")).run(metrics=Prometheus(file=file))
    found = parsed(file.read_text())
    assert (found["keyed_rows_in_total", "counts"], found["keyed_query_status", ""]) == (1, 3)
