"""The code that is sent to a server without keyed."""

import importlib
import operator
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
from pyspark import cloudpickle

import keyed
from keyed.joins import IntervalJoin
from keyed.runtimes.spark.session.ship import Shipped, archive_for, shipped
from tests.keyed.runtimes.spark.functions import Count

ROOT = Path(__file__).parents[4]

# A process that has neither keyed nor the tests on its path unpickles what is in the file.
RECEIVER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    received = pickle.load(file)
import keyed
assert keyed.__spec__.origin.startswith("<shipped>"), keyed.__spec__
print(received())
with open(sys.argv[1], "rb") as file:
    assert type(pickle.load(file)) is type(received)
"""


def test_a_carrier_arrives_as_its_content_where_keyed_is_not_installed(tmp_path):
    def content():
        from keyed.job.state import ValueState

        function = Count()
        return type(function).__mro__[1].__name__, type(Count.seen) is ValueState

    archive = archive_for([Count()])
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(Shipped(archive, content)))
    done = subprocess.run(
        [sys.executable, "-c", RECEIVER, str(tmp_path / "sent")],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", "('KeyedProcessFunction', True)\n")


def test_the_modules_of_what_a_function_holds_travel_too(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_mine.py").write_text("def pair(left, right):\n    return left, right\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pair = importlib.import_module("pairs_of_mine").pair
    joined = IntervalJoin(pair, lower=0, upper=5)
    before = cloudpickle.dumps(joined)
    archive_for([joined, IntervalJoin(operator.add, lower=0, upper=5), IntervalJoin(pc.add, lower=0, upper=5)])
    by_value = set(cloudpickle.list_registry_pickle_by_value())
    assert b"pairs_of_mine" in before
    assert "pairs_of_mine" in by_value
    assert not by_value & {"operator", "pyarrow", "keyed", "builtins"}
    cloudpickle.unregister_pickle_by_value(sys.modules.pop("pairs_of_mine"))


def test_without_an_archive_nothing_is_wrapped():
    assert shipped(None, test_without_an_archive_nothing_is_wrapped) is test_without_an_archive_nothing_is_wrapped


def test_a_carrier_is_called_as_its_content():
    assert Shipped(archive_for([]), lambda x: x + 1)(2) == 3


def test_the_sources_that_are_sent_are_those_that_are_here():
    assert archive_for([]) is archive_for([Count()])
    assert keyed.__file__ == str(ROOT / "keyed" / "__init__.py")
