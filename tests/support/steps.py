"""The cost of a call, counted in steps of the interpreter instead of in time, so that a test can bound its growth."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest.mock import patch

#: Functions in C that go through all that they are given.
_PASSES = ("sorted", "min", "max", "sum")


def steps(call: Callable[[], Any]) -> int:
    """Return the number of steps of a call in this thread: bytecodes, and entries that functions in C go through.

    Steps within other functions in C are not counted.
    """
    count = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(first: Any, *others: Any, **named: Any) -> Any:
            nonlocal count
            entries = list(first) if hasattr(first, "__iter__") else first
            count += len(entries) if isinstance(entries, list) else 1
            return function(entries, *others, **named)

        return counted

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def profile(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and function.__name__ in {"copy", "sort", "difference", "union"}:
            with contextlib.suppress(TypeError):
                count += len(function.__self__)

    traced, profiled = sys.gettrace(), sys.getprofile()
    with patch.dict(vars(builtins), {name: counting(getattr(builtins, name)) for name in _PASSES}):
        # From Python 3.12 on opcodes are only reported to a trace function that is set after this.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(enter)
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.settrace(traced)
            sys.setprofile(profiled)
    return count
