"""Another process that runs scripts again: sets have another order, and hashes, clocks and random numbers differ.

The order of a set of text is chosen by ``PYTHONHASHSEED`` when Python starts, so every run in this process has the same
order.

**Format.** Both pipes carry frames: the length in 8 bytes, big-endian, then the content. A request is
``(function, options, steps of each script)`` by cloudpickle. An answer is JSON: the text of each script's
outcomes and the number of hashes of text that the user's code has asked for, or the text of an error.

**Unpickling.** The project unpickles no state, no log and no network data. This module is the one exception, for code:
functions, keys given as lambdas and rows of the user's classes have no other form. Three rules limit it, and
`tests/test_structure.py` and ``tests/keyed/testing/test_other_process.py`` test them:

- Requests come from one anonymous pipe. Its writing end is held by the process that made the request, is not inherited
  by the programs that process starts, and is closed by `OtherProcess.close`. The other process gets its three standard
  streams and no further descriptor.
- The other process refuses any standard input except a pipe, and any start except by `OtherProcess`. The function under
  test has an empty standard input, so it cannot read a request, and neither can a program that it starts.
- Only the other process unpickles. Its answers are parsed as JSON.

A class that the other process can import is sent by module and name, as cloudpickle does: its code is imported there.
Only a class that it cannot import is sent by value. A second format for plain functions, options and rows would not
make the first one unnecessary, so there is none.
"""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any
from zlib import crc32

import attrs

from keyed.base.closing import Closeable
from keyed.errors import KeyedError
from keyed.testing.process_state import Extreme, ExtremeHashes, MovedClocks, ProcessMemory, drawing
from keyed.testing.scripts import Script, Step, text_of

_PROGRAM = "from keyed.testing.other_process import _serve; _serve()"
#: Number of texts of the rows, and of the code, that are to have another order, and of hash seeds to try for that: the
#: most, if none of the first orders all sets of three differently.
_TEXTS = 5
_SEEDS, _MOST_SEEDS = 16, 32
_SHORT = 20
#: Seconds after which a process that has not answered is killed.
_PATIENCE = 600.0
#: Seconds before the first row to which the clock is moved.
_BEFORE = 401 * 86_400
#: Variables of the environment that the other process gets.
_INSIDE = "KEYED_OTHER_PROCESS"
#: The module with the base classes of all functions.
_OWN = str(Path(__file__).parents[1])


class ProcessUnavailable(Exception):
    """Scripts cannot be run in another process."""


def draw_seed(steps: Sequence[Step]) -> int:
    """Return a seed for the random numbers of a script, the same in all processes."""
    return crc32(repr(steps).encode())


class OtherProcess(Closeable):
    """A process with another hash seed, started with the first scripts and ended by `close`.

    Args:
        texts: Text of the rows, by example: the hash seed is chosen so that pairs of it have another order.
        constants: Text in the function's code, which is paired with it.
        hashes: The results of `hash` for text.

    Attributes:
        hashed: Number of hashes of text that the user's code has asked for.
    """

    def __init__(self, texts: Iterable[set[str]], constants: set[str], hashes: Extreme) -> None:
        # A script that checks a property on import would start processes without end.
        if _INSIDE in os.environ:
            raise ProcessUnavailable("this is the other process")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, "-c", _PROGRAM],
            env=os.environ
            | {_INSIDE: hashes, "PYTHONPATH": path, "PYTHONHASHSEED": str(_other_hash_seed(texts, constants))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._by_value = False
        self.hashed = 0

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def run(self, scripts: Sequence[Script]) -> list[list[dict[str, str]]]:
        """Run scripts of one function and return the text of each one's outcomes, all of which should be the same.

        Raises:
            ProcessUnavailable: The function cannot be sent, or the process has ended or does not answer.
        """
        if not scripts:
            return []
        function, options = scripts[0].function, dict(scripts[0].options)
        while True:
            request = _packed((function, options, [script.steps for script in scripts]), function, self._by_value)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            began = time.monotonic()
            timer = threading.Timer(_PATIENCE, self._process.kill)
            timer.start()
            try:
                _write(self._process.stdin, request)
                answer = _read(self._process.stdout)
            except BrokenPipeError:
                answer = None
            finally:
                timer.cancel()
            if answer is None:
                if time.monotonic() - began >= _PATIENCE:
                    raise ProcessUnavailable(f"the process has not answered for {_PATIENCE:g} s")
                self._errors.seek(0)
                last_line = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise ProcessUnavailable(last_line or "the process has ended")
            outcome = json.loads(answer)
            if isinstance(outcome, list):
                outcomes, self.hashed = outcome
                return list(outcomes)
            # A module may be importable in this process alone, like those that pytest imports by file.
            if self._by_value:
                raise ProcessUnavailable(str(outcome))
            self._by_value = True


def _packed(request: Any, function: Any, by_value: bool) -> bytes:
    """Return the request as bytes.

    Raises:
        ProcessUnavailable: A part of it cannot be sent.
    """
    import cloudpickle

    names = {cls.__module__ for cls in type(function).__mro__}
    modules = [
        sys.modules[name] for name in names if by_value and name.partition(".")[0] not in ("builtins", "keyed", "abc")
    ]
    modules = [module for module in modules if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(request))
    except Exception as error:
        raise ProcessUnavailable(f"{type(error).__name__}: {error}") from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _other_hash_seed(texts: Iterable[set[str]], constants: set[str]) -> int:
    """Return a hash seed that orders most sets of the frequent texts differently than this process.

    Raises:
        ProcessUnavailable: A process that tries a seed does not answer.
    """
    often = Counter(text for each in texts for text in each)
    frequent = sorted(often, key=lambda text: (-often[text], text))[:_TEXTS]
    # Texts of rows (keys and tags) with each other, and the most frequent ones with texts of the code.
    known = (frequent, [*frequent[:2], *sorted(constants - {*frequent})[:_TEXTS]])
    # Texts whose hashes collide stay in the order in which they were added.
    return _best_hash_seed(tuple(each for number in (2, 3) for some in known for each in permutations(some, number)))


@lru_cache
def _best_hash_seed(sets: tuple[tuple[str, ...], ...]) -> int:
    """Return a hash seed that orders most of these sets differently, the large ones before all."""
    here = [list(set(each)) for each in sets]
    program = "import json, sys; print(json.dumps([list(set(each)) for each in json.loads(sys.argv[1])]))"
    best = (-1, -1, 1)
    largest = sum(len(each) == 3 for each in sets)
    for count, seed in enumerate(random.Random(0).sample(range(1, 2**32), _MOST_SEEDS)):  # noqa: S311 - chance of tests
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-S", "-c", program, json.dumps(sets)]
        try:
            completed = subprocess.run(  # noqa: S603 - ours
                command, env=environment, capture_output=True, check=True, timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessUnavailable(str(error)) from error
        elsewhere = json.loads(completed.stdout)
        others = Counter(len(one) for one, other in zip(here, elsewhere, strict=True) if one != other)
        # A larger set that keeps its order is worse than two texts that keep theirs: half of all seeds do that.
        best = max(best, (others[3], others[2], seed))
        if count >= _SEEDS - 1 and best[0] == largest:
            break
    return best[2]


def texts_in(cls: type) -> set[str]:
    """Return the short text in the code of a class' methods."""
    texts: set[str] = set()
    codes = [
        method.__code__ for each in cls.__mro__ for method in vars(each).values() if isinstance(method, FunctionType)
    ]
    codes = [code for code in codes if not code.co_filename.startswith(_OWN)]
    while codes:
        constants = list(codes.pop().co_consts)
        while constants:
            constant = constants.pop()
            if isinstance(constant, CodeType):
                codes.append(constant)
            elif isinstance(constant, tuple | frozenset):
                constants += constant
            elif isinstance(constant, str) and len(constant) <= _SHORT:
                texts.add(constant)
    return texts


def texts_of(value: Any) -> set[str]:
    """Return the text in a value and its parts."""
    if isinstance(value, str):
        return {value}
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif attrs.has(type(value)):
        parts = [getattr(value, field.name) for field in attrs.fields(type(value))]
    elif hasattr(value, "__dict__"):
        parts = vars(value).values()
    return {text for part in parts for text in texts_of(part)}


def _write(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    """Return the content of the next frame, ``None`` at the end."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    content = pipe.read(int.from_bytes(head, "big"))
    return content if len(content) == int.from_bytes(head, "big") else None


def _serve() -> None:
    """Run scripts until there are no more: the program of the other process.

    Raises:
        ProcessUnavailable: This process was not started by `OtherProcess`.
    """
    if _INSIDE not in os.environ or not stat.S_ISFIFO(os.fstat(0).st_mode):
        raise ProcessUnavailable("requests are read from the pipe of OtherProcess alone")
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Functions get neither: a request is not their input, and their output is not an answer.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    clocks, hashes = MovedClocks(), ExtremeHashes("low" if os.environ[_INSIDE] == "low" else "high")
    memories: dict[type, ProcessMemory] = {}
    while (request := _read(requests)) is not None:
        try:
            function, options, scripts = _unpacked(request)
            memory = memories.setdefault(type(function), ProcessMemory(function))
            outcomes = [_outcomes(memory, Script(function, steps, options), clocks) for steps in scripts]
            response: Any = [outcomes, hashes.text_hashes]
        except Exception as error:  # noqa: BLE001 - whatever the user's modules and objects raise
            response = f"{type(error).__name__}: {error}"
        _write(answers, json.dumps(response).encode())


def _unpacked(request: bytes) -> Any:
    """Return a request of `_packed`, in the other process."""
    import cloudpickle

    return cloudpickle.loads(request)


def _outcomes(memory: ProcessMemory, script: Script, clocks: MovedClocks) -> list[dict[str, str]]:
    """Return the text of a script's outcome, and if it reads the time of day, also of those at other times."""
    dated, outcomes = clocks.dated, [_outcome(memory, script)]
    times = [row.timestamp / 1_000 for row in script.rows if row.timestamp is not None]
    if clocks.dated > dated and times:
        # A row may be compared with the present: rows of 1970 are old at any time of this century.
        for instant in (max(times), min(times) - _BEFORE):
            with clocks.at(instant):
                outcome = _outcome(memory, script)
            # No clock shows a time before 1970, so code may fail then.
            if instant >= 0 or "error" not in outcome:
                outcomes.append(outcome)
    return outcomes


def _outcome(memory: ProcessMemory, script: Script) -> dict[str, str]:
    with memory.as_at_first(), drawing("seeded", draw_seed(script.steps)):
        try:
            return text_of(script.run())
        except KeyedError as error:
            return {"error": f"{type(error).__name__}: {error}"}
