"""Ready properties of keyed functions: each is checked on many small inputs, and reports its result or the failure.

All of them take the function, a strategy of streams (`keyed.testing.strategies.streams`, or any strategy of lists of
rows; over two inputs `keyed.testing.strategies.two_streams`), and the keywords of `PropertyOptions`. They need the
extra ``keyed-streams[testing]``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import wraps
from typing import TYPE_CHECKING, Any, Unpack

import attrs
from hypothesis import HealthCheck, Phase, Verbosity, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from keyed.base.arguments import Duration, milliseconds_of, shows_options, time_text
from keyed.base.schemas import schema_of
from keyed.errors import DefinitionError
from keyed.job.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    check_parallelism,
    check_store,
)
from keyed.job.watermarks import WatermarkStrategy, strategy_of
from keyed.testing.arrivals import arrivals_with_other_sums, other_arrivals, timers_first
from keyed.testing.function_options import FunctionOptions, Record, key_of_record
from keyed.testing.harness import KeyedTestHarness
from keyed.testing.other_process import OtherProcess, ProcessUnavailable, draw_seed, texts_in, texts_of
from keyed.testing.printing import as_test, code_of
from keyed.testing.process_state import Extreme, ProcessMemory, drawing
from keyed.testing.scripts import (
    Crash,
    End,
    Outcome,
    ProcessingTime,
    Rescale,
    Rows,
    Script,
    Watermark,
    difference,
    outcome,
    text_of,
)
from keyed.testing.strategies import batches, steps
from keyed.testing.tally import Tally, defines_on_timer
from keyed.vectorized import VectorizedFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PropertyOptions(FunctionOptions, total=False):
    """The keywords of all properties.

    Attributes:
        key: Key of a row, as in `KeyedTestHarness`.
        key2: Key of a row of the second side, as there.
        broadcast: Descriptors of broadcast states, as there; rows of the second stream are broadcast then.
        watermark: The strategy, as in `keyed.stream`; by default that for rows in order.
        order: The order of rows, as in `KeyedTestHarness`.
        examples: Number of inputs; by default that of Hypothesis' settings.
        seed: The seed of the inputs; by default ``--keyed-seed``, or another one each time.
    """

    examples: int | None
    seed: int | None


_shows = shows_options(PropertyOptions, broadcast=(), order="event_time")
#: Maximal single advance of the processing time.
_DAY = 86_400_000
#: Examples that are tried after the first failing one, to find a smaller one: those of floating-point numbers would
#: shrink for minutes.
_SHRINKING = 1_000


class _ShrunkEnough(BaseException):
    """Raised in place of a further example; Hypothesis would take an `Exception` for another failure."""


class Falsified(AssertionError):
    """A property does not hold.

    Attributes:
        rows: The rows of the smallest failing example that was found.
        test: A test that fails with them, as Python code.
        seed: The seed that repeats the search.
    """

    def __init__(self, why: str, rows: Sequence[Record], test: str, seed: int) -> None:
        many = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        super().__init__(f"{why}\nSmallest example, {many} (found with --keyed-seed={seed}), as a test:\n\n{test}")
        self.rows = list(rows)
        self.test = test
        self.seed = seed


@attrs.define
class _Failure(Exception):
    """The failure of an example."""

    why: str
    rows: Sequence[Record]
    lines: Sequence[str]
    values: Any = ()


def _prove(
    name: str,
    proved: str,
    function: Function,
    example: SearchStrategy[Any],
    check: Callable[[Any, Tally], None],
    options: Any,
    *needs: str,
    seed_: int | None = None,
    finish: Callable[[int], str] | None = None,
) -> str:
    """Check examples, and return a sentence with the result.

    Args:
        name: Name of the test to be printed.
        proved: The sentence.
        function: The function; its memory in the process is reset before each example.
        example: The strategy.
        check: Raises a `_Failure`, and counts in the tally.
        options: `PropertyOptions`.
        needs: Situations that have to occur in the examples, as in `Tally`.
        seed_: The seed of the examples, if it is known.
        finish: Called with the seed when all examples have passed; its result ends the sentence.

    Raises:
        Falsified: An example failed.
    """
    __tracebackhide__ = True
    number = _seed(options) if seed_ is None else seed_
    examples = options.get("examples") or settings().max_examples
    failures: list[_Failure] = []
    shrinking = 0
    memory = ProcessMemory(function)
    tally = Tally(function, options, needs)

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(example)
    def tried(drawn: Any) -> None:
        nonlocal shrinking
        if failures:
            shrinking += 1
            if shrinking > _SHRINKING:
                raise _ShrunkEnough
        with memory.as_at_first():
            try:
                check(drawn, tally)
            except _Failure as failure:
                failures.append(failure)
                raise

    try:
        tried()
    except (_Failure, Flaky, _ShrunkEnough):
        # A failure that does not repeat is still a fault: the smallest example that failed is shown.
        raise _falsified(name, function, failures, options, number) from None
    finished = finish(number) if finish is not None else ""
    if seed_ is None:
        tally.warn(stack_level=5)
    return f"{type(function).__name__}: {proved}{finished}, in {tally.sentence()} (--keyed-seed={number})"


def _falsified(name: str, function: Function, failures: Sequence[_Failure], options: Any, number: int) -> Falsified:
    """Return the error with the smallest of the examples that failed."""
    last = min(reversed(failures), key=_size)
    return Falsified(last.why, last.rows, as_test(name, last.lines, function, last.rows, options, last.values), number)


def _size(failure: _Failure) -> tuple[int, ...]:
    """Return the size of a failing example: its rows, then its steps, its times, its values."""
    times = sum(abs(row.timestamp or 0) for row in failure.rows)
    return len(failure.rows), len(failure.lines), times, len(repr(failure.rows))


def _seed(options: Any) -> int:
    """Return the seed of the examples.

    Raises:
        DefinitionError: An option is invalid.
    """
    for option, least in (("seed", 0), ("examples", 1)):
        given_value = options.get(option)
        if given_value is not None and (type(given_value) is not int or given_value < least):
            raise DefinitionError(f"{option}={given_value!r} must be an int of at least {least}")
    number = options.get("seed")
    if number is None:
        number = os.environ.get("KEYED_SEED")
    return int(number) if number else random.SystemRandom().getrandbits(32)


def _script(
    function: Function, done: Iterable[Any], options: Any, *, in_new_process: bool = False, **more: Any
) -> Script:
    options_given = {name: options.get(name) for name in FunctionOptions.__annotations__ if options.get(name)}
    keywords: Any = {"watermark": WatermarkStrategy(0), **options_given, **more}
    return Script(function, done, keywords, in_new_process)


def _stream(rows: SearchStrategy[Any]) -> SearchStrategy[list[Record]]:
    """Return a strategy of records: rows that are not records have no timestamp.

    Raises:
        DefinitionError: It is not a strategy, or does not draw lists.
    """
    if not isinstance(rows, SearchStrategy):
        raise DefinitionError(f"rows={rows!r:.200} is not a strategy; give strategies.streams(...)")

    def records(drawn: Any) -> list[Record]:
        if not isinstance(drawn, list):
            raise DefinitionError(
                f"rows draws {drawn!r:.200}, which is not a list of rows; give strategies.streams(rows)"
            )
        return [row if isinstance(row, Record) else Record(row, None) for row in drawn]

    return rows.map(records)


def _choices(choices: Any, name: str, check: Callable[[Any], None]) -> list[Any]:
    """Return the choices of an option.

    Raises:
        DefinitionError: It is empty, or not a list of allowed values.
    """
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise DefinitionError(f"{name}={choices!r} must be a non-empty list")
    for choice in choices:
        check(choice)
    return list(choices)


def _compare(why: str, seen: str, scripts: Callable[[Any], tuple[Script, Script]]) -> Callable[[Any, Tally], None]:
    """Return the check that the outcomes of two scripts are the same; the steps of the second one are counted."""

    def check(drawn: Any, tally: Tally) -> None:
        one, other = scripts(drawn)
        tally.steps(other.steps)
        _check_same(why, one, _run(one, tally), other, other.run(), seen)

    return check


def _run(script: Script, tally: Tally) -> Outcome:
    """Run a script, and count its events.

    Raises:
        _Failure: The function fails.
    """
    outcome = script.run(watch=tally.look)
    if "error" in outcome:
        _fail(script, outcome["error"])
    tally.outcome(outcome)
    return outcome


def _check_same(why: str, one: Script, first: Outcome, other: Script, second: Outcome, seen: str) -> None:
    """Compare the outcomes of two scripts.

    Raises:
        _Failure: They differ.
    """
    where = difference(first, second)
    if where is not None:
        what = _shown_place(where)
        message = f"{why}: {what} is {first.get(where)!r:.300} {seen}, and {second.get(where)!r:.300} otherwise"
        if where == "error":
            message, check = f"{why}: it then fails with {second['error']:.500}", []
        else:
            check = [f"assert {where.format('other')} == {where.format('one')}"]
        raise _Failure(message, one.rows, [*one.lines("one"), *other.lines("other"), *check])


def _shown_place(expression: str) -> str:
    return expression.replace("{}.", "").removeprefix("sorted(").partition(", key")[0]


def _fail(script: Script, error: str) -> None:
    raise _Failure(f"the function fails: {error:.500}", script.rows, script.lines("harness"))


@_shows
def assert_batch_split_invariant(
    function: Function, rows: SearchStrategy[Any], **options: Unpack[PropertyOptions]
) -> str:
    """Check that outputs, states and timers do not depend on where the input is cut into micro-batches.

    Any deterministic function passes on rows in order; under disorder, one whose result does not depend on the order
    of rows. Give no late rows: whether a row is late depends on its batch.

    Raises:
        Falsified: They do.
    """
    __tracebackhide__ = True

    def scripts(cut: list[Rows]) -> tuple[Script, Script]:
        uncut = [Rows([row for batch in cut for row in batch.rows])] if cut else []
        return _script(function, uncut, options), _script(function, cut, options)

    why = f"{type(function).__name__} depends on where the input is cut into batches"
    return _prove(
        "cut_into_batches",
        "outputs, states and timers do not depend on where the input is cut into batches",
        function,
        _stream(rows).flatmap(batches),
        _compare(why, "in one batch", scripts),
        options,
        "cut",
        "left",
    )


@_shows
def assert_recovery_invisible(
    function: Function,
    rows: SearchStrategy[Any],
    *,
    stores: Sequence[Any] = ("memory", "rocksdb"),
    **options: Unpack[PropertyOptions],
) -> str:
    """Check that a crash after any step changes nothing: outputs, states and timers are those of an undisturbed run.

    Args:
        function: The function.
        rows: As of all properties.
        stores: Local stores; the first is tried most.
        options: As of all properties.

    Raises:
        Falsified: A crash has an effect.
    """
    __tracebackhide__ = True

    def scripts(drawn: Any) -> tuple[Script, Script]:
        done, store = drawn
        # RocksDB takes long to open, and matters for crashes only.
        undisturbed = [step for step in done if not isinstance(step, Crash)]
        crashing = _script(function, done, options, store=store, in_new_process=True)
        return _script(function, undisturbed, options, store=stores[0]), crashing

    check = _compare(f"a crash of {type(function).__name__} is visible", "without a crash", scripts)
    stores = _choices(stores, "stores", lambda store: check_store(store, "stores"))
    any_store = st.sampled_from([*[stores[0]] * 12, *stores[1:]])
    example = st.tuples(_stream(rows).flatmap(lambda stream: steps(stream, crashes=True, move=_DAY)), any_store)
    proved = "crashes after any step change nothing"
    return _prove("crash", proved, function, example, check, options, "restarts", "left", "clock")


@_shows
def assert_rescale_invisible(
    function: Function,
    rows: SearchStrategy[Any],
    *,
    parallelisms: Sequence[int] = (1, 2, 3, 5),
    **options: Unpack[PropertyOptions],
) -> str:
    """Check that another number of key groups, after any step, changes nothing.

    Args:
        function: The function.
        rows: As of all properties.
        parallelisms: The numbers that are tried.
        options: As of all properties.

    Raises:
        Falsified: The number of key groups has an effect.
    """
    __tracebackhide__ = True

    def scripts(done: list[Any]) -> tuple[Script, Script]:
        fixed = [step for step in done if not isinstance(step, Rescale)]
        return _script(function, fixed, options), _script(function, done, options, in_new_process=True)

    check = _compare(f"rescaling {type(function).__name__} is visible", "with one key group", scripts)
    tried = _choices(parallelisms, "parallelisms", check_parallelism)
    example = _stream(rows).flatmap(lambda stream: steps(stream, parallelisms=tried, move=_DAY))
    proved = "another number of key groups changes nothing"
    return _prove("rescale", proved, function, example, check, options, "restarts", "left", "clock")


@_shows
def assert_deterministic(
    function: Function, rows: SearchStrategy[Any], *, same_order: bool = False, **options: Unpack[PropertyOptions]
) -> str:
    """Check that the same rows give the same results again.

    Each example runs four or five times:

    - twice in this process, with the lowest and then the highest numbers from ``random`` and ``secrets``: detects
      random numbers, the machine's clock, and memory that outlives a run, such as a mutable attribute of the class.
    - in another process with another hash seed, other times and random numbers; if the function hashes text, in one
      more: detects the order of a set, ``hash``, a date, the age of a row.
    - with another order of arrival of rows with equal times, and of rows within the delay of the watermark. Detects
      functions in which the last row wins, and sums of floats. Only a key's last output, its state and its timers must
      be equal.
    - if the function has timers and the watermark a delay: with rows by time, and each timer before the rows after its
      time, as if rows of other keys had moved the watermark. Detects a timer that reads a later row's write.

    Args:
        function: The function.
        rows: As of all properties.
        same_order: Try no other order of arrival.
        options: As of all properties.

    Returns:
        A sentence with the claim and the number of examples. It has the reason if the function cannot be sent to
        another process.

    Raises:
        Falsified: Another run differs.
    """
    __tracebackhide__ = True
    tried: list[tuple[Script, dict[str, str]]] = []
    called = _call_again(function, same_order, options)
    watermark = strategy_of(options.get("watermark"))
    delay = 0 if watermark is None else max(watermark.delay_ms, 0)
    broadcasts = isinstance(function, KeyedBroadcastProcessFunction)
    sides = [1] if broadcasts else [1, 2]
    # A timer reads the broadcast elements that have arrived.
    has_timers = defines_on_timer(type(function)) and not broadcasts

    def check(drawn: Any, tally: Tally) -> None:
        done, arrived = drawn
        tally.steps(done)
        script = _script(function, [*done, End()], options)
        with drawing("low", draw_seed(script.steps)):
            first = _run(script, tally)
        with drawing("high", draw_seed(script.steps)):
            second = script.run()
        if difference(first, second) is not None:
            _not_deterministic(script, first, second, called)
        for order in orders(done, arrived):
            tally.orders()
            _compare_arrivals(function, first, done, order, options)
        tried.append((script, text_of(first)))

    def orders(done: list[Any], arrived: list[Any]) -> Iterator[list[Any]]:
        if arrived != done:
            yield arrived
        if not same_order:
            others = arrivals_with_other_sums(done, delay=delay, sides=sides, key_of=key_of)
            if has_timers and delay:
                others.append(timers_first(done, delay=delay, sides=sides))
            yield from (each for each in others if each not in (done, arrived))

    def key_of(record: Record) -> str:
        return key_of_record(function, options, record)

    def example(stream: list[Record]) -> SearchStrategy[Any]:
        done = steps(stream, move=_DAY)
        if same_order:
            return done.map(lambda each: (each, each))
        return done.flatmap(lambda each: st.tuples(st.just(each), other_arrivals(each, delay=delay, sides=sides)))

    def elsewhere(number: int) -> str:
        return _in_other_process(function, tried, _stream(rows).flatmap(example), called, number, options)

    proved = "the same rows give the same results again"
    examples = _stream(rows).flatmap(example)
    return _prove("same_again", proved, function, examples, check, options, "left", "clock", "end", finish=elsewhere)


def _call_again(function: Function, same_order: bool, options: Any) -> str:
    """Return the code of `assert_deterministic` for ``rows``."""
    more = ["same_order=True"] if same_order else []
    for name, value in options.items():
        if isinstance(value, WatermarkStrategy):
            more.append(f"{name}=bounded_out_of_orderness({value.delay_ms})")
        elif name not in ("seed", "examples") and value is not None:
            more.append(f"{name}={code_of(value)}")
    return f"assert_deterministic({', '.join([code_of(function), 'st.just(rows)', *more])})"


def _not_deterministic(script: Script, first: Outcome, second: Outcome, called: str) -> None:
    """Raise the difference of two runs in this process, the first with the lowest random numbers.

    Raises:
        _Failure: Always.
    """
    why = f"{type(script.function).__name__} is not deterministic"
    with drawing("low", draw_seed(script.steps)):
        again = script.run()
    try:
        _check_same(why, script, first, script, second, "in one run")
    except _Failure as failure:
        if difference(first, again) is not None:
            raise
        # With the same random numbers it passes; a test that draws them at random would mostly pass.
        lines = [f"rows = {code_of(script.rows)}", called]
        raise _Failure(f"{failure.why}, with other random numbers", failure.rows, lines) from None


def _compare_arrivals(
    function: Function, first: Outcome, done: Sequence[Any], arrived: Sequence[Any], options: Any
) -> None:
    """Compare two orders of arrival: all outputs, or else the final results of each key.

    Raises:
        _Failure: The results of a key differ.
    """
    one, other = (_script(function, [*order, End()], options) for order in (done, arrived))
    second = other.run()
    if difference(first, second) is None:
        return
    left, right = _final_results(one), _final_results(other)
    if "error" in left:
        _fail(one, left["error"])
    if difference(left, right) is not None:
        _check_same(
            f"{type(function).__name__} depends on the order in which rows of equal times, or within the delay of the "
            "watermark, arrive, or on those that arrive before an earlier timer fires (order='watermark' runs them by "
            "time; if they always arrive in one order: same_order=True)",
            one,
            left,
            other,
            right,
            "in one order",
        )


def _final_results(script: Script) -> Outcome:
    """Return the final results of a run: the last output of each key for rows, and all outputs of timers.

    A function that collects outputs, and yields none, is compared by its states and timers only.
    """
    last: dict[str, Any] = {}
    fired: list[Any] = []

    def record(function: Any) -> None:
        cls = type(function)
        names = ["process_element", "process_element1", "process_element2"]
        names = [name for name in names if hasattr(cls, name)] + (["on_timer"] if defines_on_timer(cls) else [])
        # On the class, because the engine runs copies of the function.
        recording = type(
            cls.__name__, (cls,), {name: recorded(getattr(cls, name)) for name in names} | {"__slots__": ()}
        )
        object.__setattr__(function, "__class__", recording)

    def recorded(call: Any) -> Any:
        def each(outputs: Iterable[Any], key: Any, value: Any) -> Iterator[Any]:
            for output in outputs:
                if call.__name__ == "on_timer":
                    fired.append((key, value, deepcopy(output)))
                else:
                    last[repr(key)] = deepcopy(output)
                yield output

        @wraps(call)
        def called(self: Any, value: Any, ctx: Any) -> Iterator[Any] | None:
            outputs = call(self, value, ctx)
            return None if outputs is None else each(outputs, ctx.get_current_key(), value)

        return called

    def look(harness: KeyedTestHarness) -> Outcome:
        result = outcome(harness)
        kept = {expression: value for expression, value in result.items() if not expression.startswith("sorted(")}
        return kept | {"sorted({}.take_output(), key=repr)": [*fired, *last.values()]}

    return script.run(look, prepare=None if isinstance(script.function, VectorizedFunction) else record)


def _in_other_process(
    function: Function,
    tried: Sequence[tuple[Script, dict[str, str]]],
    example: SearchStrategy[Any],
    called: str,
    number: int,
    options: Any,
) -> str:
    """Run the examples again in another process, compare, and return the end of the sentence.

    Raises:
        Falsified: A run differs there.
    """
    __tracebackhide__ = True

    def failure(script: Script, here: dict[str, str], outcomes: list[dict[str, str]]) -> _Failure | None:
        other = next((outcome for outcome in outcomes if outcome != here), here)
        where = next((each for each in here | other if here.get(each) != other.get(each)), None)
        if where is None:
            return None
        what = _shown_place(where)
        return _Failure(
            f"{type(function).__name__} is not deterministic: {what} is {here.get(where, 'empty'):.300}, and "
            f"{other.get(where, 'empty'):.300} in a process with another hash seed, which orders sets in another way, "
            "at another time and with other random numbers",
            script.rows,
            [f"rows = {code_of(script.rows)}", called],
        )

    def run(hashes: Extreme) -> int:
        """Run the examples in a process with these hashes; return how many of text the user's code has asked for."""
        with OtherProcess(texts, texts_in(type(function)), hashes) as other:

            def check(drawn: Any, tally: Tally) -> None:
                script = _script(function, [*drawn[0], End()], options)
                with drawing("low", draw_seed(script.steps)):
                    here = _run(script, tally)
                if (failed := failure(script, text_of(here), other.run([script])[0])) is not None:
                    raise failed

            outcomes = other.run([script for script, _ in tried])
            differences = [failure(*each, elsewhere) for each, elsewhere in zip(tried, outcomes, strict=True)]
            if failures := [each for each in differences if each is not None]:
                # The same examples again, so that a failure in that process is shrunk.
                _prove("same_again", "", function, example, check, options, seed_=number)
                raise _falsified("same_again", function, failures, options, number)
            return other.hashed

    texts = [texts_of([row.value for row in script.rows]) for script, _ in tried]
    try:
        if run("low"):
            run("high")
    except ProcessUnavailable as error:
        return f" in this process (not in another one, because it cannot be sent there: {error})"
    return ""


@_shows
def assert_matches(
    function: Function,
    model: Callable[[list[Any]], Iterable[Any]],
    rows: SearchStrategy[Any],
    *,
    clocks: bool | Duration = False,
    **options: Unpack[PropertyOptions],
) -> str:
    """Check that the outputs up to the end of the input are those of a plain Python model, in any order.

    Args:
        function: The function.
        model: From the rows in order of arrival, each a `Record`, to the values of all outputs, or `Record` objects
            to compare timestamps too.
        rows: As of all properties.
        clocks: The processing time moves from 0, by up to ten seconds or this duration at a time; the model gets each
            move among the rows as a `ProcessingTime`. Required for processing-time timers and times to live.
        options: As of all properties.

    Raises:
        Falsified: The outputs differ.
        DefinitionError: The model fails.
    """
    __tracebackhide__ = True
    if not callable(model):
        raise DefinitionError(f"model={model!r:.200} is not a function; give it before the rows")

    def check(done: list[Any], tally: Tally) -> None:
        tally.steps(done)
        script = _script(function, [*done, End()], options)
        happened = [each for step in done for each in (step.rows if isinstance(step, Rows) else [step])]
        try:
            expected = list(model(list(happened)))
        except Exception as error:
            raise DefinitionError(
                f"the model fails: {type(error).__name__}: {error}; its argument was {happened!r}"
            ) from error
        timed = any(isinstance(value, Record) for value in expected)
        outputs = _run(script, tally)["sorted({}.take_output(), key=repr)"]
        tally.left += bool(outputs or expected)
        values = sorted(outputs if timed else [record.value for record in outputs], key=repr)
        expected.sort(key=repr)
        if values != expected and repr(values) != repr(expected):
            raise _Failure(
                f"{type(function).__name__} differs from its model: it gives {values!r:.300}, the model "
                f"{expected!r:.300}",
                script.rows,
                [
                    *script.lines("harness"),
                    "outputs = harness.take_output()",
                    f"outputs = {'outputs' if timed else '[value for value, _ in outputs]'}",
                    f"assert sorted(outputs, key=repr) == {code_of(expected)}",
                ],
                expected,
            )

    proved = "the outputs are those of the model" + ("" if clocks else " at a fixed processing time")
    move = 10_000 if isinstance(clocks, bool) else milliseconds_of(clocks, "clocks", least=1)
    example: SearchStrategy[Any] = _stream(rows).flatmap(
        (lambda stream: steps(stream, move=move, ticks=True)) if clocks else batches
    )
    return _prove("model", proved, function, example, check, options, "left", "end", *(["clock"] if clocks else []))


@_shows
def assert_state_bounded(
    function: Function,
    rows: SearchStrategy[Any],
    *,
    silence: Duration,
    keeps: int = 0,
    **options: Unpack[PropertyOptions],
) -> str:
    """Check that state and timers are removed when keys are silent, and when the input ends.

    Args:
        function: The function.
        rows: As of all properties.
        silence: Event time and processing time without rows after which a key's state has to be removed.
        keeps: Entries of state and timers that each key may keep.
        options: As of all properties.

    Raises:
        Falsified: More entries remain.
    """
    __tracebackhide__ = True
    silence_ms = milliseconds_of(silence, "silence")

    def check(cut: list[Rows], tally: Tally) -> None:
        assume(cut)
        tally.steps(cut)
        if not tally.held:
            tally.held += bool(_script(function, cut, options).run(_contents_by_key).get("by key"))
        times = [row.timestamp for batch in cut for row in batch.rows if row.timestamp is not None]
        silent = [ProcessingTime(silence_ms), *([Watermark(max(times) + silence_ms)] if times else [])]
        for what, last in ((f"{silence_ms} ms after its last row", silent), ("after the end of the input", [End()])):
            # Runs the work that the clocks have made due, and the work that it makes due in turn.
            script = _script(function, [*cut, *last], options)
            held = script.run(_contents_by_key, None if last == [End()] else tally.look)
            if "error" in held:
                _fail(script, held["error"])
            for key, (many, entries) in held["by key"].items():
                if many > keeps:
                    raise _Failure(
                        f"{type(function).__name__} leaks: key {key!r} has {many} "
                        f"{'entry' if many == 1 else 'entries'} of state and timers {what}, and may keep {keeps}: "
                        f"{', '.join(entries):.300}",
                        script.rows,
                        [
                            *script.lines("harness"),
                            f"key = {code_of(key)}",
                            f"assert harness.state_entries(key) + len(harness.pending_timers(key)) <= {keeps}",
                        ],
                        key,
                    )

    proved = f"a key keeps at most {keeps} entries of state and timers when it is silent for {silence_ms} ms"
    return _prove(
        "state_is_bounded", proved, function, _stream(rows).flatmap(batches), check, options, "held", "clock", "end"
    )


def _contents_by_key(harness: KeyedTestHarness) -> dict[str, Any]:
    """Return the entries of state and timers of each key, with their number."""
    held: dict[Any, list[str]] = {}
    for name in harness.state_names:
        for namespace in (None, *harness.namespaces(name)):
            where = "" if namespace is None else f" in namespace {namespace!r}"
            for key, state in harness.state(name, namespace).items():
                held.setdefault(key, []).append(f"{name} {state!r}{where}")
    for timer in harness.pending_timers():
        held.setdefault(timer.key, []).append(f"timer at {time_text(timer.timestamp)}")
    many = {key: harness.state_entries(key) + len(harness.pending_timers(key)) for key in held}
    return {"by key": {key: (many[key], entries) for key, entries in held.items()}}


@_shows
def assert_runtimes_agree(
    function: Function,
    rows: SearchStrategy[Any],
    *,
    timestamp: str | None = None,
    output: Any = None,
    schema: str | None = None,
    schema2: str | None = None,
    spark: SparkSession | None = None,
    **options: Unpack[PropertyOptions],
) -> str:
    """Check that the harness, the local runtime and, with a session, Spark have the same outputs up to the input's end.

    Args:
        function: The function.
        rows: Streams of dictionaries.
        timestamp: Column with the event time.
        output: Columns of the main output, as in `keyed.KeyedStream.process`; Spark needs it.
        schema: Columns of the rows as DDL; Spark needs it.
        schema2: The same of the second side; by default as ``schema``.
        spark: A session; by default five examples are tried with it.
        options: As all properties have them; ``key`` names columns.

    Raises:
        Falsified: They differ.
        DefinitionError: ``key`` has no column names, or the schema for Spark is missing.
    """
    __tracebackhide__ = True
    import keyed

    descriptors = tuple(options.get("broadcast", ()))
    sides = 2 if descriptors or isinstance(function, KeyedCoProcessFunction) else 1
    keys = []
    for key in (options.get("key"), options.get("key2") or options.get("key"))[: 1 if descriptors else sides]:
        if key is None or callable(key):
            raise DefinitionError(
                f"assert_runtimes_agree: key={key!r}: not all runtimes accept a function; give names of columns"
            )
        keys.append((key,) if isinstance(key, str) else tuple(key))
    if spark is not None and (schema is None or output is None):
        raise DefinitionError("assert_runtimes_agree: spark= needs schema= and output=, the columns in and out")
    watermark = options.get("watermark") if timestamp is not None else None
    if spark is not None:
        options.setdefault("examples", 5)

    def chained(sources: list[Any], **more: Any) -> keyed.KeyedStream:
        streams = [keyed.stream(source, timestamp=timestamp, watermark=watermark, **more) for source in sources]
        first, *second = [stream.key_by(*names) for stream, names in zip(streams, keys, strict=False)]
        if descriptors:
            return first.connect(streams[1].broadcast(*descriptors))
        return first.connect(*second) if second else first

    # Outputs for a broadcast element come once per key group.
    process: Any = {"parallelism": 1} if descriptors else {}
    order = options.get("order", "event_time")
    process["order"] = order
    output_code = f", {code_of(output)}" if output is not None else ""
    output_code += f", order={order!r}" if order != "event_time" else ""

    def local(stream: list[Record], size: int) -> list[Any]:
        chain = chained([[row.value for row in each] for each in _by_side(stream, sides)])
        result = chain.process(deepcopy(function), output, **process).run(
            rows_per_batch=size, processing_time=lambda: 0
        )
        return list(result.values)

    def on_spark(stream: list[Record]) -> list[Any]:
        assert spark is not None
        assert schema is not None
        frames = []
        for each, ddl in zip(_by_side(stream, sides), (schema, schema2 or schema), strict=False):
            columns = schema_of(ddl).names
            frames.append(spark.createDataFrame([tuple(row.value[name] for name in columns) for row in each], ddl))
        chain = chained(frames, max_ahead=None).process(deepcopy(function), output, **process)
        return [tuple(row) for row in chain.df.collect()]

    into = [f"key_by({', '.join(map(repr, names))})" for names in keys]
    if descriptors:
        into.append(f"broadcast({', '.join(map(repr, descriptors))})")

    def check(drawn: Any, tally: Tally) -> None:
        stream, size = drawn
        assume(stream)
        # A batch of the local runtime has this many rows of each side.
        parts = _by_side(stream, sides)
        starts = range(0, max(map(len, parts)), size)
        cut = [Rows([row for part in parts for row in part[start : start + size]]) for start in starts]
        tally.steps(cut)
        script = _script(function, [*cut, End()], options)
        results = _run(script, tally)
        names = schema_of(output).names if output is not None else ()
        others: dict[str, Callable[[], list[Any]]] = {"the local runtime": lambda: local(stream, size)}
        if spark is not None:
            others["Spark"] = lambda: on_spark(stream)
        for runtime, run in others.items():
            if descriptors and runtime == "Spark":
                # The rules that a row reads depend on its batch, and a table is one batch.
                script = _script(function, [Rows(stream), End()], options)
                results = script.run()
            expected = _plain([record.value for record in results["sorted({}.take_output(), key=repr)"]], names)
            other = _plain(run(), names)
            if other != expected:
                raise _Failure(
                    f"{type(function).__name__} gives {other!r:.300} on {runtime}, and {expected!r:.300} otherwise",
                    script.rows,
                    [
                        *script.lines("harness"),
                        *(
                            f"stream{number} = keyed.stream({code_of([row.value for row in part])}, "
                            f"timestamp={timestamp!r}, watermark={watermark!r}).{how}"
                            for number, (part, how) in enumerate(zip(parts, into, strict=True), 1)
                        ),
                        f"stream = stream1{'.connect(stream2)' if sides == 2 else ''}",
                        f"stream = stream.process({code_of(function)}{output_code})",
                        f"result = stream.run(rows_per_batch={size}, processing_time=lambda: 0)",
                        f"assert sorted(map(tuple, result.values), key=repr) == {code_of(expected)}"
                        if names
                        else "assert sorted(result.values) == sorted(value for value, _ in harness.take_output())",
                    ],
                )

    example = st.tuples(_stream(rows), st.integers(1, 4))
    agreeing = "the harness, the local runtime and Spark" if spark is not None else "the harness and the local runtime"
    return _prove("runtimes", f"{agreeing} give the same outputs", function, example, check, options, "left")


def _by_side(stream: list[Record], sides: int) -> list[list[Record]]:
    return [[row for row in stream if row.input == number] for number in range(1, sides + 1)]


def _plain(values: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """Return outputs in order, as tuples if they have columns."""
    plain = []
    for value in values:
        if isinstance(value, dict):
            plain.append(tuple(value.get(name) for name in names or value))
        elif attrs.has(type(value)):
            plain.append(attrs.astuple(value))
        else:
            plain.append(tuple(value) if isinstance(value, list | tuple) else (value,))
    return sorted(plain, key=repr)
