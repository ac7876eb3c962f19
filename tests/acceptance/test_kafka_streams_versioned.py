"""Kafka Streams' versioned store: RocksDBVersionedStoreTest of 4.x, each test under its own name.

`kafka_streams_versioned.json` has their steps: ``put KEY VALUE TIME -> VALID TO``, ``delete KEY TIME -> RECORD``,
``get KEY [AS OF] -> RECORD``, ``range KEY FROM TO -> RECORDS``, ``restore``, ``dropped COUNT``. A record is
``value@time..valid to``; a time ``2S-10`` is that many segments of a third of the history, and milliseconds. Tests with
the same steps are one, with the other name in brackets.

Stream time is the watermark here: a put moves it to just before its timestamp, as a stream without a delay does. Ranges
come with the oldest version first, where Kafka's default is the newest.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import keyed
from keyed import NOT_PUT
from keyed.job.state import VersionedRecord
from tests.acceptance.support import Harness, Told
from tests.support.data_files import read_data

CASES = read_data("acceptance/kafka_streams_versioned.json")
HISTORY = 300_000


def time_of(text: str) -> int | None:
    """Return the time that a text names; ``None`` for no bound, and for the end of what is valid."""
    if text in {"newest", "-"}:
        return None
    if text == "not_put":
        return NOT_PUT
    segments, milliseconds = re.fullmatch(r"(\d*S)?([+-]?\d+)?", text).groups()  # type: ignore[union-attr]
    return (int(segments[:-1] or 1) * HISTORY // 3 if segments else 0) + int(milliseconds or 0)


def record_of(text: str) -> VersionedRecord[str] | None:
    """Return the record that a text describes."""
    if text == "nothing":
        return None
    value, _, times = text.partition("@")
    begin, _, end = times.partition("..")
    return VersionedRecord(value.strip("'"), time_of(begin) or 0, time_of(end) if end else None)


class Store:
    """One store of all keys, as the original has it.

    Args:
        backend: The local store.
        restored: Whether it is restored, at another parallelism, before the first look at it.
        history: How far back it goes.
    """

    def __init__(self, backend: str, restored: bool, history: int) -> None:
        self._function = type("Versions", (Told,), {"state": keyed.VersionedState(str, history=history)})
        self._backend, self._restored = backend, restored
        self.harness = Harness(self._function(), store=backend)
        self._time = -1

    def do(self, step: str) -> None:
        call, _, expected = step.partition(" -> ")
        name, *arguments = call.split()
        getattr(self, name)(*arguments, *([expected] if expected else []))

    def put(self, key: str, value: str, time: str, valid_to: str | None = None) -> None:
        at = self._move_to(time)
        found = self._call(key, lambda state: state.put(None if value == "null" else value.strip("'"), at))
        assert valid_to is None or found == time_of(valid_to)

    def delete(self, key: str, time: str, expected: str) -> None:
        at = self._move_to(time)
        found = self._call(key, lambda state: state.delete(at))
        assert (found and VersionedRecord(found.value, found.timestamp)) == record_of(expected)

    def get(self, key: str, *as_of_and_expected: str) -> None:
        *as_of, expected = as_of_and_expected
        assert self._look(key, lambda state: state.get(*map(time_of, as_of))) == record_of(expected)

    def range(self, key: str, begin: str, end: str, expected: str) -> None:
        records = [] if expected == "nothing" else [record_of(text) for text in expected.split()]
        assert self._look(key, lambda state: state.get_range(time_of(begin), time_of(end))) == records

    def dropped(self, count: str) -> None:
        assert self.harness.metrics()["versions_dropped"] == int(count)

    def restore(self) -> None:
        old = self.harness
        self.harness = old.again(self._function(), store=self._backend, parallelism=2)
        old.close()

    def _move_to(self, time: str) -> int:
        at = time_of(time) or 0
        if at - 1 > self._time:
            self._time = at - 1
            self.harness.advance_watermark(self._time)
        return at

    def _look(self, key: str, look: Any) -> Any:
        if self._restored:
            self._restored = False
            self.restore()
        return self._call(key, look)

    def _call(self, key: str, call: Any) -> Any:
        return self.harness.call(lambda f, _: call(f.state), key=key)


@pytest.mark.parametrize(("backend", "restored"), [("memory", False), ("rocksdb", True)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_should(case, backend, restored):
    store = Store(backend, restored, case.get("history", HISTORY))
    for step in case["steps"]:
        store.do(step)
    store.harness.close()
