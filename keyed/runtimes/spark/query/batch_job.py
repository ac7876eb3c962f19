"""A chain over a batch DataFrame, whose end is the end of the input."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from keyed.base.background import Status
from keyed.base.ids import random_id
from keyed.errors import DefinitionError
from keyed.job.chaining import lines
from keyed.job.graph import BoundOutput, Stage
from keyed.job.options import Options
from keyed.job.results import RunResult
from keyed.recovery.cut import cut_of
from keyed.runtimes.job_metrics import MetricsSource
from keyed.runtimes.metrics_export import MetricsExport
from keyed.runtimes.run_results import result_of
from keyed.runtimes.spark.plan.build import parallelism_of
from keyed.runtimes.spark.query.failures import raise_translated
from keyed.runtimes.spark.query.group_marks import marks_of, summed
from keyed.runtimes.spark.query.job import PARTITIONS, Job, partitions_of
from keyed.runtimes.spark.query.spark_sinks import Writer
from keyed.runtimes.spark.query.table_files import table_now
from keyed.runtimes.spark.session.spark_session import settings, shares_files


class BatchJob(Job):
    """A chain over a batch DataFrame.

    Args:
        last: The last stage.
        outputs: Outputs of the chain with their sinks.
        options: The user's options.
        export: The export of its metrics.

    Raises:
        DefinitionError: It has a changelog.
        ChangelogError: The state of a changelog cannot be restored.
    """

    def __init__(self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options, export: MetricsExport) -> None:
        super().__init__(last, outputs, options, export)
        self._drains = options.drain is not False
        options.refuse({"record": "is for a stream: a batch DataFrame has no changelog to replay over; leave it out"})
        if self._changelogs:
            option = f"changelog={next(iter(self._changelogs.values()))!r}"
            if options.tables is not None:
                option = f"tables={os.fspath(options.tables)!r}"
            raise DefinitionError(
                f"{option}: a batch DataFrame has no checkpoint whose commits could be exported; leave it out, or read "
                "a stream and run it with a checkpoint"
            )
        self._cut = cut_of(self.points) if self.points else None

    def run(self) -> RunResult:
        """Run to the end of the input."""
        began = time.monotonic()
        status = Status.STARTING
        self.export.metrics.source = MetricsSource(
            lambda: None, lambda: {"query_status": status.number, **self.export.statuses()}, lambda: None
        )
        parallelism = parallelism_of(self._last) or partitions_of(self._session)
        tables = partial(table_now, self._session, False)
        plan = self._built(lines(self._last), parallelism, end=self._drains, tables=tables)
        # This program writes the outputs, also over Spark Connect.
        mounted = shares_files(self._session) and not self._remote
        writer = Writer(plan.routes, [bound.sink for bound in self._outputs], mounted, queries=[random_id()])
        with settings(self._session, {PARTITIONS: str(parallelism)}):
            try:
                writer.write(plan.frame, 0)
            except Exception as error:  # noqa: BLE001 - it is raised again, translated
                status = Status.FAILED
                raise_translated(error, f"{self.title}{writer.place}")
        marks: dict[str, list[dict[str, Any]]] = {}
        for observation in plan.observations.values():
            marks |= marks_of(observation.get["marks"])
        observed = {name: summed(each) for name, each in marks.items()}
        progress = self._progress(0, None, observed, int((time.monotonic() - began) * 1000))
        self.export.metrics.add(progress)
        status = Status.CLOSED
        self._warn(progress, marks)
        self._warnings.end(of_input=True)
        self.report(progress)
        return result_of(self._outputs, range(1), progress.metrics, self.restored)
