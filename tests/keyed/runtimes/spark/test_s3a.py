"""A job that shares nothing with anybody but an S3 server: it is killed, restored, verified, followed and asked."""

import io
import json
import os
import random
import signal
import subprocess
import sys

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

import keyed
from keyed.changelog import ObjectStoreChangelog
from keyed.recovery import verify
from keyed.tables import open_tables
from tests.keyed.runtimes.spark.functions import count
from tests.keyed.runtimes.spark.test_changelog import KEYS, ROWS, elements, rows_of
from tests.keyed.runtimes.spark.test_object_stores import entries
from tests.support.jars import S3A, NoJars, fetch
from tests.support.minio import NoServer, minio

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("minio")]
PROGRAM = "tests.keyed.runtimes.spark.s3a_program"
FILES = 8
SEED = int(os.environ.get("KEYED_FAULT_SEED", "1"))


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    try:
        fetch(S3A)
        with minio(tmp_path_factory.mktemp("minio") / "data") as made:
            yield made
    except (NoServer, NoJars) as error:
        pytest.skip(str(error))


def started(folder, options, *arguments):
    """Start the program; it has the credentials, and none are in the environment for any other client."""
    command = [sys.executable, "-m", PROGRAM, str(folder), *map(str, arguments)]
    environment = os.environ | {"KEYED_S3": json.dumps(options)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def killed(program, batches):
    """Kill the program and its JVM at a moment of chance after some batches."""
    chance = random.Random(f"{SEED} {batches}")
    seen = 0
    for line in program.stdout:
        seen += line.startswith("BATCH")
        if seen == batches:
            # Anywhere in the next batch.
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(chance.uniform(0, 1.5))
            break
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
    assert seen == batches


def put_files(store, numbers):
    for number in numbers:
        columns = zip(*rows_of(number), strict=True)
        content = io.BytesIO()
        pq.write_table(pa.table(dict(zip("ktv", map(list, columns), strict=True))), content)
        obstore.put(store, f"in/part-{number:04d}.parquet", content.getvalue())


def test_a_job_with_nothing_but_an_s3_server(options, tmp_path):
    client = {name: value for name, value in options.items() if name != "allow_http"}
    store = S3Store("bucket", client_options={"allow_http": True}, **client)
    put_files(store, range(FILES - 2))
    first, second = tmp_path / "first", tmp_path / "second"
    killed(started(first, options, "ck", 2, "log/count"), 2)
    killed(started(first, options, "ck", 2, "log/count"), 1)
    done, _ = started(first, options, "ck", 2, "log/count").communicate()
    assert done.splitlines()[-1].startswith("DONE")

    # The checkpoint is lost, and so is the machine.
    for page in obstore.list(store, "ck/"):
        obstore.delete(store, [each["path"] for each in page])
    put_files(store, range(FILES - 2, FILES))
    done, _ = started(second, options, "ck2", 3, "log2/count", "log/count").communicate()
    assert done.splitlines()[-1] == "DONE 3 Restored(batch_id=5, with_position=True)", done

    new = ObjectStoreChangelog("s3://bucket/log2/count", options)
    assert [group.problem for group in verify(new)] == ["", "", ""]
    undisturbed = keyed.DirectoryChangelog(tmp_path / "undisturbed")
    source = keyed.stream(elements(range(FILES)), timestamp="t")
    count(source, changelog=undisturbed).run(rows_per_batch=ROWS, checkpoint=tmp_path / "ck")
    assert entries(new) == entries(undisturbed)
    with open_tables(new, tmp_path / "tables") as tables:
        tables.poll()
        rows = tables.sql("SELECT key, value FROM seen ORDER BY key").to_pylist()
        assert [row["key"] for row in rows] == KEYS
    # Each row of the output is there once: the counts of a key are 1, 2, 3 and so on.
    found = [
        (row["k"], row["n"])
        for page in obstore.list(store, "out/")
        for each in page
        if each["path"].endswith(".parquet") and "/_" not in each["path"]
        for row in pq.read_table(io.BytesIO(obstore.get(store, each["path"]).bytes())).to_pylist()
    ]
    assert len(found) == FILES * ROWS == len(set(found))
    assert all(max(n for key, n in found if key == k) == sum(key == k for key, _ in found) for k in KEYS)
