"""Window operators by themselves, without a stream, and assigners and triggers that a text names."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from keyed import windows as w
from keyed.windows.definition import define
from keyed.windows.triggers import NeverTrigger
from keyed.windows.window_operator import WindowBatchOperator, WindowOperator


def window_rows(**parts: Any) -> WindowOperator:
    """Return the operator that runs windows row by row, of the parts of a definition."""
    return WindowOperator(define(**parts))


def window_columns(**parts: Any) -> WindowBatchOperator:
    """Return the operator that runs windows over whole columns, of the parts of a definition."""
    return WindowBatchOperator(define(**parts))


WINDOWS: dict[str, Callable[..., w.WindowAssigner]] = {
    "tumbling": w.TumblingEventTimeWindows.of,
    "tumbling_by_clock": w.TumblingProcessingTimeWindows.of,
    "hopping": w.HoppingEventTimeWindows.of,
    "hopping_by_clock": w.HoppingProcessingTimeWindows.of,
    "sessions": w.EventTimeSessionWindows.with_gap,
    "sessions_by_clock": w.ProcessingTimeSessionWindows.with_gap,
    "dynamic_sessions": lambda gap: w.EventTimeSessionWindows.with_dynamic_gap(lambda _: gap),
}
TRIGGERS: dict[str, Callable[..., w.Trigger]] = {
    "event_time": w.EventTimeTrigger,
    "by_clock": w.ProcessingTimeTrigger,
    "continuous": w.ContinuousEventTimeTrigger.of,
    "continuous_by_clock": w.ContinuousProcessingTimeTrigger.of,
    "count": w.CountTrigger.of,
    "never": NeverTrigger,
}


def windows_of(text: str) -> w.WindowAssigner:
    """Return the assigner that a text names: ``hopping 2000 500 offset 10``."""
    name, *numbers = text.replace("offset ", "").split()
    return WINDOWS[name](*map(int, numbers))


def trigger_of(text: str) -> w.Trigger:
    """Return the trigger that a text names: ``purging continuous 2000``, ``timeout 50 keeps count 3``."""
    name, _, rest = text.partition(" ")
    if name == "timeout":
        after, _, nested = rest.partition(" ")
        resets, keeps = nested.startswith("resets "), nested.startswith("keeps ")
        return w.ProcessingTimeoutTrigger.of(
            trigger_of(nested.removeprefix("resets ").removeprefix("keeps ")),
            int(after),
            reset_timer_on_new_record=resets,
            should_clear_on_timeout=not keeps,
        )
    return w.PurgingTrigger.of(trigger_of(rest)) if name == "purging" else TRIGGERS[name](*map(int, rest.split()))


def column_aggregates(type_: str) -> dict[str, Any]:
    """Return the aggregates of a column ``v`` of a type that have a form over columns; a column ``r`` ranks."""
    aggregates: dict[str, Any] = {
        "rows": w.Count(),
        "count": w.Count("v"),
        "least": w.Min("v"),
        "most": w.Max("v"),
        "first": w.First("v", by_time=True),
        "latest": w.Latest("v", by_time=True),
        "at_most": w.ArgMax("v", "r"),
        "at_least": w.ArgMin("v", "r"),
        "top": w.TopK(2, "v"),
        "top_by": w.TopK(3, "v", by="r"),
        "about": w.ApproxCountDistinct("v", precision=4),
    }
    if type_ != "double":
        aggregates |= {
            "distinct": w.CountDistinct("v"),
            "values": w.CollectSet("v"),
            "frequent": w.MostFrequent(2, "v"),
        }
    if type_ in ("int", "bigint", "double", "decimal(20,2)"):
        aggregates |= {
            "total": w.Sum("v"),
            "mean": w.Mean("v"),
            "variance": w.Variance("v"),
            "population": w.Variance("v", sample=False),
            "deviation": w.Stddev("v"),
        }
    return aggregates


def accumulate(aggregate: Any, values: Iterable[Any], times: Iterable[int] | None = None) -> Any:
    """Return an accumulator of the values; without times they come one after the other."""
    accumulator = aggregate.create_accumulator()
    for value, time in zip(values, times or count(), strict=False):
        arguments = (value, time, accumulator) if aggregate.timed else (value, accumulator)
        accumulator = (aggregate.add_at if aggregate.timed else aggregate.add)(*arguments)
    return accumulator
