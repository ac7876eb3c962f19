"""Objects that cannot be sent to Spark's workers are named before the query starts."""

import threading

import pytest

import keyed
from keyed.errors import DefinitionError
from keyed.runtimes.spark.plan.serialization import check_serializable
from keyed.windows import ProcessWindowFunction, TumblingEventTimeWindows


class Count(keyed.KeyedProcessFunction):
    def __init__(self, given=None):
        self.given = given

    def process_element(self, value, ctx):
        yield value.word, 1


class Held:
    def __init__(self):
        self.lock = threading.Lock()


def refusal(function) -> str:
    with pytest.raises(DefinitionError) as caught:
        check_serializable(function, "count")
    return str(caught.value)


def test_what_can_be_pickled_passes():
    check_serializable(Count({"a": [1, 2.5, None]}), "count")


def test_a_lock_on_self_is_named_with_operator_attribute_and_remedy():
    said = refusal(Count(threading.Lock()))
    assert said.startswith("operator 'count': Count.given is a _thread.lock, which cannot be sent to Spark's workers")
    assert "open(self, context)" in said


def test_an_object_of_the_user_is_named_as_the_attribute_that_he_wrote():
    said = refusal(Count(Held()))
    assert "Count.given is a " in said
    assert "Held, which" in said
    assert "cannot pickle '_thread.lock' object" in said


def shared():
    class Shared(Count):
        lock = threading.Lock()

    return Shared()


def closing():
    lock = threading.Lock()

    class Closing(Count):
        def process_element(self, value, ctx):
            with lock:
                yield value.word, 1

    return Closing()


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: Count({"locks": [1, threading.Lock()]}), "Count.given['locks'][1]"),
        (closing, "Closing.process_element, its variable 'lock',"),
        (shared, "Shared.lock"),
    ],
)
def test_a_lock_is_named_by_its_place(make, place):
    assert f"{place} is a _thread.lock" in refusal(make())


class Client(ProcessWindowFunction):
    def __init__(self):
        self.lock = threading.Lock()

    def process(self, key, context, elements):
        yield key, len(elements)


def test_what_a_window_is_given_is_named():
    windowed = keyed.stream([{"k": "a"}]).key_by("k").window(TumblingEventTimeWindows.of(1000))
    output = windowed.process(Client(), output="k string, n long")
    assert "WindowOperator.definition.process.lock is a _thread.lock" in refusal(output.stage.function)


def test_a_spark_session_is_named_before_the_query_starts(spark):
    frame = spark.createDataFrame([("a",)], "word string")
    output = keyed.stream(frame).key_by("word").process(Count(spark), output="word string, n long", name="words")
    with pytest.raises(DefinitionError, match=r"operator 'words': Count\.given is a pyspark.*SparkSession"):
        output.run()
