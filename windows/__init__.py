"""Windows over keyed streams: assigners, triggers, aggregates and evictors.

```python
import keyed
from keyed.rows import row
from keyed.windows import Count, Sum, TumblingEventTimeWindows

orders = [row(shop="A", amount=2, at=1_000), row(shop="A", amount=3, at=2_000)]
hours = keyed.stream(orders, timestamp="at").key_by("shop").window(TumblingEventTimeWindows.of(hours=1))
print(hours.aggregate(orders=Count(), revenue=Sum("amount")).run().values)
```

```output
[WindowResult(shop='A', window_start=0, window_end=3600000, orders=2, revenue=5)]
```

Durations are `int` milliseconds, a `timedelta`, or keywords: ``**units`` are ``days``, ``hours``, ``minutes``,
``seconds`` and ``milliseconds``.

Library code on the public names of `keyed` and `keyed.extending`. In a clone, ``windows`` is another name of the
package.
"""

from keyed.windows.aggregates import Aggregate, Count, Max, Mean, Min, Stddev, Sum, Variance, aggregate_of
from keyed.windows.assigners import (
    CalendarProcessingTimeWindows,
    CalendarWindows,
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    HoppingEventTimeWindows,
    HoppingProcessingTimeWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from keyed.windows.collecting import (
    ApproxMostFrequent,
    ArgMax,
    ArgMin,
    CollectList,
    CollectSet,
    CountDistinct,
    First,
    Latest,
    MostFrequent,
    TopK,
)
from keyed.windows.continuous import aggregate
from keyed.windows.definition import ProcessWindowFunction
from keyed.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from keyed.windows.sketches import ApproxCountDistinct
from keyed.windows.stream import WindowedStream
from keyed.windows.top_n import TopN
from keyed.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from keyed.windows.window import GlobalWindow, TimeWindow

__all__ = [
    "Aggregate",
    "ApproxCountDistinct",
    "ApproxMostFrequent",
    "ArgMax",
    "ArgMin",
    "CalendarProcessingTimeWindows",
    "CalendarWindows",
    "CollectList",
    "CollectSet",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "Count",
    "CountDistinct",
    "CountEvictor",
    "CountTrigger",
    "CountWindows",
    "DeltaEvictor",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "First",
    "GlobalWindow",
    "GlobalWindows",
    "HoppingEventTimeWindows",
    "HoppingProcessingTimeWindows",
    "Latest",
    "Max",
    "Mean",
    "MergingWindowAssigner",
    "Min",
    "MostFrequent",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Stddev",
    "Sum",
    "TimeEvictor",
    "TimeWindow",
    "TopK",
    "TopN",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Variance",
    "WindowAssigner",
    "WindowedStream",
    "aggregate",
    "aggregate_of",
]

if __name__ == "windows":
    from keyed.windows.clone_name import use_clone_name

    use_clone_name()
