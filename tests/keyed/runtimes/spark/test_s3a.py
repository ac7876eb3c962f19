"""A job on a cluster that shares nothing but an S3 server: it is killed, restored, verified, followed and queried."""

import io
import json
import os
import random
import shutil

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

import keyed
from keyed.changelog import ObjectStoreChangelog
from keyed.recovery import verify
from tests.keyed.runtimes.spark.functions import count
from tests.keyed.runtimes.spark.test_changelog import KEYS, ROWS, elements, rows_of
from tests.keyed.runtimes.spark.test_cluster import wait_until
from tests.keyed.runtimes.spark.test_object_stores import entries
from tests.support.jars import S3A, NoJars, fetch
from tests.support.minio import minio
from tests.support.programs import NoServer
from tests.support.spark_cluster import SparkCluster
from tests.support.tables import poll_tables

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.xdist_group("minio"),
]
PROGRAM = "tests.keyed.runtimes.spark.s3a_program"
FILES = 10
SEED = int(os.environ.get("KEYED_FAULT_SEED", "1"))


@pytest.fixture(scope="module")
def jars():
    try:
        return ",".join(map(str, fetch(S3A)))
    except NoJars as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    try:
        with minio(tmp_path_factory.mktemp("minio") / "data") as made:
            yield made
    except NoServer as error:
        pytest.skip(str(error))


def put_files(store, numbers):
    for number in numbers:
        columns = zip(*rows_of(number), strict=True)
        content = io.BytesIO()
        pq.write_table(pa.table(dict(zip("ktv", map(list, columns), strict=True))), content)
        obstore.put(store, f"in/part-{number:04d}.parquet", content.getvalue())


def test_a_job_on_a_cluster_with_nothing_but_an_s3_server(options, jars, tmp_path):
    client = {name: value for name, value in options.items() if name != "allow_http"}
    store = S3Store("bucket", client_options={"allow_http": True}, **client)
    put_files(store, range(FILES - 2))
    chance = random.Random(SEED)
    # The program has the credentials, and none are in the environment of the executors.
    env = {"KEYED_S3": json.dumps(options), "KEYED_JARS": jars}
    with SparkCluster(tmp_path / "machines") as cluster:
        lost, _ = cluster.add_worker(), cluster.add_worker()

        def started(*arguments):
            return cluster.program(PROGRAM, cluster.url, *map(str, arguments), env=env)

        first = started("ck", 2, "log/count")
        assert wait_until(first, 2, chance), first.said()
        first.kill()
        second = started("ck", 2, "log/count")
        assert wait_until(second, 1, chance), second.said()
        cluster.add_worker()
        lost.lose()
        assert wait_until(second, 2, chance), second.said()
        second.kill()
        started("ck", 2, "log/count").wait_for("DONE")

    # The checkpoint is lost, and so are all machines.
    shutil.rmtree(tmp_path / "machines")
    for page in obstore.list(store, "ck/"):
        obstore.delete(store, [each["path"] for each in page])
    put_files(store, range(FILES - 2, FILES))
    with SparkCluster(tmp_path / "others") as cluster:
        for _ in range(2):
            cluster.add_worker()
        restored = cluster.program(PROGRAM, cluster.url, "ck2", "3", "log2/count", "log/count", env=env)
        restored.wait_for(f"DONE 3 Restored(batch_id={FILES - 3}, with_position=True)")

    new = ObjectStoreChangelog("s3://bucket/log2/count", options)
    assert [group.problem for group in verify(new)] == ["", "", ""]
    undisturbed = keyed.DirectoryChangelog(tmp_path / "undisturbed")
    source = keyed.stream(elements(range(FILES)), timestamp="t")
    count(source, changelog=undisturbed).run(rows_per_batch=ROWS, checkpoint=tmp_path / "ck")
    assert entries(new) == entries(undisturbed)
    with poll_tables(new, tmp_path / "tables") as tables:
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
