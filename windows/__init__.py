"""Windows over keyed streams, for writers of jobs: assigners, triggers, aggregates and evictors.

Library code on the public names of `keyed` and `keyed.extending`. It is imported as `keyed.windows`; in a clone, where
the folder is at the top, ``windows`` is another name of the same modules.
"""

from keyed.windows.aggregates import (
    Aggregate,
    Count,
    Max,
    Mean,
    Min,
    Reduce,
    Stddev,
    Sum,
    Variance,
    aggregate_of,
)
from keyed.windows.assigners import (
    CountWindows,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    HoppingEventTimeWindows,
    HoppingProcessingTimeWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from keyed.windows.calendar_windows import (
    CalendarProcessingTimeWindows,
    CalendarWindows,
)
from keyed.windows.collecting import (
    ArgMax,
    ArgMin,
    CollectList,
    CollectSet,
    CountDistinct,
    First,
    Latest,
    TopK,
)
from keyed.windows.continuous import (
    aggregate,
)
from keyed.windows.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    EvictorContext,
    TimeEvictor,
    TimestampedValue,
)
from keyed.windows.frequent import (
    ApproxMostFrequent,
    MostFrequent,
)
from keyed.windows.process_function import (
    ProcessWindowContext,
    ProcessWindowFunction,
)
from keyed.windows.sketches import (
    ApproxCountDistinct,
)
from keyed.windows.stream import (
    WindowedStream,
)
from keyed.windows.top_n import (
    TopN,
)
from keyed.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    OnMergeContext,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from keyed.windows.window import (
    GlobalWindow,
    TimeWindow,
    Window,
)
from keyed.windows.window_operator import (
    WindowOperator,
)

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
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
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
    "NeverTrigger",
    "OnMergeContext",
    "ProcessWindowContext",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Reduce",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Stddev",
    "Sum",
    "TimeEvictor",
    "TimeWindow",
    "TimestampedValue",
    "TopK",
    "TopN",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Variance",
    "Window",
    "WindowAssigner",
    "WindowOperator",
    "WindowedStream",
    "aggregate",
    "aggregate_of",
]

if __name__ == "windows":
    from keyed.windows.clone_name import use_clone_name

    use_clone_name()
