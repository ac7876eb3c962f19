"""One key group over a commit store in memory, whose local store and commits a test can swap, copy and break."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from keyed import AggregateFunction, KeyedProcessFunction, ListState, MapState, StateTtl, TimeDomain, ValueState
from keyed.engine.batch import Batch, BatchResult
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.job.functions import OperatorSpec
from keyed.stores import MemoryStore
from keyed.stores.commit_store import MemoryCommitStore

OPERATOR = "op"


class Work(KeyedProcessFunction):
    """Elements are (key, call, *arguments): all that leaves entries, overwrites and removes them."""

    value = ValueState(bytes)
    map = MapState(int, bytes)
    list = ListState(bytes)
    brief = MapState(int, int, ttl=StateTtl(milliseconds=5))

    def process_element(self, value, ctx):
        _, call, *arguments = value
        timers = ctx.timer_service()
        if call == "value":
            self.value.update(*arguments)
        elif call == "put":
            self.map.put(*arguments)
        elif call == "remove":
            self.map.remove(*arguments)
        elif call == "append":
            self.list.add(*arguments)
        elif call == "clear":
            self.list.clear()
        elif call == "brief":
            self.brief.put(*arguments)
        else:
            getattr(timers, call)(*arguments)
        yield ctx.get_current_key(), call, self.value.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.timer_name(), len(self.map)


class Gather(AggregateFunction[Any, Any, Any]):
    """An aggregate that changes its accumulator, keeps what it gets, and gives both out."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


def random_element(random: Random) -> tuple[Any, ...]:
    """An element for `Work` that often hits what others left."""
    key, number, data = f"k{random.randrange(3)}", random.randrange(5), random.randbytes(random.randrange(30))
    return random.choice(
        [
            (key, "value", data),
            (key, "value", None),
            (key, "put", number, data),
            (key, "put", number, data),
            (key, "remove", number),
            (key, "append", data),
            (key, "append", data),
            (key, "clear"),
            (key, "brief", number, number),
            (key, "register_event_time_timer", random.randrange(40)),
            (key, "delete_event_time_timer", random.randrange(40)),
            (key, "set_timer", number, random.randrange(40)),
            (key, "cancel_timer", number),
            (key, "set_timer", number, 10**6, TimeDomain.PROCESSING_TIME),
        ]
    )


class Group:
    """A key group of `Work` (or another function) and its commits."""

    def __init__(self, function: Any = None, store: Any = None, changelog: Any = None) -> None:
        self.spec = OperatorSpec(OPERATOR, function or Work(), True, None, "arrival", 1, changelog=changelog)
        self.commits = MemoryCommitStore()
        self.use(store or MemoryStore())

    def use(self, store: Any) -> None:
        """Go on with another local store, in another process so to say."""
        self.store = store
        self.replica = Replica(store)
        self.group = KeyGroup(self.spec, 0, self.log, self.replica)

    @property
    def log(self) -> Any:
        return self.commits.group_log(OPERATOR, 0)

    def run(self, *elements: Any, commit: bool = True, **marks: Any) -> BatchResult:
        """Run one batch of elements without timestamps."""
        keys = [element[0] for element in elements]
        result = self.group.run(Batch(lambda: [(keys, None, list(elements), None)] if keys else [], **marks))
        if commit:
            self.commits.commit()
        else:
            self.commits.rollback()
        return result

    def meta(self) -> Any:
        return self.group.committed()[0]

    def entries(self) -> list[Any]:
        """The committed entries, as the local store in use has them."""
        return sorted(self.group.committed()[1].items())

    def rebuilt(self) -> list[Any]:
        """The committed entries, as a store has them that starts from nothing."""
        group = KeyGroup(self.spec, 0, self.log, Replica(MemoryStore()))
        return sorted(group.committed()[1].items())

    def log_bytes(self) -> int:
        return sum(len(record) for _, record in self.log.read(1, 10**9))

    def fork(self) -> Group:
        """The same commits and a copy of the local store in memory, apart from these from now on."""
        other = Group(self.spec.function, copy.deepcopy(self.replica.store))
        other.commits.restore(self.commits.snapshot())
        return other
