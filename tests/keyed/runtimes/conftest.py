"""The runtimes that a test runs on, with sources that grow between runs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import attrs
import pytest

import keyed
from tests.keyed.runtimes.spark.functions import SCHEMA, files, table_of_rows, write_rows
from tests.support.data_files import read_data


@attrs.define
class Runtime:
    """A runtime, here the local one.

    Attributes:
        session: The session of Spark; ``None`` in the local runtime.
        size: Number of rows of a batch of `source`.
    """

    session: Any = None
    size: int = 60
    _files: Any = attrs.field(factory=lambda: defaultdict(list))

    @property
    def batches(self) -> dict[str, Any]:
        """The options of a run whose batches are the added rows."""
        return {"rows_per_batch": self.size}

    def stream(self, rows: Any, schema: str = SCHEMA, **options: Any) -> keyed.Stream:
        """Return a stream of tuples that a run reads to their end."""
        return keyed.stream(table_of_rows(rows, schema), **options)

    def add(self, folder: Any, rows: Any, schema: str = SCHEMA) -> None:
        """Add rows, one batch, to a source."""
        self._files[folder].append(rows)

    def source(self, folder: Any, timestamp: Any = "t", schema: str = SCHEMA, **options: Any) -> keyed.Stream:
        """Return a stream of the rows that were added."""
        rows = [row for each in self._files[folder] for row in each]
        return self.stream(rows, schema, timestamp=timestamp, **options)


class SparkRuntime(Runtime):
    """Spark, whose sources are folders with a file for each batch."""

    @property
    def batches(self) -> dict[str, Any]:
        return {}

    def stream(self, rows: Any, schema: str = SCHEMA, **options: Any) -> keyed.Stream:
        return keyed.stream(self.session.createDataFrame(rows, schema), **options)

    def add(self, folder: Any, rows: Any, schema: str = SCHEMA) -> None:
        super().add(folder, rows)
        write_rows(folder, len(self._files[folder]) - 1, rows, schema)

    def source(self, folder: Any, timestamp: Any = "t", schema: str = SCHEMA, **options: Any) -> keyed.Stream:
        return keyed.stream(files(self.session, folder, schema), timestamp=timestamp, **options)


#: Tables of cases, by what they are.
CASES = read_data("keyed/runtimes/cases.json")

ON_SPARK = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("jvm")]


@pytest.fixture(params=["local", pytest.param("spark", marks=ON_SPARK)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each runtime."""
    return Runtime() if request.param == "local" else SparkRuntime(request.getfixturevalue("spark"))


#: Marks a test that is long on Spark.
long_on_spark = pytest.mark.parametrize(
    "runtime", ["local", pytest.param("spark", marks=[*ON_SPARK, pytest.mark.long])], indirect=True
)
