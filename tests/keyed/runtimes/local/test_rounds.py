"""Runs of all kinds, again and again: threads, descriptors and temporary files stay as they are.

``KEYED_ROUNDS=100`` runs fewer than a thousand of each.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import keyed
from keyed.metrics import OpenTelemetry
from keyed.tables import open_tables
from tests.support.s3 import KEY_ID, SECRET, S3Server, s3_server
from tests.support.waiting import no_more, until

ROUNDS = int(os.environ.get("KEYED_ROUNDS", "1000"))
#: Rounds before the first count: caches, pools of threads and imports have their size then.
WARM_UP = 20


class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        if value["n"] < 0:
            raise LookupError("unlucky")
        self.count.update(self.count.value() + 1)
        yield ctx.get_current_key(), self.count.value()


def counts(rows: Any, **options: Any) -> Any:
    return keyed.stream(rows).key_by("k").process(Count(), "k string, n bigint", name="count", **options)


ROWS = [{"k": "ab"[n % 2], "n": n} for n in range(4)]
Round = Callable[[Path], None]


class Kinds:
    """The kinds of rounds: each method is one, over a folder of its own.

    Args:
        server: A server for changelogs in an object store.
    """

    def __init__(self, server: S3Server) -> None:
        self._options = {
            "endpoint": server.url,
            "allow_http": True,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
        }
        self._server = server
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader])

    def run(self, folder: Path) -> None:
        assert len(counts(ROWS).run().values) == 4

    def started_and_stopped(self, folder: Path) -> None:
        def rows() -> Iterator[Any]:
            yield from ROWS
            while True:
                yield keyed.PAUSE

        query = counts(rows()).start(keyed.collect_sink())
        until(lambda: query.progress is not None)
        query.stop()

    def failing(self, folder: Path) -> None:
        with pytest.raises(keyed.errors.UserFunctionError):
            counts([*ROWS, {"k": "a", "n": -1}]).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(ROWS, changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported_now_and_then(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log", export_interval=10_000)
        counts(ROWS, changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported_to_a_store(self, folder: Path) -> None:
        log = keyed.ObjectStoreChangelog("s3://bucket/log", self._options)
        counts(ROWS, changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)
        self._server.objects.clear()

    def restored(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(ROWS, changelog=log).run(checkpoint=folder / "checkpoint", drain=False)
        result = counts(ROWS, restore_from=log, parallelism=3).run(checkpoint=folder / "restored")
        assert result.restored is not None

    def on_disk(self, folder: Path) -> None:
        counts(ROWS, store="rocksdb").run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def to_files(self, folder: Path) -> None:
        counts(ROWS).run(folder / "out", checkpoint=folder / "checkpoint", rows_per_batch=2)

    def to_iceberg(self, folder: Path) -> None:
        pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: make setup")
        place = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
        sink = keyed.iceberg_sink("lake.t", catalog="test", options=place)
        counts(ROWS).run(sink, checkpoint=folder / "checkpoint", rows_per_batch=2)

    def to_delta(self, folder: Path) -> None:
        pytest.importorskip("deltalake", reason="deltalake is not installed: make setup")
        counts(ROWS).run(keyed.delta_sink(folder / "t"), checkpoint=folder / "checkpoint", rows_per_batch=2)

    def followed(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(ROWS, changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)
        with open_tables(log, folder / "tables").start(every=0.01) as tables:
            assert tables["count"].get("a") == 2
            assert len(tables["count"].subscribe().take(0)) == 2

    def measured(self, folder: Path) -> None:
        counts(ROWS).run(metrics=OpenTelemetry(self._provider), rows_per_batch=2)
        self._reader.get_metrics_data()


KINDS = [name for name in vars(Kinds) if not name.startswith("_")]


def left(temporary: Path) -> tuple[int, int, int]:
    links = Path("/proc/self/fd")
    descriptors = len(list(links.iterdir())) if links.is_dir() else 0
    return threading.active_count(), descriptors, len(list(temporary.rglob("*")))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_leave_no_thread_descriptor_or_file(kind, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with ExitStack() as stack:
        kinds = Kinds(stack.enter_context(s3_server()))

        def rounds(number: int) -> None:
            for _ in range(number):
                folder = tmp_path / "round"
                folder.mkdir()
                getattr(kinds, kind)(folder)
                shutil.rmtree(folder)

        rounds(WARM_UP)
        before = left(temporary)
        rounds(ROUNDS)
        until(lambda: no_more(left(temporary), before), report=lambda: f"{left(temporary)}, {before} before")
