"""The page over the running job: its state tables, served on loopback."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import keyed
from examples.top_n.job import COUNT, rows_read
from keyed.tables.server import serving

_PAGE = Path(__file__).with_name("page")


class PortTaken(Exception):
    """Another program listens at the port. The message has the remedy."""


class Dashboard:
    """Serves the page from the first batch of the job until it is closed.

    Args:
        changelogs: The changelogs of the job's operators.
        folder: Folder for the tables.
        port: Port of the page, on loopback.
        rows: Rows that the job will read, if known.
        title: Heading of the page.

    Attributes:
        address: The address of the page.

    Raises:
        PortTaken: Another program listens at the port.
    """

    def __init__(
        self, changelogs: Sequence[keyed.Changelog], folder: Path, port: int, rows: int | None, title: str
    ) -> None:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            raise PortTaken(
                f"port {port}: {error.strerror}; name another one with --port, or use --headless"
            ) from error
        self.address = f"http://127.0.0.1:{port}"
        self._changelogs, self._folder, self._port, self._rows = changelogs, folder, port, rows
        self._title = title
        self._progress: keyed.Progress | None = None
        self._pace: list[tuple[float, int]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve_or_tell, name="dashboard")
        self._thread.start()

    def show(self, progress: keyed.Progress) -> None:
        """Show the job's progress after a batch."""
        self._progress = progress
        self._pace = [*self._pace[-9:], (time.monotonic(), rows_read(progress))]

    def wait(self) -> None:
        """Wait until the dashboard is closed."""
        self._closing.wait()

    def close(self) -> None:
        """Stop the server."""
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve_or_tell(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - the job continues: its results do not depend on the page
            print(f"top_n: there is no page: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            self._closing.set()

    def _serve(self) -> None:
        with ExitStack() as stack:
            while not self._closing.is_set():
                try:
                    tables = stack.enter_context(keyed.tables.open_tables(self._changelogs, self._folder))
                    break
                except keyed.errors.ChangelogError:
                    # The job has not started yet.
                    self._closing.wait(0.2)
            else:
                return
            stack.enter_context(serving(tables.start(every=0.2), port=self._port, page=_PAGE, status=self._status))
            self._closing.wait()

    def _status(self) -> dict[str, Any]:
        if self._progress is None:
            return {"title": self._title}
        rows, counters = rows_read(self._progress), self._progress.metrics.get(COUNT, {})
        status: dict[str, Any] = {
            "title": self._title,
            "Rows": rows if self._rows is None else f"{rows:,} of {self._rows:,}",
        }
        (began, first), (ended, last) = self._pace[0], self._pace[-1]
        if ended > began and rows != self._rows:
            status["Rows a second"] = round((last - first) / (ended - began))
        bad = counters.get("rows_bad", 0)
        status["Late rows"] = counters.get("rows_side_output", 0)
        return {**status, "Bad rows": bad} if bad else status
