"""Makes the fixtures: what a commit writes into checkpoints, changelogs and sinks, for later ones to go on from.

    python -m tests.upgrade.make_fixtures 9cbacef

This is the record of how ``fixtures/`` was made; it is run again only for another commit. It checks the commit out
into a temporary folder, and runs `tests.upgrade.programs` there. For each job a ``.tar.gz`` holds a folder with the
first half of the run (checkpoint, changelog, sinks, and on Spark the files of the source) and ``expected.json``: the
rows that a run without a break writes into each sink, those of the first half, and the number of live entries and
their hash in the end.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
#: Where jobs on Spark run: their checkpoints hold the paths of the source's files, which are rewritten when unpacked.
SPARK_FOLDER = Path("/tmp/keyed-fixtures")
#: Settings of a topic that a changelog asks for.
TOPIC_SETTINGS = ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms", "retention.ms", "retention.bytes")


def main(commit: str) -> None:
    """Make all fixtures with the code of a commit."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], check=True)
        try:
            shutil.copytree(HERE, tree / "tests" / "upgrade", ignore=shutil.ignore_patterns("fixtures"))
            command = [sys.executable, "-c", "from tests.upgrade.make_fixtures import make; make()"]
            subprocess.run([*command], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=True)
            shutil.rmtree(FIXTURES, ignore_errors=True)
            shutil.move(tree / "tests" / "upgrade" / "fixtures", FIXTURES)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


def make() -> None:
    """Make all fixtures with the code that is imported."""
    from tests.upgrade import programs

    FIXTURES.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        for name in programs.JOBS:
            _local(name, Path(temporary, name))
        _kafka("everything", Path(temporary))
        _kafka("tables", Path(temporary))
    _spark()


def final_state(changelog: Any) -> list[Any]:
    """The number of live entries and their hash that a changelog ends with, over all key groups."""
    markers = [changelog.reader(group).last() for group in range(changelog.header().parallelism)]
    return [sum(marker.entries for marker in markers), sum(int(marker.hash, 16) for marker in markers) % 2**128]


def _local(name: str, folder: Path) -> None:
    from keyed.changelog.directory import DirectoryChangelog
    from tests.upgrade import programs

    def run(part: Path, rows: int, **options: Any) -> DirectoryChangelog:
        changelog = DirectoryChangelog(part / "changelog", compaction_lag=0, auto_compact=False)
        programs.run(name, part, changelog, rows=rows, **options)
        return changelog

    whole = run(folder / "whole", programs.ROWS)
    half = run(folder / "half", programs.HALF)
    if name in {"everything", "tables"}:
        # A base beside segments.
        half.compact()
    _pack(name, folder, whole)


def _kafka(name: str, folder: Path) -> None:
    """The content of a topic after the first half: the job's own fixture has the checkpoint and the sinks."""
    from keyed.changelog.kafka import KafkaChangelog
    from tests.keyed.changelog.kafka import topics
    from tests.support.kafka import Broker
    from tests.upgrade import programs

    broker = Broker(folder / "broker")
    broker.start()
    try:
        topic = topics.new_topic()
        part = folder / f"kafka-{name}"
        changelog = KafkaChangelog(topic, bootstrap=broker.bootstrap, compaction_lag=0)
        programs.run(name, part / "half", changelog, rows=programs.HALF)
        settings = topics.described(broker.bootstrap, topic)
        dump = {
            "settings": {key: settings[key] for key in TOPIC_SETTINGS},
            "partitions": [
                [
                    [_text(message.key()), _text(message.value()), [[k, _text(v)] for k, v in message.headers() or ()]]
                    for message in topics.messages(broker.bootstrap, topic, partition)
                ]
                for partition in range(3)
            ],
        }
        (part / "half" / "topic.json").write_text(json.dumps(dump))
        _pack(f"kafka-{name}", part, None)
    finally:
        broker.stop()
        shutil.rmtree(folder / "broker")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _spark() -> None:
    import keyed
    from keyed.changelog.directory import DirectoryChangelog
    from tests.upgrade import programs

    shutil.rmtree(SPARK_FOLDER, ignore_errors=True)
    SPARK_FOLDER.mkdir()
    session = keyed.spark_session("fixtures", master="local[2]", config={"spark.ui.enabled": "false"})
    try:
        for name in programs.SPARK_JOBS:
            folder = SPARK_FOLDER / name
            for part, files in ("whole", programs.FILES), ("half", programs.FILES // 2):
                programs.write_files(folder / part / "in", 0, files)
                changelog = DirectoryChangelog(folder / part / "changelog", compaction_lag=0, auto_compact=False)
                programs.run_spark(session, name, folder / part, changelog)
            _pack(f"spark-{name}", folder, DirectoryChangelog(folder / "whole" / "changelog"))
    finally:
        session.stop()
        shutil.rmtree(SPARK_FOLDER)


def _pack(name: str, folder: Path, whole: Any) -> None:
    """Pack the first half of a job with what is expected in the end."""
    from tests.upgrade import programs

    expected: dict[str, Any] = {"half": programs.written(folder / "half")}
    if whole is not None:
        expected |= {"whole": programs.written(folder / "whole"), "state": final_state(whole)}
    (folder / "half" / "expected.json").write_text(json.dumps(expected))

    def small(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Leave out what RocksDB says of its work, and who made it."""
        file = Path(info.name).name
        if file.startswith(("LOG", "LOCK")) and "checkpoint" in info.name and not info.isdir():
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(FIXTURES / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(folder / "half", "", filter=small)


if __name__ == "__main__":
    main(sys.argv[1])
