"""Local stores, changelog writers and commit stores with faults drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keyed.changelog.model import Blocks, ChangelogWriter, Commit, append_all
from keyed.content.blocks import Change
from keyed.content.local_store import LocalStore
from keyed.errors import ChangelogError, CheckpointError, LocalStoreError
from keyed.stores.commit_store import MemoryCommitStore
from tests.support.simulator.faults import Died, Faults


class FaultyStore:
    """A local store on which any call may fail, and any write may be torn."""

    def __init__(self, store: LocalStore, faults: Faults, name: str) -> None:
        self._store = store
        self._faults = faults
        self._name = name

    def _may_fail(self, call: str, chance: float = 0.004) -> None:
        if self._faults.strikes(f"{self._name}: {call} fails", chance):
            raise LocalStoreError(f"{self._name}: {call} fails")

    def __getattr__(self, call: str) -> Any:
        """Return a call of the store; all but `close` may fail, rare ones more often."""
        method = getattr(self._store, call)

        def faulty(*arguments: Any) -> Any:
            self._may_fail(call, 0.02 if call == "table" else 0.004)
            return method(*arguments)

        return method if call in ("reset", "close") else faulty

    def apply(self, log_id: str, row: int, changes: Any, tables: Any = ()) -> None:
        """Apply a log row, unless it fails or is torn."""
        self._may_fail("apply")
        if self._faults.strikes(f"{self._name}: apply is torn off", 0.02):
            changes = self._torn(list(changes))
        self._store.apply(log_id, row, changes, tables)

    def _torn(self, changes: list[Change]) -> Iterator[Change]:
        yield from changes[: self._faults.random.randint(0, len(changes))]
        raise LocalStoreError(f"{self._name}: torn off")


class FaultyWriter:
    """A writer whose appends fail, are torn, unacknowledged, or late."""

    def __init__(self, writer: ChangelogWriter, faults: Faults, name: str) -> None:
        self.writer = writer
        self._faults = faults
        self._name = name

    def last(self) -> Commit | None:
        """Return the last commit, unless the call fails."""
        if self._faults.strikes(f"{self._name}: last fails", 0.01):
            raise ChangelogError(f"{self._name}: last fails")
        return self.writer.last()

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """Append a commit, unless it fails, is torn, late, or not acknowledged."""
        faults = self._faults
        described = f"{self._name}: commit {commit.sequence}"
        if faults.strikes(f"{described} is torn off", 0.03):
            self.writer.append(commit, self._torn(list(blocks)))
        if faults.strikes(f"{described} is written without an answer", 0.03):
            self.writer.append(commit, blocks)
            raise ChangelogError(f"{described}: no answer")
        if faults.strikes(f"{described} is late", 0.03):
            writer, kept = self.writer, list(blocks)
            faults.late.append(lambda: writer.append(commit, kept))
            raise ChangelogError(f"{described}: timed out")
        if faults.strikes(f"{described} is refused", 0.02):
            raise ChangelogError(f"{described}: refused")
        return self.writer.append(commit, blocks)

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """Append commits at once, unless it fails, is torn, late, or not acknowledged."""
        kept = [(commit, list(blocks)) for commit, blocks in commits]
        faults, writer = self._faults, self.writer
        described = f"{self._name}: commits {kept[0][0].sequence} to {kept[-1][0].sequence}"
        if faults.strikes(f"{described} are torn off", 0.03):
            number = faults.random.randrange(len(kept))
            commit, blocks = kept[number]
            append_all(writer, [*kept[:number], (commit, self._torn(blocks)), *kept[number + 1 :]])
        if faults.strikes(f"{described} are written without an answer", 0.03):
            append_all(writer, kept)
            raise ChangelogError(f"{described}: no answer")
        if faults.strikes(f"{described} are late", 0.03):
            faults.late.append(lambda: append_all(writer, kept))
            raise ChangelogError(f"{described}: timed out")
        return append_all(writer, kept)

    def _torn(self, blocks: list[Any]) -> Iterator[Any]:
        yield from blocks[: self._faults.random.randint(0, len(blocks))]
        raise ChangelogError(f"{self._name}: torn off")

    def close(self) -> None:
        """Close the writer."""
        self.writer.close()


class FaultyStagingWriter(FaultyWriter):
    """The same for a changelog that stages batches before their commit."""

    def stage(self, commit: Commit, blocks: Blocks) -> bool:
        """Stage a batch before its commit."""
        writer: Any = self.writer
        return bool(writer.stage(commit, blocks))


class FaultyCommits(MemoryCommitStore):
    """The commit store, whose commits may fail, or succeed without an acknowledgement."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def make_durable(self) -> None:
        """Commit, unless it fails before or after."""
        if self._faults.strikes("the commit fails", 0.03):
            raise CheckpointError("the commit fails")
        super().make_durable()
        if self._faults.strikes("the commit gets no answer", 0.03):
            raise Died
