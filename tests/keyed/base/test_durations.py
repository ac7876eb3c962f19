"""Durations in all their forms; timestamps as people read them: in errors, on the command line, in a harness."""

from __future__ import annotations

import inspect
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import keyed
import keyed.windows
from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, clock_text, time_text
from keyed.cli.main import main
from keyed.errors import DefinitionError, UserFunctionError
from keyed.testing import KeyedTestHarness

AT = 1_700_000_000_000
AS_TIME = "1700000000000 (2023-11-14 22:13:20.000 UTC)"


def test_numbers_that_may_be_timestamps_are_shown_with_their_times():
    assert time_text(AT) == clock_text(AT) == AS_TIME
    assert [time_text(number) for number in (7, None, AT * 1000, True)] == ["7", "None", f"{AT * 1000}", "True"]
    assert [clock_text(clock) for clock in (MIN_TIMESTAMP, MAX_TIMESTAMP)] == ["none", "end of input"]
    assert clock_text(7) == "7 (1970-01-01 00:00:00.007 UTC)"
    assert clock_text(10**17) == str(10**17)


class Fails(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        assert value == "fine", "no good"

    def on_timer(self, timestamp, ctx):
        raise ValueError("no good")


def test_the_place_of_an_error_and_the_repr_of_a_harness_have_times():
    with KeyedTestHarness(Fails()) as harness:
        with pytest.raises(UserFunctionError) as caught:
            harness.process("bad", AT)
        assert f"process_element of element 'bad', timestamp {AS_TIME}" in str(caught.value)
    with KeyedTestHarness(Fails()) as harness:
        harness.process("fine", AT)
        harness.advance_watermark(AT - 1)
        assert "watermark 1699999999999 (2023-11-14 22:13:19.999 UTC)" in repr(harness)
        with pytest.raises(UserFunctionError, match="on_timer of event_time timer at") as caught:
            harness.advance_watermark(AT)
        assert AS_TIME in str(caught.value)


class Kept(keyed.KeyedProcessFunction):
    seen = keyed.ValueState(int, ttl=keyed.StateTtl(3_600_000, time_domain=keyed.TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        self.seen.update(1)
        self.seen.namespace((0, ctx.timestamp())).update(2)


def test_ends_of_life_and_namespaces_are_printed_as_times(tmp_path, capsys):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    kept = keyed.stream([{"k": "a", "t": AT}], timestamp="t").key_by("k").process(Kept(), changelog=changelog)
    kept.run(checkpoint=tmp_path / "checkpoint", drain=False)
    assert main(["scan", str(tmp_path / "log"), "seen"]) == 0
    out = capsys.readouterr().out
    assert AS_TIME in out
    assert "(2023-11-14 23:13:" in out
    assert main(["inspect", str(tmp_path / "checkpoint"), "--key", "a"]) == 0
    assert f"0, {AS_TIME}" in capsys.readouterr().out


def calls_of_one_duration():
    """The public functions and methods that are about one duration: it is not one option of several."""
    for module in (keyed, keyed.windows):
        for name in module.__all__:
            thing = getattr(module, name)
            members = [each for each in dir(thing) if each[0] != "_"] if inspect.isclass(thing) else [""]
            for member in members:
                call = getattr(thing, member, None) if member else thing
                if not (inspect.isfunction(call) or inspect.ismethod(call)):
                    continue
                parameters = inspect.signature(call).parameters
                durations = [each for each in parameters.values() if "Duration" in str(each.annotation)]
                subjects = [each for each in durations if each.default in (each.empty, None)]
                if len(subjects) == 1 and subjects[0].kind is not inspect.Parameter.KEYWORD_ONLY and name != "stream":
                    yield pytest.param(call, id=f"{name}.{member}".rstrip("."))


@pytest.mark.parametrize("call", list(calls_of_one_duration()))
def test_every_call_about_one_duration_takes_its_units_as_keywords(call):
    assert {"days", "hours", "minutes", "seconds", "milliseconds"} <= inspect.signature(call).parameters.keys()


def test_a_duration_means_the_same_in_every_form():
    rows = keyed.stream([{"k": 1, "t": 1}], timestamp="t").key_by("k")
    windowed = rows.window(keyed.windows.TumblingEventTimeWindows.of(1))
    makers: list[Any] = [
        keyed.windows.TumblingEventTimeWindows.of,
        keyed.windows.EventTimeSessionWindows.with_gap,
        keyed.bounded_out_of_orderness,
        keyed.bounded_out_of_orderness(0).with_idleness,
        partial(keyed.bounded_out_of_orderness(0).with_watermark_alignment, "group"),
        keyed.StateTtl,
    ]
    for make in makers:
        assert repr(make(minutes=1)) == repr(make(60_000)) == repr(make(timedelta(minutes=1)))
        with pytest.raises(DefinitionError, match="not both"):
            make(5, seconds=1)
    assert windowed.allowed_lateness(hours=1)._lateness_ms == windowed.allowed_lateness(3_600_000)._lateness_ms
    assert windowed.close_when_idle(seconds=1)._idle_ms == 1_000


@pytest.mark.parametrize(
    "call", ["allowed_lateness", "close_when_idle", "element_type", "evictor", "side_output_late_data", "trigger"]
)
def test_a_setting_of_windows_after_their_aggregate_names_its_place(call):
    rows = keyed.stream([{"k": 1, "t": 1}], timestamp="t").key_by("k")
    output = rows.window(keyed.windows.TumblingEventTimeWindows.of(1)).aggregate(n=keyed.windows.Count())
    with pytest.raises(AttributeError, match="call it after window"):
        getattr(output, call)
