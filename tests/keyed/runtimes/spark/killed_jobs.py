"""Jobs that tests run as a `Program`, to kill, interrupt or contend with them.

Each reads ``FOLDER/in``, one file a batch, and keeps its checkpoint in ``FOLDER/checkpoint``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

import keyed
from keyed.patterns import Pattern
from keyed.runtimes.spark.query import spark_query
from tests.keyed.runtimes.spark.functions import (
    BIG,
    RATES,
    RULES,
    Best,
    BestColumns,
    Convert,
    Limits,
    Mishap,
    MishapColumns,
    best,
    count,
    files,
    files_source,
)
from tests.support.spark_programs import say, say_batch, start_session
from tests.support.waiting import until

#: The functions of both stages of `rank_windows`.
KINDS = {"rows": (Mishap, Best), "columns": (MishapColumns, BestColumns)}

PATTERN = (
    Pattern.begin("small", where="v < 20")
    .followed_by("middle", where=lambda row, match: row.v > match["small"][0].v)
    .followed_by("large", where="v > 80")
    .within(milliseconds=100)
)


def rank_windows(folder: Path, master: str, store: str, kind: str) -> None:
    """Write ``FOLDER/best``, ``FOLDER/windows`` and ``FOLDER/late``."""
    session = start_session(folder, master)
    source = files_source(session, folder / "in", watermark=keyed.bounded_out_of_orderness(milliseconds=30))
    first, second = KINDS[kind]
    windows, ranked = best(source, store=store, function=first(str(folder)), then=second())
    keyed.run(
        ranked.to(folder / "best"),
        windows.to(folder / "windows"),
        windows.side_output(BIG).to(folder / "late"),
        checkpoint=folder / "checkpoint",
        local_dir=folder / "stores",
        drain=True,
        on_progress=say_batch,
    )
    say("DONE")


def await_signal(folder: Path) -> None:
    """Wait for the end of a query with a changelog in ``FOLDER/log``, and print the status at the end."""
    # On a busy machine the last batch does not get into its changelog within ten seconds.
    spark_query._PATIENCE = 200
    source = files_source(start_session(folder), folder / "in")
    counted = count(source, parallelism=2, changelog=keyed.DirectoryChangelog(folder / "log"))
    query = counted.start(
        folder / "out", checkpoint=folder / "checkpoint", trigger="200 milliseconds", on_progress=say_batch
    )
    try:
        query.await_termination()
    finally:
        say(f"ENDED {query.await_termination()}, {query.status.value}")


def lose_jvm(folder: Path, how: str) -> None:
    """Kill the JVM of a query, which it waits for or stops, or run the query if that is how."""
    job = count(files_source(start_session(folder), folder / "in"), changelog=keyed.DirectoryChangelog(folder / "log"))
    if how == "runs":
        job.run(folder / "out", checkpoint=folder / "checkpoint")
        return
    query = job.start(folder / "out", checkpoint=folder / "checkpoint", trigger="100 milliseconds")
    until(lambda: query.progress is not None and query.progress.batch_id >= 0)
    for child in psutil.Process().children(recursive=True):
        if child.name() == "java":
            child.kill()
    if how == "waits":
        query.await_termination()
    until(lambda: query.status.value == "failed")
    assert not query.is_active
    query.stop()
    sys.exit()


def run_without_end(folder: Path, forks: bool) -> None:
    """Run a query, print its JVM and, if asked, a process that keeps the JVM's standard input open."""
    session = start_session(folder)
    query = count(files_source(session, folder / "in"), parallelism=1).start(
        folder / "out", checkpoint=folder / "checkpoint", trigger="200 milliseconds", on_progress=say_batch
    )
    child = os.fork() if forks else None
    if child == 0:
        signal.pause()
        os._exit(0)
    say("PIDS", session.sparkContext._gateway.proc.pid, child or 0)
    query.await_termination()


def contend(folder: Path, name: str, rounds: int) -> None:
    """Run a query in each round, in a folder of its own, as another program does at the same time.

    In each round it prints ``READY``, waits for the file ``go`` in the folder of the round, and runs the query. It
    prints ``DONE``, or ``REFUSED`` and why.
    """
    (folder / name).mkdir()
    session = start_session(folder / name)
    for number in range(rounds):
        own = folder / str(number)
        say("READY", number)
        until((own / "go").exists, seconds=600)
        counted = count(files_source(session, own / "in"), parallelism=2)
        try:
            counted.run(own / "out", checkpoint=own / "checkpoint", on_progress=say_batch)
            say("DONE", number)
        except keyed.KeyedError as error:
            say("REFUSED", number, type(error).__name__, *str(error).split("\n")[:2])


def matches(data: Any, folder: Path) -> Any:
    """Return the matches of a pattern, with a changelog in ``FOLDER/log``."""
    stream = keyed.stream(data, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=40)).key_by("k")
    return stream.match(PATTERN).select(
        lambda match: tuple(rows[0].t for rows in match.values()),
        output="small bigint, middle bigint, large bigint",
        name="matches",
        parallelism=2,
        changelog=keyed.DirectoryChangelog(folder / "log"),
    )


def match_until_killed(folder: Path) -> None:
    """Find a pattern, and write ``FOLDER/out``."""
    output = matches(files(start_session(folder), folder / "in"), folder).to(folder / "out")
    keyed.start(output, checkpoint=folder / "checkpoint", trigger="100 milliseconds").await_termination()


def apply_rules(folder: Path) -> None:
    """Write to ``FOLDER/sink`` how many of the rules in ``FOLDER/rules`` a row reaches."""
    session = start_session(folder)
    rows, rules = (files_source(session, folder / name) for name in ("in", "rules"))
    job = rows.key_by("k").connect(rules.broadcast(RULES))
    _run(job.process(Limits(), "k string, n bigint, reached bigint", parallelism=2), folder)


def convert_currencies(folder: Path) -> None:
    """Write to ``FOLDER/sink`` the rate of each row's currency in the table ``FOLDER/rates.parquet``."""
    source = files(start_session(folder), folder / "in").selectExpr("CAST(v AS STRING) AS user", "k AS currency")
    rates = keyed.global_table(folder / "rates.parquet", RATES, key="currency", every=1)
    job = keyed.stream(source).key_by("user").connect(rates)
    _run(job.process(Convert(), "user string, rate double, country string", parallelism=2), folder)


def _run(output: keyed.Output, folder: Path) -> None:
    output.run(folder / "sink", checkpoint=folder / "checkpoint", on_progress=say_batch)
    say("DONE")
