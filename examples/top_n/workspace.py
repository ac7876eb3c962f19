"""The output folder: its layout, and the check that a run may use it.

    DIR/job.json     settings and data of the job; written first, and compared by every later run
    DIR/arrivals/    the rows in order of arrival, see `arrivals`
    DIR/checkpoint/  the state of the query (or the folder of --checkpoint)
    DIR/top/         results: window_start, window_end, rank, item, count
    DIR/late/        late rows: item, event_time
    DIR/changelog/   every change of the state of both functions
    DIR/tables/      that state as tables, for the page
    DIR/_SUCCESS     the input has ended, and its results are complete

A run with the same options on the same folder resumes the last one. Other options would damage the existing results,
so they are refused before anything is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs

import keyed


class WorkspaceError(Exception):
    """A folder belongs to another run. The message has the remedy."""


@attrs.frozen
class Workspace:
    """The folders of one job.

    Attributes:
        output: The output folder.
        checkpoint: The checkpoint folder.
    """

    output: Path
    checkpoint: Path

    @property
    def arrivals(self) -> Path:
        """Folder of the rows in order of arrival."""
        return self.output / "arrivals"

    @property
    def top(self) -> Path:
        """Folder of the rankings."""
        return self.output / "top"

    @property
    def late(self) -> Path:
        """Folder of late rows."""
        return self.output / "late"

    @property
    def tables(self) -> Path:
        """Folder of the state tables."""
        return self.output / "tables"

    def changelog(self, operator: str) -> keyed.Changelog:
        """Return the changelog of an operator."""
        return keyed.DirectoryChangelog(self.output / "changelog" / operator)

    def finish(self) -> None:
        """Mark the results as complete."""
        self._success.touch()

    def is_finished(self) -> bool:
        """Return whether an earlier run has completed the results."""
        return self._success.exists()

    @property
    def _success(self) -> Path:
        return self.output / "_SUCCESS"

    @property
    def _job(self) -> Path:
        return self.output / "job.json"

    def claim(self, job: dict[str, Any]) -> bool:
        """Claim the folders for a job, or check that they are its own.

        Args:
            job: All settings that affect the results, as plain JSON.

        Returns:
            Whether an earlier run of the same job used them.

        Raises:
            WorkspaceError: They hold other files.
        """
        job = {**job, "checkpoint": str(self.checkpoint.resolve())}
        for path in (self.output, self.checkpoint):
            if path.exists() and not path.is_dir():
                raise WorkspaceError(f"{path} is not a folder; name another one")
        if self._job.is_file():
            self._compare(job)
            if not _filled(self.checkpoint) and (_filled(self.top) or _filled(self.late)):
                raise WorkspaceError(
                    f"{self.output} holds results, but their checkpoint {self.checkpoint} is gone, so it is "
                    f"unknown which rows they cover; remove {self.output} to start again, or name another --output"
                )
            return True
        if _filled(self.output):
            raise WorkspaceError(f"--output {self.output} holds other files (it has no job.json); name another folder")
        if _filled(self.checkpoint):
            raise WorkspaceError(
                f"--checkpoint {self.checkpoint} is in use, but not by the job in {self.output}; name another folder"
            )
        self.output.mkdir(parents=True, exist_ok=True)
        staged = self.output / f".job.json.{os.getpid()}.tmp"
        staged.write_text(json.dumps(job, indent=2) + "\n")
        staged.replace(self._job)
        return False

    def _compare(self, job: dict[str, Any]) -> None:
        try:
            found: Any = json.loads(self._job.read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise WorkspaceError(f"{self._job} is damaged; remove {self.output} to start again")
        changed = [name for name in sorted({*job, *found}) if job.get(name) != found.get(name)]
        if changed:
            differences = "; ".join(f"{name} was {found.get(name)}, now {job.get(name)}" for name in changed)
            raise WorkspaceError(
                f"--output {self.output} holds another job ({differences}); name another one, or remove that folder"
                f"{'' if self.checkpoint.is_relative_to(self.output) else f' and {self.checkpoint}'}"
            )


def _filled(folder: Path) -> bool:
    """Return true if a folder has files other than temporary ones of a killed run."""
    return folder.is_dir() and any(not path.name.endswith(".tmp") for path in folder.iterdir())
