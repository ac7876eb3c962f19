"""Changelogs with an export interval are refused on Spark, before anything is written."""

from __future__ import annotations

import pytest

from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError
from tests.keyed.runtimes.spark.functions import count, files_source


def test_an_export_interval_is_refused(spark, tmp_path):
    counted = count(
        files_source(spark, tmp_path / "in"), changelog=DirectoryChangelog(tmp_path / "log", export_interval=5)
    )
    with pytest.raises(
        DefinitionError, match="operator 'count', changelog=: export_interval=5 is for the local runtime"
    ):
        counted.run(tmp_path / "out", checkpoint=tmp_path / "ck")
