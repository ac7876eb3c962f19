"""A job of three chained operators with a changelog each, sinks of all three, and a record of its batches.

What it writes depends on its rows and the size of its batches alone. Run as a program in a process that a test kills.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, ValueState, windows
from keyed.recovery import verify
from tests.keyed.runtimes.local import job
from tests.support.explained import explained

OUTPUT = "item string, at bigint, n bigint"
OPERATORS = ("windows", "highest", "sums")


class Highest(KeyedProcessFunction):
    """Hands on what is more than each count before, and tells the highest 30 ms later."""

    highest = ValueState(int, default=0)

    def process_element(self, value, ctx):
        if value.kind == "window" and value.n > self.highest.value():
            self.highest.update(value.n)
            ctx.timer_service().register_event_time_timer(value.at + 30)
            yield value.item, value.at, value.n

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.highest.value()


def run(folder: Path) -> Any:
    """Run the job to its end, or from where it stopped."""
    source = job.Source()
    stream = keyed.stream(source, timestamp="ts", watermark=keyed.bounded_out_of_orderness(milliseconds=20))
    given: dict[str, dict[str, Any]] = {
        name: {"name": name, "parallelism": 3, "changelog": DirectoryChangelog(folder / "log" / name)}
        for name in OPERATORS
    }
    first = stream.key_by("item").process(
        job.Windows(), "item string, kind string, at bigint, n bigint", store="rocksdb", **given["windows"]
    )
    highest = first.key_by("item").process(Highest(), OUTPUT, **given["highest"])
    sums = highest.key_by("item").window(windows.TumblingEventTimeWindows.of(500))
    last = sums.aggregate({"n": windows.Count(), "most": windows.Max("n")}, **given["sums"])
    assert explained(last).count("chained to") == 2
    outputs = {"late": first.side_output(job.LATE), "windows": first, "totals": highest, "sums": last}
    return keyed.run(
        *(output.to(folder / name) for name, output in outputs.items()),
        checkpoint=folder / "checkpoint",
        rows_per_batch=job.ROWS_PER_BATCH,
        processing_time=source.clock,
        record=folder / "recorded",
    )


def written(folder: Path) -> dict[str, Any]:
    """The rows of each file of the sinks and of the record, and what the changelogs hold in the end."""
    found: dict[str, Any] = {}
    for name in OPERATORS:
        log = DirectoryChangelog(folder / "log" / name)
        groups = verify(log)
        assert [group.problem for group in groups] == [""] * 3
        found[name] = [
            (
                c.commit.group,
                c.commit.sequence,
                c.commit.watermark,
                c.commit.hash,
                c.state,
                c.key,
                c.entry,
                repr(c.value),
            )
            for c in keyed.recovery.read_changelog(DirectoryChangelog(folder / "log" / name))
        ]
    return found | job.files_of(folder, "late", "windows", "totals", "sums", "recorded")
