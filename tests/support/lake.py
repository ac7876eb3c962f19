"""Settings of a Spark session that writes Delta and Iceberg tables, and of pyiceberg for the same catalog."""

from __future__ import annotations

from pathlib import Path

from tests.support.jars import LAKEHOUSE, fetch


def lake_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a session whose catalog ``local`` is a file in a folder.

    Raises:
        NoJars: The libraries cannot be fetched.
    """
    assert LAKEHOUSE
    catalog = "spark.sql.catalog.local"
    return {
        "spark.jars": ",".join(map(str, fetch(LAKEHOUSE))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        # Writers wait for each other.
        f"{catalog}.uri": f"jdbc:sqlite:{folder / 'catalog.db'}?busy_timeout=60000",
        f"{catalog}.warehouse": (folder / "warehouse").as_uri(),
        # Delta's default is 50 tasks for a table's log.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def pyiceberg_options(folder: Path) -> dict[str, str]:
    """Return the properties of the same catalog for pyiceberg."""
    uri = f"sqlite:///{folder / 'catalog.db'}"
    return {"type": "sql", "uri": uri, "warehouse": (folder / "warehouse").as_uri()}
