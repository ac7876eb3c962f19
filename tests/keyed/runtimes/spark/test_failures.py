"""Errors that come back from Spark as text."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from keyed import errors
from keyed.errors import CorruptionError, NullKeyError, QueryFailed, UserFunctionError, remedy
from keyed.runtimes.spark.query.failures import is_gone, translated
from keyed.runtimes.spark.query.spark_query import SparkQuery

JOB = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 \
in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/keyed/engine/driver.py", line 60, in run
    self._rows(batch)
  File "job.py", line 3, in process_element
    raise ValueError("boom")
ValueError: boom

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
keyed.errors.{name}: operator 'count', key 'a': first line
second line

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace: SQLSTATE: XXKST
"""


class SparkError(Exception):
    pass


@pytest.mark.parametrize("name", sorted(set(errors.__all__)))
def test_every_error_of_ours_comes_back_as_itself(name):
    error = translated(SparkError(JOB.format(name=name)), "the query")
    assert type(error) is getattr(errors, name)
    assert str(error) == "operator 'count', key 'a': first line\nsecond line"


def test_the_last_of_several_is_the_one_that_left_the_worker():
    text = JOB.format(name="EncodingError") + "Caused by: " + JOB.format(name="UserFunctionError")
    assert type(translated(SparkError(text), "the query")) is UserFunctionError


def test_other_errors_say_what_failed_and_show_the_traceback():
    text = JOB.format(name="x").replace(
        "keyed.errors.x: operator 'count', key 'a': first line\nsecond line", "OSError: no"
    )
    error = translated(SparkError(text), "the query 'count'")
    assert type(error) is QueryFailed
    assert str(error).startswith("the query 'count' failed: SparkError: Traceback")
    assert "OSError: no" in str(error)
    assert "BasePythonRunner" not in str(error)


def test_an_error_of_ours_is_left_alone():
    error = NullKeyError("x")
    assert translated(error, "q") is error


WORKER = "Job aborted: org.apache.spark.SparkException: Python worker {}\n\tat x.y(Z.scala:1)\nCaused by: a.B: c\n"
ARROW = "org.apache.arrow.vector.util.OversizedAllocationException: Memory required for vector is (2147483648)"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x\nkeyed.errors.NullKeyError: no key", NullKeyError, "no key$"),
        ("\nkeyed.errors.Nonsense: x", QueryFailed, "q failed"),
        ("", QueryFailed, "q failed"),
        ("x\nkeyed.errors.CorruptionError: bad in row 3 at byte 17\n", CorruptionError, "bad in row 3 at byte 17$"),
        (
            "worker exited\n=== Streaming Query ===\nLogical Plan:\n[a]",
            QueryFailed,
            "q failed: SparkError: worker exited$",
        ),
        (ARROW, QueryFailed, ".*maxFilesPerTrigger"),
        (WORKER.format("exited unexpectedly (crashed)"), QueryFailed, "q failed: a Python worker "),
        (WORKER.format("failed to connect back."), QueryFailed, "q failed: a Python worker "),
        (
            "x\n\tat a.b(C:1)\nCaused by: a.D: e\n\tat a.b(C:2)\nCaused by: a.E: f\n",
            QueryFailed,
            "q failed: a.E: f$",
        ),
    ],
)
def test_the_cause_is_in_the_first_words(text, error, message):
    found = translated(SparkError(text), "q")
    assert type(found) is error
    assert re.match(message, str(found))


def test_a_long_message_is_cut():
    assert len(str(translated(SparkError("x" * 100_000), "q"))) < 3000


def test_a_jvm_that_ends_or_has_ended_is_gone():
    protocol = pytest.importorskip("py4j.protocol")
    stopping = "An error occurred while calling o9.stop.\n: java.lang.IllegalStateException: Cannot call methods on a "
    assert is_gone(protocol.Py4JNetworkError("Answer from Java side is empty"))
    assert is_gone(protocol.Py4JError("py4j.reflection.TypeUtil does not exist in the JVM"))
    assert not is_gone(protocol.Py4JError("An error occurred while calling o1.start"))
    assert is_gone(ConnectionRefusedError())
    assert is_gone(
        protocol.Py4JError(f"{stopping}stopped SparkContext.\nThis stopped SparkContext was created at: ...")
    )
    assert not is_gone(protocol.Py4JError("An error occurred while calling o9.stop.\n: java.lang.NullPointerException"))


@pytest.mark.parametrize("kind", ["network", "bare", "refused"])
def test_a_jvm_that_is_killed_fails_the_query_with_the_remedy(kind):
    protocol = pytest.importorskip("py4j.protocol")
    raised = {
        "network": protocol.Py4JNetworkError("Answer from Java side is empty"),
        "bare": protocol.Py4JError("An error occurred while calling o137.awaitTermination"),
        "refused": ConnectionRefusedError(111, "Connection refused"),
    }

    class Gone:
        """A handle of Spark whose JVM has ended."""

        def awaitTermination(self, timeout):  # noqa: N802 - Spark's name
            raise raised[kind]

        @property
        def isActive(self):  # noqa: N802 - as above
            raise ConnectionRefusedError(111, "Connection refused")

    query: Any = object.__new__(SparkQuery)
    query._job, query._ticker, query.query = SimpleNamespace(title="the query 'count'"), None, Gone()
    with pytest.raises(QueryFailed, match=r"'count' failed: Spark's JVM has ended.*Start this program again"):
        query._has_ended()
    assert not query.is_active


def test_the_lines_of_the_users_function_are_a_note_without_those_of_the_engine():
    text = JOB.format(name="UserFunctionError")
    assert translated(SparkError(text), "q").__notes__ == [
        'In the worker:\n  File "job.py", line 3, in process_element\n    raise ValueError("boom")',
        remedy(UserFunctionError),
    ]
