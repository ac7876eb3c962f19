"""Windows over keyed streams, written with nothing but the public names of `keyed`."""

from windows.aggregates import (
    Aggregate,
    Algebra,
    Count,
    Max,
    Mean,
    Min,
    Part,
    Reduce,
    Stddev,
    Sum,
    Variance,
    aggregate_of,
)
from windows.assigners import (
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
from windows.calendar_windows import (
    CalendarProcessingTimeWindows,
    CalendarWindows,
)
from windows.collecting import (
    ArgMax,
    ArgMin,
    CollectList,
    CollectSet,
    CountDistinct,
    First,
    Latest,
    TopK,
)
from windows.continuous import (
    ContinuousColumns,
    ContinuousRows,
    aggregate,
)
from windows.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    EvictorContext,
    TimeEvictor,
    TimestampedValue,
)
from windows.process_function import (
    ProcessWindowContext,
    ProcessWindowFunction,
)
from windows.sketches import (
    ApproxCountDistinct,
)
from windows.stream import (
    WindowedStream,
    explain,
)
from windows.top_n import (
    TopN,
)
from windows.triggers import (
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
from windows.vectorized.batch_operator import (
    WindowBatchOperator,
)
from windows.window import (
    GlobalWindow,
    TimeWindow,
    Window,
)
from windows.window_operator import (
    WindowOperator,
)

__all__ = [
    "Aggregate",
    "Algebra",
    "ApproxCountDistinct",
    "ArgMax",
    "ArgMin",
    "CalendarProcessingTimeWindows",
    "CalendarWindows",
    "CollectList",
    "CollectSet",
    "ContinuousColumns",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "ContinuousRows",
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
    "NeverTrigger",
    "OnMergeContext",
    "Part",
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
    "WindowBatchOperator",
    "WindowOperator",
    "WindowedStream",
    "aggregate",
    "aggregate_of",
    "explain",
]
