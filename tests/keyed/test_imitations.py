"""Objects that look like a description of columns are refused by name, or read for what they are."""

from __future__ import annotations

import collections
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import attrs
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from keyed.errors import DefinitionError
from keyed.outputs import schema_of
from keyed.vectorized import TableState


@attrs.define
class Looks:
    names = ("a",)
    fields = ()
    columns = ("a",)

    def simpleString(self):  # noqa: N802
        return "struct<a:int>"


IMITATIONS: list[Any] = [
    *(
        None,
        True,
        1,
        b"a int",
        Path("a"),
        Decimal("NaN"),
        ("a", "int"),
        {"a": "int"},
        iter(["a"]),
        Looks(),
        MagicMock(),
    ),
    *(collections.OrderedDict(a=int), collections.defaultdict(int)),
    *(np.int64(1), np.array(["a"]), pd.Timestamp(0), pd.NaT, pd.Series(["a"]), pd.DataFrame({"a": [1]})),
    *(pl.DataFrame({"a": [1]}), pa.table({"a": [1]}), pa.record_batch({"a": [1]}), pa.field("a", pa.int64())),
    pa.struct([("a", pa.int64())]),
]


@pytest.mark.parametrize("given", IMITATIONS, ids=lambda each: type(each).__name__)
def test_what_looks_like_columns_is_refused_by_name(given):
    for describe in (schema_of, lambda schema: TableState(schema, key="a")):
        with pytest.raises(DefinitionError, match="output type"):
            describe(given)


def test_a_subclass_of_text_is_text():
    assert schema_of(type("Text", (str,), {})("a int")).names == ("a",)
