"""Test kit for keyed functions: harness, properties, replay and conformance suites.

```python
import keyed
from keyed.testing import KeyedTestHarness, assert_batch_split_invariant, strategies


class Visits(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, 0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield self.count.value()


harness = KeyedTestHarness(Visits())
harness.process("ann")
harness.crash_and_recover()
harness.process("ann")
print([record.value for record in harness.take_output()])

users = strategies.streams(strategies.skewed("ann", "bob"))
assert_batch_split_invariant(Visits(), users)
```

```output
[1, 2]
```

The harness needs neither pytest nor Hypothesis; properties and strategies need the extra ``keyed-streams[testing]``.
Properties take a strategy of streams, and `PropertyOptions`. They return a sentence with the claim and the number of
examples, or raise `Falsified`.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from keyed.base.extras import extra as _extra
from keyed.testing.function_options import Record, SecondRecord
from keyed.testing.harness import KeyedTestHarness
from keyed.testing.memory_changelog import MemoryChangelog

if TYPE_CHECKING:
    from keyed.testing.properties import (
        Falsified,
        assert_batch_split_invariant,
        assert_deterministic,
        assert_matches,
        assert_recovery_invisible,
        assert_rescale_invisible,
        assert_runtimes_agree,
        assert_state_bounded,
    )
    from keyed.testing.replaying import Recording, replay
    from keyed.testing.state_machine import KeyedStateMachine

#: Modules of names that are imported on demand; all others of them are properties.
_MODULES = {"KeyedStateMachine": "state_machine", "Recording": "replaying", "replay": "replaying"}

__all__ = [
    "Falsified",
    "KeyedStateMachine",
    "KeyedTestHarness",
    "MemoryChangelog",
    "Record",
    "Recording",
    "SecondRecord",
    "assert_batch_split_invariant",
    "assert_deterministic",
    "assert_matches",
    "assert_recovery_invisible",
    "assert_rescale_invisible",
    "assert_runtimes_agree",
    "assert_state_bounded",
    "replay",
]


if "hypothesis" in sys.modules:
    importlib.import_module("keyed.testing.strategies")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = _MODULES.get(name, "properties")
        with _extra("testing", f"keyed.testing.{name}"):
            value = getattr(importlib.import_module(f"keyed.testing.{module}"), name)
        setattr(sys.modules[__name__], name, value)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
