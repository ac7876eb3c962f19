"""Values that cannot be encoded: the error names the state and the key, however deep the value is nested."""

import pytest

from keyed import KeyedProcessFunction, ListState, MapState, ReducingState, ValueState
from keyed.errors import EncodingError
from keyed.testing import KeyedTestHarness

SURROGATE = "\ud800"
DEEP: list = []
for _ in range(3000):
    DEEP = [DEEP]


class Store(KeyedProcessFunction):
    """Stores what comes."""

    value = ValueState(object)
    typed = ListState(str)
    list = ListState(object)
    map = MapState(str, str)
    any = MapState(str, object)
    sum = ReducingState(lambda one, _: one, object)

    def process_element(self, value, ctx):
        state, content = value
        if state == "value":
            self.value.update(content)
        elif state in ("list", "typed", "sum"):
            getattr(self, state).add(content)
        else:
            getattr(self, state).put("k", content)

    def on_timer(self, timestamp, ctx):
        return None


@pytest.mark.parametrize("state", ["value", "typed", "list", "map", "any", "sum"])
@pytest.mark.parametrize("content", [SURROGATE, DEEP], ids=["surrogate", "deep"])
def test_the_state_and_the_key_are_named(state, content):
    harness = KeyedTestHarness(Store(), key=lambda element: "some key")
    with pytest.raises(EncodingError, match=rf"{state}'.*key 'some key'"):
        harness.process((state, content))


def test_a_key_that_is_nested_too_deep_is_named():
    key: tuple = ()
    for _ in range(3000):
        key = (key,)
    with pytest.raises(EncodingError, match="nested"):
        KeyedTestHarness(Store(), key=lambda element: key).process(("value", 1))


@pytest.mark.parametrize("how", ["yield", "collect", "output"])
def test_an_output_that_is_nested_too_deep_is_refused(how):
    class Emits(KeyedProcessFunction):
        def process_element(self, value, ctx):
            if how == "yield":
                yield DEEP
            elif how == "collect":
                ctx.collect(DEEP)
            else:
                ctx.output("side", DEEP)

    with pytest.raises(EncodingError, match=r"nested too deep, or contains itself; flatten it \(.*of element 1"):
        KeyedTestHarness(Emits()).process(1)
