"""Files of commit 9cbacef are resumed, restored and verified, or refused with the remedy.

The fixtures hold the first half of runs (`make_fixtures`); what is expected is what that commit itself wrote in a run
without a break.
"""

from __future__ import annotations

import base64
import json
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.records import decode_kept, encode_kept
from keyed.errors import TableNotFound
from keyed.recovery import verify
from keyed.tables import open_tables
from tests.keyed.changelog.kafka import topics
from tests.upgrade import programs
from tests.upgrade.make_fixtures import FIXTURES, SPARK_FOLDER, final_state

#: The state of these has another layout now, so its hash differs; the number of its entries does not.
LAID_OUT_ANEW = {"sessions-triggered"}
#: How a run is told from the one that it is restored from.
RESTORED: dict[str, Any] = {"checkpoint": "restored", "sink": "after", "parallelism": 3}


def unpacked(name, tmp_path):
    """The folder of a fixture, and what is expected."""
    folder = tmp_path / name
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        # Python has filters from 3.11.4 on, and warns without one from 3.12 on; the archives are our own.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder, json.loads((folder / "expected.json").read_text())


def changelog_in(folder, name="changelog"):
    return DirectoryChangelog(folder / name, compaction_lag=0, auto_compact=False)


def problems(found):
    return [group.problem for group in found if group.problem]


def rest(expected):
    """The outputs of the second half, by sink."""
    halves = zip(expected["whole"], expected["half"], strict=True)
    return [sorted((Counter(whole) - Counter(half)).elements()) for whole, half in halves]


def assert_state(name, changelog, expected):
    size = 1 if name in LAID_OUT_ANEW else None
    assert final_state(changelog)[:size] == expected["state"][:size]


@pytest.mark.parametrize("name", sorted(programs.JOBS))
def test_a_checkpoint_of_the_local_runtime_goes_on(tmp_path, name):
    folder, expected = unpacked(name, tmp_path)
    changelog = changelog_in(folder)
    assert problems(verify(changelog)) == []
    assert problems(verify(folder / "checkpoint", changelog)) == []
    programs.run(name, folder, changelog, rows=programs.ROWS)
    assert programs.written(folder) == expected["whole"]
    assert_state(name, changelog, expected)
    assert problems(verify(changelog)) == []


@pytest.mark.parametrize("name", sorted(programs.JOBS))
def test_a_directory_changelog_is_restored(tmp_path, name):
    folder, expected = unpacked(name, tmp_path)
    old, new = changelog_in(folder), changelog_in(folder, "new")
    result = programs.run(name, folder, new, rows=programs.ROWS, restore_from=old, **RESTORED)
    assert result.restored.with_position
    assert programs.written(folder, "after") == rest(expected)
    assert_state(name, new, expected)
    assert problems(verify(new)) == []


@pytest.mark.parametrize("name", ["everything", "tables"])
def test_a_topic_goes_on_and_is_restored(kafka, tmp_path, name):
    folder, _ = unpacked(f"kafka-{name}", tmp_path)
    _, expected = unpacked(name, tmp_path)
    topic = topics.new_topic()
    dump = json.loads((folder / "topic.json").read_text())
    topics.create(kafka, topic, len(dump["partitions"]), **dump["settings"])
    for partition, records in enumerate(dump["partitions"]):
        topics.produce_all(kafka, topic, partition, [tuple(map(_bytes, record)) for record in records])
    old = KafkaChangelog(topic, bootstrap=kafka, compaction_lag=0)
    assert problems(verify(old)) == []
    new = changelog_in(folder, "new")
    programs.run(name, folder, new, rows=programs.ROWS, restore_from=old, **RESTORED)
    assert programs.written(folder, "after") == rest(expected)
    assert final_state(new) == expected["state"]
    programs.run(name, folder, old, rows=programs.ROWS)
    assert programs.written(folder) == expected["whole"]
    assert final_state(old) == expected["state"]
    assert problems(verify(old)) == []


def _bytes(part):
    if isinstance(part, list):
        return [(key, _bytes(value)) for key, value in part]
    return None if part is None else base64.b64decode(part)


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name == "everything" else pytest.mark.long)
        for name in sorted(programs.SPARK_JOBS)
    ]
)
def on_spark(request, tmp_path):
    """The name and folder of a job on Spark with the files of its second half, and what is expected."""
    folder, expected = unpacked(f"spark-{request.param}", tmp_path)
    old, new = (f"{path}/" for path in (SPARK_FOLDER / request.param / "half", folder))
    for file in folder.glob("checkpoint/**/*"):
        if file.is_file() and old.encode() in (content := file.read_bytes()):
            file.write_bytes(content.replace(old.encode(), new.encode()))
            # Hadoop's checksum.
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    for file in folder.glob("changelog/kept/*"):
        name, data = decode_kept(file.read_bytes(), str(file))
        moved = zlib.decompress(data).replace(old.encode(), new.encode())
        file.write_bytes(encode_kept(name, zlib.compress(moved)))
    programs.write_files(folder / "in", programs.FILES // 2, programs.FILES)
    return request.param, folder, expected


def test_a_checkpoint_of_spark_goes_on(spark, on_spark):
    name, folder, expected = on_spark
    changelog = changelog_in(folder)
    assert problems(verify(changelog)) == []
    programs.run_spark(spark, name, folder, changelog)
    assert programs.written(folder) == expected["whole"]
    assert final_state(changelog)[0] == expected["state"][0]
    assert problems(verify(changelog)) == []


def test_a_changelog_of_spark_is_restored(spark, on_spark):
    name, folder, expected = on_spark
    new = changelog_in(folder, "new")
    result = programs.run_spark(spark, name, folder, new, restore_from=changelog_in(folder), **RESTORED)
    assert result.restored.with_position
    assert programs.written(folder, "after") == rest(expected)
    assert problems(verify(new)) == []


def test_fixtures_are_small():
    assert sum(Path(file).stat().st_size for file in FIXTURES.iterdir()) < 500_000


@pytest.mark.parametrize("name", ["tumbling", "sessions", "tumbling-columns", "sessions-columns"])
def test_windows_are_one_table_from_the_first_batch_of_this_version_on(tmp_path, name):
    folder, _ = unpacked(name, tmp_path)
    changelog = changelog_in(folder)
    with open_tables(changelog, tmp_path / "tables") as tables:
        tables.poll()
        # What was written before has the states as they are kept.
        before, batch = {state: len(table) for state, table in tables.items()}, tables.batch
        assert sum(before.values())
        assert "WindowOperator" not in before
        programs.run(name, folder, changelog, rows=programs.ROWS)
        tables.poll()
        assert [*tables] == ["WindowOperator"]
        table = tables["WindowOperator"]
        assert table.schema.key == ["window_start", "window_end"]
        assert [*table.scan(as_of=batch + 1)]
        with pytest.raises(TableNotFound, match="there are: "):
            table.scan(as_of=batch)
