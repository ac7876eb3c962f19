"""The in-process broker passes the same suite as a real one; the disk loses unsynced data."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.testing.changelog_conformance import ChangelogConformance
from tests.support.simulator.faults import Died, Faults, FaultyDisk
from tests.support.simulator.kafka_stand_in import StandInBroker


class TestStandInBroker(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def broker(self):
        with StandInBroker(Faults(Random(0), [])).in_place():
            yield

    def make_changelog(self, path: Path) -> KafkaChangelog:
        return KafkaChangelog(path.name, bootstrap="stand-in")


class Always(Random):
    """Chance by which everything happens, from a call on."""

    def random(self):
        return 0.0

    def choice(self, options):
        return options[0]


def written(path, *, synced):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file, b"0123456789" * 100)
    if synced:
        os.fsync(file)
    os.close(file)
    os.link(path, path.with_suffix(".final"))
    path.unlink()


def test_when_the_power_fails_what_was_not_synced_is_lost(tmp_path):
    faults, died = Faults(Random(1), []), []
    with FaultyDisk(tmp_path, faults, lambda: died.append(1)).in_place():
        written(tmp_path / "a", synced=True)
        written(tmp_path / "b", synced=False)
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        written(tmp_path / "c", synced=True)
        faults.resting, faults.random = False, Always()
        faults.strikes = lambda what, chance: not faults.resting and "power" in what  # type: ignore[method-assign]
        with pytest.raises(Died):
            tmp_path.stat()
    assert died == [1]
    assert (tmp_path / "a.final").stat().st_size == 1000
    assert (tmp_path / "b.final").stat().st_size < 1000
    assert not (tmp_path / "c.final").exists()
    tmp_path.stat()
