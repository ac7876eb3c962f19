"""The progress of a run in the log and on a terminal, with a clock of the test's own."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keyed
from keyed.job.results import Progress
from keyed.runtimes.run_reports import ProgressLines
from tests.support.jobs import Pass

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys, time, keyed
from tests.support.jobs import Pass
def rows():
    start = time.monotonic()
    while time.monotonic() < start + 1.2:
        yield {"k": "a"}
        yield keyed.PAUSE
        time.sleep(0.05)
keyed.stream(rows()).key_by("k").process(Pass()).run()
"""


class Terminal(io.StringIO):
    """Has the text that a user sees in a line."""

    @property
    def seen(self) -> str:
        return self.getvalue().rpartition("\x1b[K")[2].rstrip("\r")


def progress(rows: int, watermark: int = 86_400_000) -> Progress:
    return Progress(0, rows, watermark, 0, {})


def test_a_log_line_comes_every_five_seconds_with_rows_rate_and_event_time(caplog: Any) -> None:
    now = [0.0]
    lines = ProgressLines("f", clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "keyed"):
        for second in range(1, 12):
            now[0] = float(second)
            lines.add(progress(1000))
    time = "watermark 86400000 (1970-01-02 00:00:00.000 UTC)"
    assert caplog.messages == [
        f"'f': 5,000 rows in 5 batches, 1,000 rows/s, {time}",
        f"'f': 10,000 rows in 10 batches, 1,000 rows/s, {time}",
    ]


def test_the_line_on_a_terminal_moves_also_without_rows_and_is_erased_at_the_end() -> None:
    now = [0.0]
    terminal = Terminal()
    lines = ProgressLines("f", terminal, clock=lambda: now[0])
    lines.add(progress(10))
    assert terminal.getvalue() == "", "a short run shows nothing"
    now[0] = 0.5
    lines.look()
    assert terminal.seen.startswith("10 rows in 1 batches, 20 rows/s, watermark 86400000")
    now[0] = 1.5
    lines.look()
    assert ", 0 rows/s," in terminal.seen
    lines.close()
    assert terminal.seen == ""
    before = terminal.getvalue()
    lines.close()
    assert terminal.getvalue() == before


def printed(stderr: int) -> None:
    """Run a program that takes a second."""
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=stderr, stdout=subprocess.DEVNULL, check=True)


def test_a_run_shows_the_line_on_a_terminal_and_nothing_in_a_pipe(tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    try:
        printed(terminal)
        text = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(terminal)
    assert "rows in" in text
    assert text.endswith("\x1b[K")
    with (tmp_path / "stderr").open("w") as file:
        printed(file.fileno())
    assert (tmp_path / "stderr").read_text() == ""


def test_a_run_whose_program_follows_its_progress_shows_no_line(monkeypatch: Any) -> None:
    made: list[Any] = []
    monkeypatch.setattr("keyed.runtimes.local.local_query.ProgressLines", lambda *given: made.append(given))
    keyed.stream([{"k": "a"}]).key_by("k").process(Pass()).run(on_progress=lambda progress: None)
    assert made == []
