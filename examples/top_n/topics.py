"""The job over a Kafka topic of JSON: rankings, late rows and changelogs go back to topics of their own.

Of a topic ``sales`` these are ``sales-top``, ``sales-late``, ``sales-count-by-item-changelog`` and
``sales-rank-per-window-changelog``. Spark writes results at least once: a later record replaces an earlier one with
the same key, which is the window and the rank.

With a folder of an object store, checkpoint and changelogs are there, and the machine keeps nothing that is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyspark

import keyed
from examples.top_n.datasets import DatasetError
from examples.top_n.functions import LATE
from examples.top_n.job import OnProgress, Settings, top_n
from examples.top_n.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


@attrs.frozen
class Topic:
    """A topic whose records are JSON objects.

    Args:
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        name: The topic.
        item_column: The counted field, as text.
        time_column: The field with the event time: ISO 8601 text, or an integer in milliseconds since the epoch.
        object_store: Folder of checkpoint and changelogs, ``s3://BUCKET/PREFIX``; by default the checkpoint is a local
            folder, and changelogs are topics.
    """

    bootstrap: str
    name: str
    item_column: str
    time_column: str
    object_store: str | None = None

    @property
    def about(self) -> str:
        """The topic and the counted field."""
        return f"topic {self.name} at {self.bootstrap}, by {self.item_column}"

    @property
    def items(self) -> str:
        """Values of the field."""
        return f"values of {self.item_column}"

    def identity(self) -> dict[str, Any]:
        """Return the identity of the data, without the brokers, which may move."""
        identity = {"topic": self.name, "item_column": self.item_column, "time_column": self.time_column}
        return identity if self.object_store is None else {**identity, "object_store": self.object_store}

    def check(self) -> None:
        """Check that the brokers have the topic.

        Raises:
            DatasetError: There is no such topic, or no broker answers.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            known = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=10).topics
        except KafkaException as error:
            raise DatasetError(f"--bootstrap {self.bootstrap}: no broker answers: {error.args[0].str()}") from error
        if self.name not in known:
            raise DatasetError(f"--topic {self.name}: {self.bootstrap} has no such topic; create it first")

    def changelog(self, operator: str) -> keyed.Changelog:
        """Return the changelog of an operator."""
        if self.object_store is not None:
            return keyed.ObjectStoreChangelog(f"{self.object_store}/changelog/{operator}")
        return keyed.KafkaChangelog(f"{self.name}-{operator}-changelog", bootstrap=self.bootstrap)

    def checkpoint(self, workspace: Workspace) -> str:
        """Return the checkpoint folder, as Spark names it."""
        if self.object_store is not None:
            return f"s3a{self.object_store.removeprefix('s3')}/checkpoint"
        return str(workspace.checkpoint)

    def spark_settings(self) -> dict[str, str]:
        """Return the settings of Spark's connectors: to Kafka, and to the object store.

        Both clients of the object store, Spark's and keyed's, take its credentials from the environment.
        """
        if self.object_store is None:
            return {"spark.jars.packages": _CONNECTOR}
        settings = {"spark.jars.packages": f"{_CONNECTOR},org.apache.hadoop:hadoop-aws:{_hadoop()}"}
        if "AWS_ENDPOINT_URL" in os.environ:
            settings["spark.hadoop.fs.s3a.endpoint"] = os.environ["AWS_ENDPOINT_URL"]
            settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        if "AWS_REGION" in os.environ:
            settings["spark.hadoop.fs.s3a.endpoint.region"] = os.environ["AWS_REGION"]
        return settings

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the records as rows of ``item`` and ``event_time``; missing values are null."""
        from pyspark.sql.functions import coalesce, col, get_json_object, timestamp_millis, try_to_timestamp

        raw = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.name)
            .option("startingOffsets", "earliest")
            .load()
        )
        record = col("value").cast("string")
        time = get_json_object(record, f"$['{self.time_column}']")
        return raw.select(
            get_json_object(record, f"$['{self.item_column}']").alias("item"),
            coalesce(timestamp_millis(time.try_cast("bigint")), try_to_timestamp(time)).alias("event_time"),
        )

    def writer(self, suffix: str, key: str) -> Callable[[DataFrame, int], None]:
        """Return a sink that writes rows as JSON to a topic beside this one.

        Args:
            suffix: Suffix of the name.
            key: SQL of the records' key.
        """

        def write(rows: DataFrame, _: int) -> None:
            (
                rows.selectExpr(f"{key} AS key", "to_json(struct(*)) AS value")
                .write.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("topic", f"{self.name}-{suffix}")
                .save()
            )

        return write


def run_over_topic(
    topic: Topic,
    settings: Settings,
    workspace: Workspace,
    on_progress: OnProgress,
    *,
    config: Mapping[str, str],
    goes_on: bool,
) -> None:
    """Run the job over the records of the topic, and over later ones.

    Args:
        topic: The topic.
        settings: Settings of the job.
        workspace: The folders of the job.
        on_progress: Called after each batch.
        config: Settings of Spark. Without ``spark.jars`` and ``spark.jars.packages`` Spark fetches its own connectors.
        goes_on: Whether to wait for more records until the program is stopped, instead of ending with the last one.

    Raises:
        keyed.KeyedError: The query failed, or Spark cannot be started.
    """
    own = topic.spark_settings()
    if config.keys() & {"spark.jars", "spark.jars.packages"}:
        del own["spark.jars.packages"]
    spark = keyed.spark_session("top_n", config={**own, **config})
    try:
        ranking, late = top_n(topic.rows(spark), settings, topic.changelog)
        outputs = [
            ranking.to(topic.writer("top", "concat_ws('/', window_start, rank)")),
            late.to(topic.writer(str(LATE.name), "item")),
        ]
        checkpoint = topic.checkpoint(workspace)
        if goes_on:
            query = keyed.start(*outputs, checkpoint=checkpoint, on_progress=on_progress)
            try:
                query.await_termination()
            finally:
                query.stop()
        else:
            keyed.run(*outputs, checkpoint=checkpoint, on_progress=on_progress)
    finally:
        spark.stop()


def _hadoop() -> str:
    """Return the version of Spark's Hadoop, which its client of S3 must have too."""
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return client.stem.removeprefix("hadoop-client-api-")
