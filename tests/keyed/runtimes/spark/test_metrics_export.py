"""Exports of metrics from Spark: scrapes of a running query, files of bounded runs."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import keyed
from keyed.errors import DefinitionError
from keyed.metrics import Prometheus
from tests.keyed.runtimes.spark.functions import SCHEMA, Count, files_source, write_file
from tests.support.limits import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def parsed(text):
    """The samples of a text: (name, operator) → value."""
    return {
        (sample.name, sample.labels.get("operator", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counts(source, changelog=None):
    return source.key_by("k").process(
        Count(), output="k string, n bigint, total bigint", name="counts", parallelism=2, changelog=changelog
    )


def test_a_running_query_is_scraped_and_a_bounded_run_leaves_a_file(spark, tmp_path):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(DefinitionError, match="cannot be opened"):
        counts(files_source(spark, tmp_path / "in")).run(checkpoint=tmp_path / "c", metrics=Prometheus(port))
    assert not (tmp_path / "c").exists()

    def scraped():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            return parsed(answer.read().decode())

    seen: list[keyed.Progress] = []
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    write_file(tmp_path / "in", 0, [("a", 1_000, 1), ("b", 2_000, 1), ("c", 3_000, 1)])
    query = counts(files_source(spark, tmp_path / "in"), changelog).start(
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
    counts(files_source(spark, tmp_path / "in"), changelog).run(
        tmp_path / "out", checkpoint=tmp_path / "c", metrics=Prometheus(file=file)
    )
    found = parsed(file.read_text())
    assert found["keyed_rows_in_total", "counts"] == 4
    assert (found["keyed_query_status", ""], found["keyed_changelog_lag_seconds", ""]) == (3, 0)

    batch = spark.createDataFrame([("a", 1_000, 1)], SCHEMA)
    counts(keyed.stream(batch, timestamp="t")).run(metrics=Prometheus(file=file))
    found = parsed(file.read_text())
    assert (found["keyed_rows_in_total", "counts"], found["keyed_query_status", ""]) == (1, 3)
