"""Errors that come back from Spark as text."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyed import errors
from keyed.errors import NullKeyError, QueryFailed, UserFunctionError, remedy
from keyed.runtimes.spark.query.failures import is_gone, translated
from keyed.runtimes.spark.query.spark_query import SparkQuery
from tests.keyed.runtimes.conftest import CASES

#: The error of a query whose task has failed.
JOB = Path(__file__).with_name("job_failure.txt").read_text()


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


@pytest.mark.parametrize(("text", "error", "message"), CASES["errors of Spark as text"])
def test_the_cause_is_in_the_first_words(text, error, message):
    translation = translated(SparkError(text), "q")
    assert type(translation) is getattr(errors, error)
    assert re.match(message, str(translation))


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
