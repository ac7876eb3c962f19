"""Queries that start and end in one session leave nothing of py4j behind."""

from __future__ import annotations

import gc
import threading

import psutil
import pytest

import keyed
from keyed.errors import KeyedError
from tests.keyed.runtimes.spark.functions import POISON, count, files_source, write_file
from tests.support.waiting import until

ROUNDS, KEPT = 2, 3


def test_a_query_that_ends_leaves_no_thread_descriptor_or_function(spark, tmp_path):
    gateway = spark.sparkContext._gateway
    pool = gateway.gateway_property.pool

    def collected():
        # Spark keeps what ended last.
        gc.collect()
        gateway.jvm.System.gc()
        return len(pool) <= kept

    def end(folder, how):
        write_file(folder / "in", 0, [("a", 1, POISON if how == "fail" else 1)])
        counted = count(files_source(spark, folder / "in"), parallelism=1)
        if how == "run":
            counted.run(keyed.collect_sink(), checkpoint=folder / "checkpoint")
            return
        query = counted.start(keyed.collect_sink(), checkpoint=folder / "checkpoint", trigger="100 milliseconds")
        if how == "fail":
            with pytest.raises(KeyedError, match="poison"):
                query.await_termination(300)
            return
        until(lambda: query.progress is not None)
        query.stop()

    end(tmp_path / "first", "run")
    gc.collect()
    gateway.jvm.System.gc()
    kept = len(pool) + KEPT
    # The JVM keeps a connection for its finalizer once that has found something.
    threads, descriptors = threading.active_count() + 1, psutil.Process().num_fds() + 1
    for number in range(ROUNDS):
        for how in ("run", "stop", "fail"):
            end(tmp_path / f"{number}-{how}", how)
            until(lambda: threading.active_count() <= threads)
    until(collected, report=lambda: f"{len(pool)} > {kept}")
    until(lambda: threading.active_count() <= threads)
    until(lambda: psutil.Process().num_fds() <= descriptors)
